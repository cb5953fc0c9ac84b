"""One way to say how something runs: what it refuses, and that everything takes it."""

import dataclasses
import inspect
import warnings
from typing import Any

import pytest
import torch

import stochens
from stochens import InputError, Run
from stochens.run.options import PRECISIONS, matmul_precision, merge_run

WAYS = {
    "fit": (stochens.fit, {"members": 2, "epochs": 2}),
    "multiswa": (stochens.multiswa, {"members": 2, "epochs": 4}),
    "multiswag": (
        stochens.multiswag,
        {"members": 2, "epochs": 8, "batch_size": 20, "rank": 2, "snapshots": 4},
    ),
    "nuts": (stochens.nuts, {"chains": 2, "samples": 4, "warmup": 4, "max_depth": 2}),
    "hmc": (stochens.hmc, {"chains": 2, "samples": 4, "warmup": 4, "max_leapfrogs": 4}),
    "sgmcmc": (stochens.sgmcmc, {"chains": 2, "samples": 4, "burn_in": 4}),
    "langevin": (stochens.langevin, {"members": 5, "steps": 20}),
}
WITH_OPTIMIZER = ["fit", "multiswa", "multiswag"]


@pytest.fixture
def data():
    return stochens.toy_set("b", n=40)


def made(name, data, **options):
    make: Any
    make, own = WAYS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so little is troubled
        return make(stochens.MLP(2, 4, 2), data, **own, **options)


def test_it_cannot_be_changed_by_accident():
    run = Run(engine="vmap")
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.engine = "loop"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Run("cpu")  # type: ignore[call-arg]  # which of them is it?


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float46"}, "unknown precision 'float46'; did you mean 'float64'"),
        ({"engine": 3}, "engine must be a name or Ray"),
        ({"chunk": 0}, "chunk must be a whole number, at least 1, got 0"),
        ({"every": -1.0}, "every must not be negative, got -1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Run(**options)


@pytest.mark.parametrize("name", WAYS)
def test_everything_takes_it_with_the_same_result(name, data, tmp_path):
    seen = []
    run = Run(engine="loop", checkpoint=tmp_path / "kept", every=0.0, device="cpu")
    one = made(name, data, run=run, progress=lambda *told: seen.append(told))
    again = made(name, data, run=run, progress=False)
    other = made(name, data, device="cpu", progress=False, run=Run(engine="loop"))
    for part, p in one.params.items():
        assert torch.equal(again.params[part], p)
        assert torch.equal(other.params[part], p)
    assert seen
    assert any((tmp_path / "kept").rglob("0*"))


@pytest.mark.parametrize("name", WAYS)
def test_float64_is_that_of_the_network_and_the_data(name, data):
    posterior = made(name, data, run=Run(precision="float64", device="cpu"))
    assert all(p.dtype == torch.float64 for p in posterior.params.values())
    p = posterior.predict(data[0].double(), run=Run(precision="float64"))
    assert p.mean.dtype == torch.float64
    with pytest.raises(InputError, match=r"the parameters of this posterior are torch\.float64"):
        posterior.predict(data[0], run=Run(precision="float32"))


def test_float64_is_what_a_network_in_float64_is(data):
    """To the cast of its start: the same training as of net.double() on x.double()."""
    x, y = data
    options = {"members": 2, "epochs": 3, "method": "regular", "device": "cpu"}
    start = stochens.fit(stochens.MLP(2, 4, 2), (x, y), **options).params
    cast = stochens.fit(
        stochens.MLP(2, 4, 2), (x, y), start=start, run=Run(precision="float64"), **options
    )
    wide = {name: p.double() for name, p in start.items()}
    own = stochens.fit(stochens.MLP(2, 4, 2).double(), (x.double(), y), start=wide, **options)
    for name, p in own.params.items():
        assert torch.equal(cast.params[name], p)


def test_float64_of_a_loader_is_the_loaders(data):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=8)
    with pytest.raises(InputError, match=r"casts data in memory, and the DataLoader gives torch"):
        stochens.fit(stochens.MLP(2, 4, 2), loader, run=Run(precision="float64"))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", ["fit", "multiswa", "sgmcmc", "langevin"])
def test_what_only_a_gpu_has_is_refused_on_a_cpu(name, precision, data):
    with pytest.raises(InputError, match=f"precision='{precision}' is for CUDA, got device 'cpu'"):
        made(name, data, run=Run(precision=precision, device="cpu"))
    posterior = made("fit", data, device="cpu")
    with pytest.raises(InputError, match=f"precision='{precision}' is for CUDA"):
        posterior.predict(data[0], run=Run(precision=precision))


