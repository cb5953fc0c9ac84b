"""Prediction, saving and loading."""

import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.running import gather
from tests.tolerance import close
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, DropConnect, Dropout, Gaussian, InputError, NPDropout
from stochens.files import storage
from stochens.likelihoods import Categorical
from stochens.posterior import streaming
from stochens.posterior.fingerprint import fingerprint


def fit(data, net=None, **options):
    settings = {"method": "regular", "members": 3, "epochs": 2, "device": "cpu"}
    return stochens.fit(net or (lambda: MLP(2, 6, 2)), data, **gather(**settings | options))


# float64: two layers of at most 6 terms, a softmax and a mean of at most 7 members
CLOSE = close(torch.float64, terms=7, depth=5, condition=10.0)


@pytest.fixture
def wide(float64, xor):
    return xor[0].double(), xor[1]


def test_the_history_shows_its_sizes(xor):
    assert repr(fit(xor).history) == "History(2 epochs, 3 members)"


def test_one_member_is_its_network(xor):
    posterior = fit(xor, members=1)
    p = posterior.predict(xor[0])
    torch.testing.assert_close(p.mean, p.probs[0])
    assert float(p.mutual_information.max()) < 1e-6  # rounding of two equal entropies


def test_streaming_does_not_change_the_answer(wide, monkeypatch):
    posterior = fit(wide, members=7)
    whole = posterior.predict(wide[0])
    monkeypatch.setattr(streaming, "ACTIVATIONS", 2000)  # a few members and rows
    rows, chunk = streaming.plan(posterior.net, posterior.params, wide[0], None)
    assert rows < 60 or chunk < 7
    parts = posterior.predict(wide[0])
    light = posterior.predict(wide[0], keep_draws=False)
    for p in (parts, light):
        torch.testing.assert_close(p.mean, whole.mean, **CLOSE)
        torch.testing.assert_close(p.entropy, whole.entropy, **CLOSE)
        torch.testing.assert_close(p.mutual_information, whole.mutual_information, **CLOSE)
    torch.testing.assert_close(parts.probs, whole.probs, **CLOSE)
    with pytest.raises(InputError, match=r"draws were not kept.*keep_draws=True"):
        _ = light.probs


@pytest.mark.parametrize("method", ["dropconnect", "np-dropout"])
def test_a_draw_of_weights_is_one_function_of_x(wide, method):
    """Batches of prediction share the draw: a point has one output however x is cut."""
    posterior = fit(wide, method=method)
    x = wide[0][:1].expand(20, 2)  # the same point twenty times
    p = posterior.predict(x, batch_size=3)
    torch.testing.assert_close(p.probs, p.probs[:, :1].expand_as(p.probs), **CLOSE)
    torch.testing.assert_close(posterior.predict(wide[0]).probs[:, 0], p.probs[:, 0], **CLOSE)


def test_dropout_is_fresh_for_each_example(xor):
    p = fit(xor, method=Dropout(0.5)).predict(xor[0][:1].expand(40, 2), batch_size=10)
    assert len(p.probs[0].unique(dim=0)) > 4
    assert not torch.equal(p.probs[:, :10], p.probs[:, 10:20])


class Deep(nn.Sequential):
    def __init__(self, activation):
        super().__init__(nn.Linear(2, 6), activation(), nn.Linear(6, 6), nn.Linear(6, 2))


MIXED = [
    [Dropout(0.5, skip="2"), DropConnect(0.3, skip="0")],
    [DropConnect(0.3, skip="2"), Dropout(0.5, skip="0")],
    [NPDropout(), Gaussian(0.5)],
]


