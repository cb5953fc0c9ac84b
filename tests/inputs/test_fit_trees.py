"""Inputs of several tensors, against the same network with one, and against loops over members."""

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from tests.inputs.networks import (
    FORMS,
    Attending,
    OneDataclass,
    Pair,
    Twin,
    TwoArguments,
    padded,
    parts,
    sentences,
)
from tests.tolerance import close, trained
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

import stochens
from stochens import Dropout, Gaussian, InputError
from stochens.data import Replicas

# dropout gives none to `scale`
pytestmark = pytest.mark.filterwarnings("ignore::stochens.methods.partial.PartialNoiseWarning")
OPTIONS = {"members": 3, "epochs": 3, "batch_size": 8, "lr": 0.05}
# sums of 5 terms at most, in three layers, and 12 steps of training, which magnify them
SAME = close(torch.float64, terms=8, depth=3 * 12, condition=1e3)


def same_params(one, other):
    assert one.params.keys() == other.params.keys()
    for name, p in one.params.items():
        torch.testing.assert_close(p, other.params[name], **SAME)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("form", FORMS)
def test_a_tree_trains_as_one_tensor_does(form):
    a, b, y = parts()
    net, shape = FORMS[form]
    tree = stochens.fit(net(), (shape(a, b), y), method="dropout", **OPTIONS)
    flat = stochens.fit(Twin(), (torch.cat([a, b], 1), y), method="dropout", **OPTIONS)
    same_params(tree, flat)
    p = tree.predict(shape(a, b), draws=2)
    q = flat.predict(torch.cat([a, b], 1), draws=2)
    torch.testing.assert_close(p.probs, q.probs, **SAME)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_members_predict_what_the_plain_network_does(engine):
    a, b, y = parts()
    net = TwoArguments()
    run = stochens.Run(engine=engine)
    posterior = stochens.fit(net, {"a": a, "b": b, "y": y}, method="regular", run=run, **OPTIONS)
    probs = posterior.predict({"a": a, "b": b}, batch_size=7).probs
    for k in range(3):
        net.load_state_dict(posterior.member(k))  # by the user's own names
        logits = torch.stack([net(a[i], b[i]) for i in range(len(a))])
        torch.testing.assert_close(probs[k], logits.softmax(-1), **SAME)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "method", ["regular", "np-dropout", Gaussian(0.1), [Dropout(0.2), Gaussian(0.1, learn=True)]]
)
def test_methods_and_their_kl_are_those_of_the_network_itself(method, tmp_path):
    a, b, y = parts()
    net = TwoArguments()
    tree = stochens.fit(net, ((a, b), y), method=method, **OPTIONS)
    flat = stochens.fit(Twin(), (torch.cat([a, b], 1), y), method=method, **OPTIONS)
    same_params(tree, flat)
    for mine, other in zip(tree.kl(), flat.kl(), strict=True):
        assert mine == pytest.approx(other, rel=1e-9)
    tree.save(tmp_path / "one")
    for again in (net, TwoArguments):
        loaded = stochens.load(tmp_path / "one", again)
        assert torch.equal(loaded.predict((a, b)).probs, tree.predict((a, b)).probs)
    assert loaded.recipe == tree.recipe
    assert tree.member(0).keys() == net.state_dict().keys()


def test_every_member_has_its_own_start_also_of_what_the_root_holds():
    a, b, y = parts()
    posterior = stochens.fit(TwoArguments(), ((a, b), y), **OPTIONS | {"epochs": 1, "lr": 1e-9})
    assert len({tuple(row.tolist()) for row in posterior.params["scale"]}) == 3


def test_the_mode_reaches_the_root():
    class Switched(TwoArguments):
        def forward(self, a, b):  # type: ignore[override]
            return super().forward(a, b) + (100 * a[..., :1] if self.training else 0)

    a, b, y = parts()
    net = Switched()
    posterior = stochens.fit(net, ((a, b), y), method="regular", **OPTIONS)
    net.load_state_dict(posterior.member(0))
    net.eval()
    wanted = net(a, b).softmax(-1)
    # float32 sums of 4 terms in 3 layers
    torch.testing.assert_close(
        posterior.predict((a, b)).probs[0], wanted, **close(torch.float32, terms=4, depth=3)
    )


class Rows(Dataset[Any]):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


class FakeHub:
    """What is asked of a Hugging Face Dataset."""

    column_names = ("text", "a", "b", "label")

    def __init__(self, columns, chosen=None):
        self.columns, self.chosen = columns, chosen

    @property
    def format(self):
        return {"type": None, "columns": self.chosen or list(self.columns)}

    def with_format(self, kind, columns=None):
        assert kind == "torch"
        return FakeHub(self.columns, columns)

    def __getitem__(self, rows):
        assert rows == slice(None)
        return {name: self.columns[name] for name in self.chosen}