@pytest.mark.parametrize("name", ["nuts", "hmc"])
def test_energies_are_not_compared_in_bfloat16(name, data):
    with pytest.raises(InputError, match=f"{name} compares energies"):
        made(name, data, run=Run(precision="bf16", device="cpu"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_are_tf32_inside_a_run_alone(precision):
    before = torch.get_float32_matmul_precision()
    seen = []

    def fail():
        with matmul_precision(Run(precision=precision)):
            seen.append(torch.get_float32_matmul_precision())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == ["high" if precision == "tf32" else before]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("name", WAYS)
def test_the_short_way_and_the_long_one_must_not_differ(name, data):
    with pytest.raises(InputError, match=r"device = 'cuda' and run\.device = 'cpu' differ"):
        made(name, data, device="cuda", run=Run(device="cpu"))
    with pytest.raises(InputError, match=r"progress = True and run\.progress = False differ"):
        made(name, data, progress=True, run=Run(progress=False))
    with pytest.raises(InputError, match=r"run must be a stochens\.Run, got 'cpu'"):
        made(name, data, run="cpu")


def test_one_of_the_two_is_enough():
    assert merge_run(Run(device="cpu"), device=None, progress=None).device == "cpu"
    assert merge_run(Run(), device="cpu", progress=False) == Run(device="cpu", progress=False)
    same = merge_run(Run(device="cpu"), device=torch.device("cpu"), progress=None)
    assert str(same.device) == "cpu"


OLD = {
    "engine": ("vmap", r"run=stochens\.Run\(engine='vmap'\)"),
    "chunk": (2, r"run=stochens\.Run\(chunk=2\)"),
    "checkpoint": ("kept", r"run=stochens\.Run\(checkpoint='kept'\)"),
    "checkpoint_every": (1.0, r"run=stochens\.Run\(every=1\.0\)"),
    "log": ("wandb", r"run=stochens\.Run\(log='wandb'\)"),
    "bf16": (False, r"run=stochens\.Run\(precision='float32'\)"),
    "dtype": (torch.float64, r"run=stochens\.Run\(precision='float64'\)"),
}
OLD_OF_DATA = {
    "target": ("kind", r"stochens\.Data\(data, target='kind'\)"),
    "sample_weight": (torch.ones(40), r"stochens\.Data\(data, weights=\.\.\.\)"),
}
OLD_OF_FIT = {
    "repulsion": (0.1, r"optimizer=stochens\.Optimizer\(repulsion=0\.1\)"),
    "schedule": ("step", r"optimizer=stochens\.Optimizer\(schedule='step'\)"),
    "weight_decay": (0.1, r"optimizer=stochens\.Optimizer\(weight_decay=0\.1\)"),
}


@pytest.mark.parametrize("name", WAYS)
def test_an_old_name_is_told_its_new_spelling(name, data):
    known = OLD | (OLD_OF_FIT if name in WITH_OPTIMIZER else {})
    for old, (value, new) in known.items():
        kind = "Optimizer" if old in OLD_OF_FIT else "Run"
        said = rf"^{old} is an option of {kind} now: {name}\(\.\.\., {new}\)$"
        with pytest.raises(InputError, match=said):
            made(name, data, **{old: value})
    for old, (value, new) in OLD_OF_DATA.items():
        if old == "sample_weight" and name not in WITH_OPTIMIZER:
            continue  # of samplers: below
        with pytest.raises(
            InputError, match=rf"^{old} is an option of Data now: {name}\(net, {new}"
        ):
            made(name, data, **{old: value})
    with pytest.raises(InputError, match=rf"^{name} has no prior_precision .* prior now, prior=2"):
        made(name, data, prior_precision=2.0)
    if name != "hmc":  # whose jitter is of its trajectories
        start = r"start=stochens\.Start\('reset', jitter=0\.1\)"
        with pytest.raises(InputError, match=rf"^jitter is an option of Start now: .*, {start}\)$"):
            made(name, data, jitter=0.1, start="reset")
    with pytest.raises(TypeError, match="no_such_option"):
        made(name, data, no_such_option=1)


@pytest.mark.parametrize("name", [name for name in WAYS if name not in WITH_OPTIMIZER])
def test_a_sampler_knows_no_weights_by_any_name(name, data):
    """What is refused must not point to what is refused too."""
    said = "^samplers count every row once, and weigh none; leave {} out, or repeat rows$"
    with pytest.raises(InputError, match=said.format("sample_weight")):
        made(name, data, sample_weight=torch.ones(40))
    with pytest.raises(InputError, match=said.format("weights of Data")):
        made(name, stochens.Data(data, weights=torch.ones(40)))


@pytest.mark.parametrize("name", WITH_OPTIMIZER)
def test_skip_is_told_to_be_of_methods(name, data):
    said = r"^skip is an option of every method now, such as stochens\.Dropout\(skip='0'\)$"
    with pytest.raises(InputError, match=said):
        made(name, data, skip="0")
    with pytest.raises(InputError, match=said):
        stochens.stochastic(stochens.MLP(2, 4, 2), "dropout", skip="0")  # type: ignore[call-arg]


def test_predict_is_told_too(data):
    posterior = made("fit", data)
    with pytest.raises(InputError, match=r"predict\(\.\.\., run=stochens\.Run\(precision='bf16'"):
        posterior.predict(data[0], bf16=True)
    with pytest.raises(InputError, match=r"predict has no use for Run\(checkpoint='kept'\)"):
        posterior.predict(data[0], run=Run(checkpoint="kept"))
    with pytest.raises(InputError, match="engine must be 'auto', 'ray' or Ray"):
        posterior.predict(data[0], run=Run(engine="vmap"))
    there = posterior.predict(data[0], device="cpu", run=Run(precision="float32")).mean
    assert torch.equal(there, posterior.predict(data[0]).mean)


def test_what_a_sampler_has_no_use_for_is_refused(data):
    for options in ({"log": print}, {"chunk": 2}):
        with pytest.raises(InputError, match=r"a sampler.* has no use for Run"):
            made("nuts", data, run=Run(**options))


OF_FIT = """net data method members epochs batch_size optimizer lr output likelihood prior kl_weight
start bootstrap validation callbacks on_divergence seed device progress run"""


def test_signatures_are_short():
    """Of `fit` 18 with what runs it, and none takes what Run has. What belongs to the data, the
    method, the optimiser or the start is said there."""
    assert list(inspect.signature(stochens.fit).parameters) == OF_FIT.split()
    names = {field.name for field in dataclasses.fields(Run)} - {"device", "progress"}
    for make, _ in WAYS.values():
        assert not names & set(inspect.signature(make).parameters)