@pytest.mark.parametrize("engine", ["fused", "vmap", "loop"])
@pytest.mark.parametrize("method", MIXED)
def test_noise_on_outputs_is_fresh_beside_noise_on_weights(xor, method, engine):
    activation = nn.ReLU if engine == "fused" else nn.GELU
    net = functools.partial(Deep, activation)
    posterior = fit(
        xor, net, method=method, run=stochens.Run(engine="auto" if engine == "fused" else engine)
    )
    x = xor[0][:1].expand(40, 2)
    p = posterior.predict(x, batch_size=10)
    for member in p.probs:
        assert len(member.unique(dim=0)) > 4
        assert not any(torch.equal(member[:10], member[k : k + 10]) for k in (10, 20, 30))
    assert torch.equal(posterior.predict(x, batch_size=10).probs, p.probs)


@pytest.mark.parametrize("engine", ["fused", "vmap", "loop"])
def test_noise_on_weights_is_one_draw_beside_noise_on_outputs(xor, engine):
    """What is left where the outputs' noise is tiny is one function of x."""
    activation = nn.ReLU if engine == "fused" else nn.GELU
    net = functools.partial(Deep, activation)
    options = {"method": [NPDropout(), Gaussian(1e-6)], "epochs": 20, "lr": 0.05}
    posterior = fit(
        xor, net, run=stochens.Run(engine="auto" if engine == "fused" else engine), **options
    )
    p = posterior.predict(xor[0][:1].expand(20, 2), batch_size=3)
    torch.testing.assert_close(p.probs, p.probs[:, :1].expand_as(p.probs), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        posterior.predict(xor[0]).probs[:, 0], p.probs[:, 0], rtol=0, atol=1e-4
    )
    of_one = posterior.predict(xor[0][:1], draws=9).probs[::3, 0, 0]  # the weights have noise
    assert float(of_one.max() - of_one.min()) > 0.01


def test_a_seed_may_be_one_of_numpys(xor):
    posterior = fit(xor, method=Dropout(0.5))
    p, same = (posterior.predict(xor[0], seed=seed) for seed in (3, np.int64(3)))
    assert torch.equal(p.probs, same.probs)
    assert torch.equal(p.sample(2, seed=np.int64(3)), p.sample(2, seed=3))


def test_a_loader_is_predicted_in_its_order(xor):
    posterior = fit(xor)
    loader = DataLoader(TensorDataset(*xor), batch_size=7)
    assert torch.equal(posterior.predict(loader).probs, posterior.predict(xor[0]).probs)


def test_many_members_over_many_points_keep_only_sums(xor, monkeypatch):
    """1024 members over a million points would be 8 GB of draws; the sums are what is kept."""
    import stochens.posterior.predictive as predict

    posterior = fit(xor, members=4)
    monkeypatch.setattr(predict, "DRAWS_BUDGET", 4 * 60 * 2 * 4 - 1)
    assert posterior.predict(xor[0]).draws is None
    monkeypatch.setattr(predict, "DRAWS_BUDGET", 4 * 60 * 2 * 4)
    assert posterior.predict(xor[0]).draws is not None


def test_bad_inputs_of_predict(xor):
    posterior = fit(xor)
    for draws in (0, 2.0):
        with pytest.raises(InputError, match=f"draws must be a whole number.*got {draws}"):
            posterior.predict(xor[0], draws=draws)
    for rows in (0, -1, 2.0):
        with pytest.raises(InputError, match=f"batch_size must be a whole number.*got {rows}"):
            posterior.predict(xor[0], batch_size=rows)
    with pytest.raises(InputError, match="x is empty"):
        posterior.predict(xor[0][:0])
    with pytest.raises(InputError, match=r"fails on x \(60, 1\).*; it was trained on x \[N, 2\]"):
        posterior.predict(xor[0][:, :1])
    with pytest.raises(InputError, match=r"of torch.float64; use x.float\(\): "):
        posterior.predict(xor[0].double())
    for wrong in (-1, 2):
        with pytest.raises(InputError, match=f"labels must be 0 to 1, got {wrong}..{wrong}"):
            posterior.predict(xor[0]).log_prob(torch.full((60,), wrong))
    x = xor[0].clone()
    x[3, 0] = float("inf")
    with pytest.raises(InputError, match=r"x must be finite; x\[3, 0\] is inf"):
        posterior.predict(x)


