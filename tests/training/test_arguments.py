"""What `fit`, the samplers and the estimators are asked for by objects: Data, Start, Prior, and the
skip of a method. None of it may be lost on the way."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.base import clone
from tests.run.test_options import WAYS
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import (
    MLP,
    Data,
    DropConnect,
    Dropout,
    Gaussian,
    InputError,
    LastLayer,
    LoRA,
    NPDropout,
    Prior,
    Regular,
    Start,
    StochasticEnsembleClassifier,
    StochasticEnsembleRegressor,
)
from stochens.data import source
from stochens.inputs import inputs
from stochens.methods import MethodLike, stochastic_layers
from stochens.posterior.recipe import Recipe
from stochens.training.auto import label

X, Y = stochens.toy_set("b", n=40)
SAMPLERS = ["nuts", "hmc", "sgmcmc", "langevin"]
ALL = list(WAYS)
NO_STEP = 1e-30  # a rate at which no float32 moves


def made(name: str, data: Any = (X, Y), **options: Any) -> stochens.Posterior:
    make: Any
    make, own = WAYS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so little is troubled
        return make(MLP(2, 4, 2), data, device="cpu", **{**own, **options})


def same(one: stochens.Posterior, other: stochens.Posterior) -> bool:
    return all(torch.equal(other.params[name], p) for name, p in one.params.items())


# -- Data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_data_in_an_object_are_those_data(name: str) -> None:
    plain = made(name)
    assert same(made(name, Data((X, Y))), plain)
    assert same(made(name, Data(TensorDataset(X, Y))), plain)
    assert not same(made(name, Data((X, 1 - Y))), plain)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_ignores_no_weights(name: str) -> None:
    for weights in (torch.ones(40), torch.full((40,), 2.0)):
        with pytest.raises(InputError, match="samplers count every row once, and weigh none"):
            made(name, Data((X, Y), weights=weights))


@pytest.mark.parametrize("name", ["fit", "multiswa", "multiswag"])
def test_weights_count_in_every_training(name: str) -> None:
    weighted = made(name, Data((X, Y), weights=torch.arange(40.0)))
    assert weighted.data_size == sum(range(40))
    assert weighted.sample_weight is not None
    assert not same(weighted, made(name))


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(InputError, match="Data in Data"):
        Data(Data((X, Y)))
    with pytest.raises(InputError, match=r"target must be the name of y in the data, got tensor"):
        Data(X, Y)
    with pytest.raises(InputError, match="Data goes around Replicas"):
        source(stochens.Replicas([Data((X, Y))]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Data((X, Y)).weights = torch.ones(40)  # type: ignore[misc]
    with pytest.raises(InputError, match=r"data must be .x, y., a dictionary"):
        source(Data(5))


def test_inputs_of_data_are_all_of_them() -> None:
    loader: Any = DataLoader(TensorDataset(X, Y), batch_size=7)
    for data in ((X, Y), TensorDataset(X, Y), loader):
        assert torch.equal(_tensor(inputs(Data(data, weights=torch.zeros(40)))), X)


def _tensor(x: Any) -> Tensor:
    assert isinstance(x, Tensor)
    return x


# -- Start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_start_with_jitter_is_where_chains_and_members_begin(name: str) -> None:
    """The same place as that of a training which does not move, given as numbers."""
    own = WAYS[name][1]
    options: dict[str, Any] = {} if name in SAMPLERS else {"batch_size": 20}
    start, count = Start("module", jitter=0.5), own.get("members") or own["chains"]
    there = made("fit", start=start, lr=NO_STEP, method="regular", members=count, epochs=1)
    torch.manual_seed(0)
    for path, p in MLP(2, 4, 2).named_parameters():
        assert not torch.isclose(there.params[path], p.detach()).any()
    assert same(made(name, start=start, **options), made(name, start=there.params, **options))
    at = made(name, start="module", **options)
    assert same(made(name, start=Start("module"), **options), at)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_jittered_draw_from_the_prior_is_none(name: str) -> None:
    with pytest.raises(InputError, match=r"draw from the prior .* leave jitter out"):
        made(name, start=Start("prior", jitter=0.1))
    assert same(made(name, start=Start("prior")), made(name, start="prior"))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_samplers_prior_is_around_the_start_and_not_around_its_jitter(name: str) -> None:
    posterior = made(name, start=Start("module", jitter=0.5), prior=Prior(2.0, mean="start"))
    torch.manual_seed(0)
    for path, p in MLP(2, 4, 2).named_parameters():
        assert torch.equal(posterior.prior_mean[path], p.detach().unsqueeze(0))


def test_what_is_no_start_is_refused() -> None:
    with pytest.raises(InputError, match="Start in Start"):
        Start(Start("module"))
    with pytest.raises(InputError, match="jitter must not be negative, got nan"):
        Start("module", jitter=float("nan"))
    with pytest.raises(InputError, match="start must be 'reset', 'prior', 'module'"):
        made("fit", start=Start("modul"))
    with pytest.raises(InputError, match="the prior's mean is where members begin, and start="):
        made("fit", start=Start("prior"), prior=Prior(mean="start"))


# -- Prior -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_number_is_a_precision(name: str) -> None:
    five = made(name, prior=5)
    assert same(five, made(name, prior=Prior(5.0)))
    assert not same(five, made(name))
    assert (five.prior_precision, five.prior) == (5.0, None)
    wide = made(name, prior=Prior(5.0, scale="fan-in"))
    assert not same(five, wide)
    assert wide.prior is not None
    assert wide.prior.scale == "fan-in"


@pytest.mark.parametrize("kind", [StochasticEnsembleClassifier, StochasticEnsembleRegressor])
def test_an_estimators_prior_goes_where_the_estimator_goes(kind: Any) -> None:
    x, y = X.numpy(), Y.numpy()
    options: dict[str, Any] = {"members": 2, "epochs": 3, "random_state": 0, "lr": 0.1}
    prior = Prior(5.0, scale="fan-in", layers={"0*": 7.0})
    model = kind(prior=prior, **options)
    assert model.get_params()["prior"] is prior
    again = clone(model)
    assert again.get_params()["prior"].description() == prior.description()
    one, other = model.fit(x, y).posterior_, again.fit(x, y).posterior_
    assert same(one, other)
    assert one.prior.description() == prior.description()
    assert not same(one, kind(**options).fit(x, y).posterior_)
    number = kind(**options).set_params(prior=5.0).fit(x, y).posterior_
    assert same(number, clone(kind(prior=Prior(5.0), **options)).fit(x, y).posterior_)
    assert number.prior_precision == 5.0
    with pytest.raises(InputError, match=r"a precision or a stochens\.Prior, got 'strong"):
        kind(prior="strong", **options).fit(x, y)
    with pytest.raises(InputError, match=f"{kind.__name__} has no prior_precision .*prior=2.0"):
        kind(prior_precision=2.0)


# -- skip ------------------------------------------------------------------------------------------


def net() -> nn.Module:
    return MLP(2, 4, 5, 2)


NOISY: dict[str, tuple[MethodLike, list[str]]] = {
    "dropout": (Dropout(0.1, skip="2"), ["0"]),
    "dropconnect": (DropConnect(0.1, skip="2"), ["0"]),
    "np-dropout": (NPDropout(skip="0"), ["2"]),
    "gaussian": (Gaussian(0.1, skip=["0", "2"]), ["4"]),
    "regular": (Regular(skip="0"), []),
    "lora": ([LoRA(2, skip="0"), Gaussian(0.1)], ["2", "4"]),
    "last-layer": ([LastLayer(layers="*", skip="0"), Dropout(0.1, skip="0")], ["2"]),
    "two": ([Dropout(0.1, skip="2"), Gaussian(0.1, skip=["0", "4"])], ["0", "2"]),
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.filterwarnings("ignore::UserWarning")  # frozen parameters are named
def test_what_a_method_skips_has_no_noise_and_is_kept_with_it(name: str, tmp_path: Path) -> None:
    method, noisy = NOISY[name]
    options: dict[str, Any] = {"members": 2, "epochs": 1, "device": "cpu"}
    posterior = stochens.fit(net(), (X, Y), method=method, **options)
    assert {path[0] for path in stochastic_layers(posterior.net)} == set(noisy)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", net())
    assert again.recipe == posterior.recipe
    assert torch.equal(again.predict(X).probs, posterior.predict(X).probs)
    table = {row.path: row.noise for row in posterior.summary().rows}
    for path in {"0", "2"} - set(noisy):
        assert table[path].startswith("none"), table


def test_the_last_layers_skip_is_not_trained() -> None:
    posterior = stochens.fit(
        net(), (X, Y), method=LastLayer(layers=["2", "4"], skip="2"), members=2, epochs=1
    )
    assert set(posterior.params) == {"4.weight", "4.bias"}
    with pytest.raises(InputError, match=r"has no parameter to train.*or left out by skip"):
        stochens.fit(net(), (X, Y), method=LastLayer(skip="4"), members=2, epochs=1)


def test_a_folder_of_before_skips_for_all_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fit(skip=...)` was kept beside the methods."""
    own = [Dropout(0.1, skip="2"), Gaussian(0.1, skip="2")]
    posterior = stochens.fit(net(), (X, Y), method=own, members=2, epochs=1)
    now = Recipe.description

    def before(recipe: Recipe) -> dict[str, Any]:
        about = now(recipe)
        for method in about["methods"]:
            method["options"]["skip"] = []
        return about | {"skip": ["2"]}

    monkeypatch.setattr(Recipe, "description", before)
    posterior.save(tmp_path / "run")
    monkeypatch.undo()
    old = stochens.load(tmp_path / "run", net())
    assert old.recipe == posterior.recipe
    assert torch.equal(old.predict(X).probs, posterior.predict(X).probs)
    old.save(tmp_path / "again")
    assert stochens.load(tmp_path / "again", net()).recipe == posterior.recipe


def test_candidates_differ_by_what_they_skip() -> None:
    assert label(Dropout(0.1, skip="0")) != label(Dropout(0.1))
    candidates = [Dropout(0.1), Dropout(0.1, skip="0")]
    auto = stochens.Auto(candidates=candidates, members=2, epochs=1)
    posterior = stochens.fit(net(), (X, Y), method=auto, members=2, epochs=1)
    assert posterior.trials is not None
    assert len(posterior.trials.rows) == 2