def test_all_kinds_of_data_are_one(caplog):
    a, b, y = parts()
    rows = [{"a": a[k], "b": b[k], "label": int(y[k])} for k in range(len(a))]
    pairs = [((a[k], b[k]), y[k]) for k in range(len(a))]
    hub = FakeHub({"text": ["word"] * len(a), "a": a, "b": list(b), "label": y})
    kinds = {
        "labels": {"a": a, "b": b, "labels": y},
        "label": {"a": a.numpy(), "b": b.tolist(), "label": y.numpy()},
        "y": {"y": y, "a": a, "b": b},
        "rows": Rows(rows),
        "pairs": Rows(pairs),
        "hub": hub,
    }
    wanted = stochens.fit(TwoArguments(), ((a, b), y), **OPTIONS)
    with caplog.at_level("INFO", logger="stochens"):
        for name, data in kinds.items():
            got = stochens.fit(TwoArguments(), data, **OPTIONS)
            for key, p in got.params.items():
                assert torch.equal(p, wanted.params[key]), name
            probs = got.predict(data).probs
            assert torch.equal(probs, wanted.predict((a, b)).probs), name
    assert "hold no numbers are left out: text" in caplog.text
    data = stochens.Data({"a": a, "b": b, "is it": y}, target="is it")
    named = stochens.fit(TwoArguments(), data, **OPTIONS)
    assert torch.equal(named.predict(data).mean, wanted.predict((a, b)).mean)
    assert torch.equal(named.params["scale"], wanted.params["scale"])
    assert torch.equal(
        named.predict({"a": a, "b": b, "is it": y}).mean, wanted.predict((a, b)).mean
    )


@pytest.mark.usefixtures("float64")
def test_loaders_of_dictionaries_train_as_loaders_of_pairs():
    a, b, y = parts()
    rows = Rows([{"a": a[k], "b": b[k], "label": int(y[k])} for k in range(len(a))])
    pairs = Rows([((a[k], b[k]), y[k]) for k in range(len(a))])
    options = OPTIONS | {"method": "dropout"}
    one, two = (
        stochens.fit(TwoArguments(), DataLoader(d, batch_size=2), **options) for d in (rows, pairs)
    )
    flat = [(torch.cat([a[k], b[k]]), y[k]) for k in range(len(a))]
    three = stochens.fit(Twin(), DataLoader(Rows(flat), batch_size=2), **options)
    for name, p in one.params.items():
        assert torch.equal(p, two.params[name])
        within = trained(torch.float64, steps=3 * 15, rows=2)
        torch.testing.assert_close(p, three.params[name], **within)
    assert torch.equal(
        one.predict(DataLoader(rows, batch_size=30)).mean, one.predict({"a": a, "b": b}).mean
    )
    with pytest.raises(InputError, match="trained on 0, 1, and x has a, b"):
        two.predict(DataLoader(rows, batch_size=4))
    wanted = two.predict((a, b)).probs
    assert torch.equal(two.predict(DataLoader(pairs, batch_size=30)).probs, wanted)
    inputs_alone = Rows([(a[k], b[k]) for k in range(len(a))])  # without y
    assert torch.equal(two.predict(DataLoader(inputs_alone, batch_size=30)).probs, wanted)


@pytest.mark.usefixtures("float64")
def test_padded_batches_of_different_lengths():
    lengths = [3, 9, 4, 5, 7, 2, 8, 6, 5, 4]
    rows = sentences(lengths)
    for row in rows:
        row["mask"] = row["mask"].double()
    net = Attending()
    loader = DataLoader(Rows(rows), batch_size=4, collate_fn=padded)
    options = {"members": 2, "epochs": 5, "lr": 0.05, "method": "regular"}
    posterior = stochens.fit(net, loader, **options)
    by_loop = stochens.fit(net, loader, run=stochens.Run(engine="loop"), **options)
    same_params(posterior, by_loop)
    p = posterior.predict(loader)
    for k in range(2):
        member = {name: t[k] for name, t in posterior.params.items()}
        for i, row in enumerate(rows):  # each alone, so that nothing of it is padding
            alone = {n: row[n].unsqueeze(0) for n in ("tokens", "mask")}
            wanted = functional_call(net, member, (), alone)["logits"].softmax(-1)[0]
            torch.testing.assert_close(p.probs[k, i], wanted, **SAME)
    assert p.mean.shape == (10, 3)
    with pytest.raises(InputError, match=r"rows of the data set have different.*collate_fn"):
        stochens.fit(net, Rows(rows), **options)
    tokens = [row["tokens"] for row in rows]
    ragged = {"tokens": tokens, "mask": [row["mask"] for row in rows]}
    with pytest.raises(InputError, match=r"rows of different shapes.*collate_fn"):
        stochens.fit(net, ragged | {"label": torch.zeros(10).long()}, **options)
    with pytest.raises(InputError, match=r"different.*collate_fn"):
        posterior.predict(ragged)