METHODS = [  # with options; test_sources.py has all of them without
    Dropout(0.2, rates={"2": 0.1}, skip="0"),
    NPDropout(node="channel"),
    [Dropout(0.2), Gaussian(0.1, learn=True)],
]


@pytest.mark.parametrize("method", METHODS)
def test_save_and_load(xor, tmp_path, method):
    posterior = fit(xor, method=method)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", MLP(2, 6, 2))
    assert again.recipe == posterior.recipe
    assert again.members == posterior.members
    assert again.kl() == posterior.kl()
    assert torch.equal(again.predict(xor[0]).probs, posterior.predict(xor[0]).probs)
    assert torch.equal(again.history.loss, posterior.history.loss)


def test_regression_and_swag_survive_saving(xor, tmp_path):
    x = xor[0]
    posterior = stochens.multiswag(
        lambda: MLP(2, 4, 1),
        (x, x.sum(1)),
        likelihood="gaussian",
        members=2,
        epochs=10,
        snapshots=5,
        rank=3,
        device="cpu",
    )
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", lambda: MLP(2, 4, 1))
    one, two = (p.predict(x, draws=2) for p in (posterior, again))
    assert torch.equal(one.draw_means, two.draw_means)
    assert torch.equal(one.std, two.std)


@dataclasses.dataclass(frozen=True)
class Smooth(Categorical):
    """Labels that are right in a share of 1 - e."""

    name = "smooth"
    e: float = 0.1

    def nll(self, outputs, y, weights=None):
        even = -outputs.log_softmax(-1).mean((-1, -2))
        return (1 - self.e) * super().nll(outputs, y, weights) + self.e * even


@dataclasses.dataclass(frozen=True)
class Unnamed(Smooth):
    """Has the name of one of ours."""

    name = "categorical"


@pytest.mark.parametrize("kind", [Smooth, Unnamed])
def test_a_likelihood_of_ones_own_is_given_again(xor, tmp_path, kind):
    posterior = fit(xor, likelihood=kind(0.2))
    posterior.save(tmp_path / "run")
    said = rf"made with a likelihood of your own, {kind.__name__}; give it: .*likelihood="
    with pytest.raises(InputError, match=said):
        stochens.load(tmp_path / "run", MLP(2, 6, 2))
    with pytest.raises(InputError, match=r"its options is \{'e': 0.2\} there, and \{'e': 0.3\}"):
        stochens.load(tmp_path / "run", MLP(2, 6, 2), likelihood=kind(0.3))
    with pytest.raises(InputError, match="made with another likelihood"):
        stochens.load(tmp_path / "run", MLP(2, 6, 2), likelihood=Categorical())
    again = stochens.load(tmp_path / "run", MLP(2, 6, 2), likelihood=kind(0.2))
    assert again.likelihood == posterior.likelihood
    assert torch.equal(again.predict(xor[0]).probs, posterior.predict(xor[0]).probs)


@dataclasses.dataclass(frozen=True)
class Named(Dropout):
    """Has the name of one of ours."""


def test_a_method_of_ones_own_is_given_again(xor, tmp_path):
    posterior = fit(xor, method=[Named(0.2), Gaussian(0.1)])
    posterior.save(tmp_path / "run")
    with pytest.raises(InputError, match=r"a method of your own, Named; give it: .*method="):
        stochens.load(tmp_path / "run", MLP(2, 6, 2))
    with pytest.raises(InputError, match="made with 2 methods, not 1"):
        stochens.load(tmp_path / "run", MLP(2, 6, 2), method=Named(0.2))
    with pytest.raises(InputError, match="another method: its class is 'Named' there, and None"):
        stochens.load(tmp_path / "run", MLP(2, 6, 2), method=[Dropout(0.2), Gaussian(0.1)])
    again = stochens.load(tmp_path / "run", MLP(2, 6, 2), method=[Named(0.2), Gaussian(0.1)])
    assert again.recipe == posterior.recipe
    assert torch.equal(again.predict(xor[0]).probs, posterior.predict(xor[0]).probs)


def test_one_of_ours_may_be_given_and_one_that_json_cannot_hold_is_refused(xor, tmp_path):
    fit(xor).save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", MLP(2, 6, 2), likelihood=Categorical())
    assert again.likelihood == Categorical()
    strange = fit(xor, likelihood=Smooth(torch.tensor(0.1)))
    with pytest.raises(InputError, match="Smooth cannot be saved"):
        strange.save(tmp_path / "strange")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_loading_leaves_the_random_numbers_of_its_caller_alone(xor, tmp_path):
    fit(xor, method="np-dropout").save(tmp_path / "run")
    for net in (MLP(2, 6, 2), lambda: MLP(2, 6, 2)):
        before = torch.get_rng_state()
        stochens.load(tmp_path / "run", net)
        assert torch.equal(torch.get_rng_state(), before)


def test_frozen_parts_and_buffers_are_saved_too(xor, tmp_path):
    class Net(nn.Module):
        def __init__(self, scale: float = 2.0) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)
            self.frozen = nn.Linear(2, 2).requires_grad_(False)
            nn.init.constant_(self.frozen.weight, scale)
            nn.init.zeros_(self.frozen.bias)
            self.register_buffer("shift", torch.tensor([scale]))

        def forward(self, x):
            return self.body(x) + self.frozen(x) + self.shift

    posterior = fit(xor, Net)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", lambda: Net(scale=-1.0))
    assert torch.equal(again.predict(xor[0]).probs, posterior.predict(xor[0]).probs)


def test_another_network_is_refused_by_its_first_difference(xor, tmp_path):
    fit(xor).save(tmp_path / "run")
    cases = [
        (MLP(2, 7, 2), r"parameter '0.weight' is \(7, 2\) in the network given and \(6, 2\)"),
        (MLP(2, 6, 3), r"parameter '2.weight' is \(3, 6\)"),
        (MLP(2, 6, 6, 2), r"parameter '2.weight' is \(6, 6\)"),
        (
            nn.Sequential(nn.Linear(2, 6, bias=False)),
            r"parameter '0.bias' is absent in the network",
        ),
    ]
    for net, message in cases:
        with pytest.raises(InputError, match=message):
            stochens.load(tmp_path / "run", net)