@pytest.mark.usefixtures("float64")
def test_weights_replicas_and_trials_take_trees(tmp_path):
    a, b, y = parts()
    weights = torch.arange(len(a)) % 3
    options = OPTIONS | {"method": "regular", "batch_size": None}
    tree = stochens.fit(TwoArguments(), stochens.Data(((a, b), y), weights=weights), **options)
    flat = stochens.fit(
        Twin(), stochens.Data((torch.cat([a, b], 1), y), weights=weights), **options
    )
    for name, p in tree.params.items():
        within = trained(torch.float64, steps=3, rows=len(a))
        torch.testing.assert_close(p, flat.params[name], **within)
    sets = Replicas([({"a": a, "b": b}, y), ({"a": a.flip(0), "b": b}, y)])
    two = stochens.fit(TwoArguments(), sets, **OPTIONS | {"members": 4})
    one = stochens.fit(TwoArguments(), ({"a": a.flip(0), "b": b}, y), **OPTIONS | {"members": 4})
    assert torch.equal(two.params["scale"][1], one.params["scale"][1])
    chosen = stochens.fit(
        TwoArguments(),
        stochens.Data({"a": a, "b": b, "is it": y}, target="is it"),
        **OPTIONS | {"method": stochens.Auto(candidates=("regular", "dropout"), members=2)},
    )
    assert chosen.trials is not None
    kept = stochens.Run(checkpoint=tmp_path / "kept")
    for _ in range(2):
        again = stochens.fit(TwoArguments(), ((a, b), y), run=kept, **OPTIONS)
    assert torch.equal(
        again.predict((a, b)).mean,
        stochens.fit(TwoArguments(), ((a, b), y), **OPTIONS).predict((a, b)).mean,
    )
    with pytest.raises(InputError, match="data"):
        stochens.fit(TwoArguments(), ((a, b + 1), y), run=kept, **OPTIONS)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sampler", ["nuts", "hmc", "sgmcmc", "langevin", "multiswag"])
def test_samplers_draw_what_they_draw_for_one_tensor(sampler):
    a, b, y = parts()
    options = {
        "nuts": {"chains": 2, "samples": 4, "warmup": 4},
        "hmc": {"chains": 2, "samples": 3, "warmup": 2, "trajectory": 0.1},
        "sgmcmc": {"chains": 2, "samples": 3, "burn_in": 3, "thin": 2, "batch_size": 8},
        "langevin": {"members": 5, "steps": 20},
        "multiswag": {"members": 2, "epochs": 10, "rank": 3},
    }[sampler]
    run = stochens.Run(engine="vmap", precision="float64")
    make = getattr(stochens, sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of draws that are too few
        data = stochens.Data({"a": a, "b": b, "right": y}, target="right")
        tree = make(TwoArguments(), data, run=run, **options)
        flat = make(Twin(), (torch.cat([a, b], 1), y), run=run, **options)
    same_params(tree, flat)
    torch.testing.assert_close(
        tree.predict({"a": a, "b": b}).mean,
        flat.predict(torch.cat([a, b], 1)).mean,
        **SAME,
    )


@pytest.mark.parametrize("method", ["regular", Gaussian(0.1, learn=True)])
def test_regression_adds_its_noise_to_the_network_itself(method, tmp_path):
    class One(TwoArguments):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

    a, b, _ = parts()
    options = OPTIONS | {"likelihood": "gaussian", "method": method}
    posterior = stochens.fit(One(), ((a, b), a[:, :1]), **options)
    assert "log_variance" in posterior.params
    assert "log_variance_log_sigma" not in posterior.params
    posterior.save(tmp_path / "one")
    loaded = stochens.load(tmp_path / "one", One)
    assert torch.equal(loaded.predict((a, b)).mean, posterior.predict((a, b)).mean)


def test_a_dataclass_is_known_by_its_fields(tmp_path):
    a, b, y = parts()
    posterior = stochens.fit(OneDataclass(), (Pair(a, b), y), **OPTIONS)
    posterior.save(tmp_path / "one")
    loaded = stochens.load(tmp_path / "one", OneDataclass)
    assert torch.equal(loaded.predict(Pair(a, b)).mean, posterior.predict(Pair(a, b)).mean)
    with pytest.raises(InputError, match="pass an example"):
        posterior.noise_inputs()
    assert posterior.noise_inputs(Pair(a, b))
    with pytest.raises(InputError, match=r"same number of rows, got a .30, 2. .* b .29, 3."):
        posterior.predict(dataclasses.replace(Pair(a, b), b=b[1:]))


@pytest.mark.parametrize("part", ["inner", "output", "net"])
def test_a_part_may_have_any_name(part: str) -> None:
    """As many networks call theirs: the adapter around one has no such names itself."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, part, nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            found: Tensor = getattr(self, part)(torch.cat([a, b], 1))
            return found

    x = {"a": torch.randn(20, 1), "b": torch.randn(20, 2)}
    data = {**x, "labels": torch.arange(20) % 2}
    posterior = stochens.fit(Two(), data, method="dropout", members=2, epochs=1)
    assert posterior.predict(x).probs.shape == (2, 20, 2)
    assert f"{part}.0.weight" in posterior.params