class Features(nn.Module):
    """Random features, which are no parameters; `known` makes them a buffer, or none at all."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        drawn = torch.randn(2, 8)
        if known:
            self.register_buffer("drawn", drawn)
        else:
            self.drawn = drawn
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.cos(x @ self.drawn))


@pytest.mark.parametrize("method", ["regular", "np-dropout", [Dropout(0.2), Gaussian(0.1)]])
def test_a_network_that_computes_something_else_is_refused(xor, tmp_path, method):
    nets = {
        act: nn.Sequential(nn.Linear(2, 8), act(), nn.Linear(8, 2)) for act in (nn.Tanh, nn.ReLU)
    }
    posterior = stochens.fit(nets[nn.Tanh], xor, method=method, members=2, epochs=2)
    posterior.save(tmp_path / "tanh")
    stochens.load(tmp_path / "tanh", nets[nn.Tanh])
    with pytest.raises(InputError, match="away from the saved ones"):
        stochens.load(tmp_path / "tanh", nets[nn.ReLU])
    plain = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    plain.load_state_dict(posterior.member(0))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).sin()
    found = fingerprint(posterior.net, posterior.params, posterior.inputs)
    torch.testing.assert_close(found, plain(x).detach())


def test_members_of_other_constants_are_not_joined(xor):
    """They would be predicted with the constants of the first, and nobody would notice."""
    first, second = Features(True), Features(True)
    parts = [fit(xor, first, members=[0]), fit(xor, second, members=[1])]
    with pytest.raises(InputError, match="'drawn', which all members share, differs"):
        stochens.join(parts)
    parts = [fit(xor, first, members=[k]) for k in range(2)]
    both = stochens.join(parts).predict(xor[0])
    for k, part in enumerate(parts):
        assert torch.equal(both.probs[k], part.predict(xor[0]).probs[0])


def test_random_constants_must_be_those_of_the_saved_network(xor, tmp_path):
    for known in (True, False):
        posterior = stochens.fit(Features(known), xor, method="regular", members=2, epochs=2)
        posterior.save(tmp_path / str(known))
    again = stochens.load(tmp_path / "True", Features(True))  # a buffer is saved
    assert again.predict(xor[0]).mean.shape == (len(xor[0]), 2)
    with pytest.raises(InputError, match="random constants that are no buffers"):
        stochens.load(tmp_path / "False", Features(False))


def test_a_network_with_noise_of_its_own_or_without_outputs_has_no_fingerprint(xor, tmp_path):
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(F.dropout(x, 0.5))

    posterior = stochens.fit(Noisy(), xor, method="regular", members=2, epochs=1)
    assert fingerprint(posterior.net, posterior.params, posterior.inputs) is None
    posterior.save(tmp_path / "noisy")
    stochens.load(tmp_path / "noisy", Noisy())
    assert fingerprint(nn.Linear(3, 2), {}, posterior.inputs) is None  # it fails at x [2, 2]


def test_damaged_folders_are_refused(xor, tmp_path):
    run = tmp_path / "run"
    fit(xor).save(run)
    tensors = (run / "tensors.safetensors").read_bytes()
    (run / "tensors.safetensors").write_bytes(tensors[:-1] + bytes([tensors[-1] ^ 1]))
    with pytest.raises(InputError, match="is damaged: its files have not the checksums"):
        stochens.load(run, MLP(2, 6, 2))
    (run / "tensors.safetensors").write_bytes(tensors)
    stochens.load(run, MLP(2, 6, 2))
    (run / "description.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        stochens.load(run, MLP(2, 6, 2))
    storage.write_folder(run, "something else", {}, {}, overwrite=True)
    with pytest.raises(InputError, match="holds 'something else'"):
        stochens.load(run, MLP(2, 6, 2))
    with pytest.raises(InputError, match="is no saved folder"):
        stochens.load(tmp_path / "nowhere", MLP(2, 6, 2))


def test_saving_never_leaves_half_a_folder(xor, tmp_path, monkeypatch):
    posterior = fit(xor)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        posterior.save(tmp_path / "run")
    posterior.save(tmp_path / "good")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stochens.files.storage, "save_file", full)
    with pytest.raises(InputError, match="No space left"):
        posterior.save(tmp_path / "good", overwrite=True)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good", "run"]
    stochens.load(tmp_path / "good", MLP(2, 6, 2))  # the old one is whole
    posterior.save(tmp_path / "good", overwrite=True)


def test_files_of_others_are_never_written_over(xor, tmp_path):
    """`overwrite` is for a posterior of before: the folder is replaced whole."""
    posterior = fit(xor)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place, said in (("run", "holds 'notes.txt', which was not written by"), ("file", "a file")):
        with pytest.raises(InputError, match=said):
            posterior.save(tmp_path / place, overwrite=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_posterior_is_loaded_in_the_precision_it_was_saved_in(xor, tmp_path):
    """A sampler may be asked for another than the network's."""
    x, y = xor
    options = {"chains": 2, "samples": 4, "warmup": 4, "precision": "float64"}
    like = "gaussian"
    posterior = stochens.nuts(MLP(2, 6, 1), (x, y.float()), likelihood=like, **gather(**options))
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", MLP(2, 6, 1))
    assert torch.equal(again.predict(x.double()).mean, posterior.predict(x.double()).mean)


def test_where_the_last_rename_fails_the_posterior_of_before_is_back(xor, tmp_path, monkeypatch):
    before, after = fit(xor), fit(xor, seed=1)
    before.save(tmp_path / "good")
    rename = Path.rename

    def fails(self, target):
        if self.name.endswith(".part"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(InputError, match="Input/output error"):
        after.save(tmp_path / "good", overwrite=True)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["good"]
    again = stochens.load(tmp_path / "good", MLP(2, 6, 2))
    assert torch.equal(again.params["0.weight"], before.params["0.weight"])
    left = tmp_path / f".good.{os.getpid()}.old"  # of a killed process with our number
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"")
    after.save(tmp_path / "good", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["good"]


def test_join_refuses_what_does_not_belong_together(xor):
    a = fit(xor, members=[0, 1])
    with pytest.raises(InputError, match="a member is in two"):
        stochens.join([a, fit(xor, members=[1, 2])])
    with pytest.raises(InputError, match="posteriors differ in recipe"):
        stochens.join([a, fit(xor, members=[2], method="dropout")])
    with pytest.raises(InputError, match="posteriors differ in seed"):
        stochens.join([a, fit(xor, members=[2], seed=1)])
    with pytest.raises(InputError, match="different networks"):
        stochens.join([a, fit(xor, lambda: MLP(2, 7, 2), members=[2])])
    with pytest.raises(InputError, match="with the same parameters their outputs are up to"):
        stochens.join([a, fit(xor, lambda: MLP(2, 6, 2, activation=nn.Tanh), members=[2])])
    averaged = stochens.multiswag(MLP(2, 6, 2), xor, members=[2], epochs=40, rank=2)
    with pytest.raises(InputError, match="only some have SWAG's Gaussian"):
        stochens.join([a, averaged])
    some = a.take(slice(1, 2))
    assert some.members == (1,)
    assert some.history.loss.shape[1] == 1


def test_places_of_members_that_are_not_there_are_refused(xor):
    posterior = fit(xor)
    assert posterior.take([-1]).members == posterior.take(slice(2, None)).members == (2,)
    for places in ([], [3], 0, slice(3, 5), "0", [0.5]):
        with pytest.raises(InputError, match="take wants a list or slice of places from 0 to 2"):
            posterior.take(places)
    for place in (3, -4, 0.5):
        with pytest.raises(InputError, match="member must be a place from 0 to 2"):
            posterior.member(place)


def test_a_log_variance_of_the_networks_own_stays(xor):
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.log_variance = nn.Linear(2, 2), nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.log_variance.exp()

    posterior = fit(xor, net=Own, method="regular")
    Own().load_state_dict(posterior.member(0))
    with pytest.raises(InputError, match="has a log_variance of its own"):
        fit((xor[0], torch.zeros(len(xor[0]), 2)), net=Own, method="regular", likelihood="gaussian")


def test_a_copy_on_another_device_leaves_this_one_where_it_is():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    x, y = stochens.toy_set("a", n=20)
    posterior = stochens.fit(net, (x, y), members=2, epochs=1)
    assert next(posterior.to("meta").net.parameters()).is_meta
    assert not any(p.is_meta for p in posterior.net.parameters())


def test_whole_numbers_for_a_network_of_floats_are_refused_with_the_remedy():
    posterior = stochens.Posterior.of([nn.Linear(2, 2)])
    for x in (torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.float16)):
        with pytest.raises(InputError, match=rf"of {x.dtype}; use x.float\(\): "):
            posterior.predict(x)
    words = stochens.Posterior.of(
        [nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))]
    )
    with pytest.raises(InputError, match=r"of torch.int64: "):  # out of range, and rightly whole
        words.predict(torch.full((3, 2), 7))
