"""The table of everything that returns a Posterior; test_sources.py holds each row to one contract.

A new source is one row of SOURCES. What a source cannot do stands in its row, in `lacks`, by the
name of the ability and with the reason. The abilities that not all of them have:

    checkpoint  a run is kept in a folder, and found there when it is done
    stop        Ctrl-C ends such a run, and the same call goes on with it to the same end
    resume      without a folder, Ctrl-C leaves a posterior of the draws so far, to go on with
    chunk       members are made block after block, and are the same
    device      the run is on the device that is asked for
    noise       a member predicts with noise of its own
"""

import dataclasses
import functools
import itertools
import signal
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from tests.running import gather
from torch import Tensor, nn

import stochens
from stochens import MLP, Auto, Dropout, Gaussian, LoRA, Posterior, Validation
from stochens.members import shared_by_all
from stochens.randomness.seeds import seeded
from stochens.run.checkpoints import Keeper
from stochens.samplers import driver

IDS = (0, 1, 2)  # of the members or chains of a whole run
PLAIN = {"noise": "its members are plain networks"}
AT_ONCE = {"chunk": "all of them move at once; a list of ids and `join` make blocks"}
ENDS = {"resume": "it has no members before its end; a folder keeps what there is"}
NO_RUN = {
    **dict.fromkeys(("checkpoint", "stop", "resume", "chunk"), "it takes what runs have made"),
    "device": "it has what it was given; `load` has a device of its own",
}
FAR = dict.fromkeys(
    ("stop", "resume"), "it runs in other processes; tests/test_cluster.py kills them"
) | {"chunk": "its row has one"}


def run_options(**options: Any) -> dict[str, Any]:
    """How a source runs (device, engine, chunk, checkpoint), as its call takes it: the only place
    of the contract that knows."""
    return gather(**options)


class Source(NamedTuple):
    make: Callable[..., Posterior]  # as stochens.fit: (net, data, **options)
    options: Mapping[str, Any]
    ids: str = "members"  # what IDS are of, and the name of the option: members or chains
    option: str = ""  # that name, where it is another
    draws: int = 1  # members of the posterior for each of IDS
    run: Mapping[str, Any] = MappingProxyType({})
    lacks: Mapping[str, str] = MappingProxyType({})
    outputs: int = 2  # of the network: 2 classes, or 1 number
    stops: tuple[int, int] = (2, 9)  # after these steps: early, and when a sampler has some draws


FITTED = {"epochs": 4, "batch_size": 8, "lr": 0.01}


def held_out() -> tuple[Tensor, Tensor]:
    """6 points to validate on."""
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def own_optimizer(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=0.01, momentum=0.5)


OWN_STEPS = stochens.Optimizer(
    own_optimizer, schedule=lambda done: 1 - done, warmup=0.2, clip=0.5, accumulate=2
)


def fitted(method: Any, **options: Any) -> Source:
    return Source(stochens.fit, {**FITTED, "method": method, **options}, lacks=ENDS)


def sampled(make: Callable[..., Posterior], draws: int, **options: Any) -> Source:
    own = {"samples": draws, **options}
    return Source(make, own, ids="chains", draws=draws, lacks=PLAIN | AT_ONCE)


def saved_and_loaded(net: nn.Module, data: Any, **options: Any) -> Posterior:
    with tempfile.TemporaryDirectory() as folder:
        stochens.fit(net, data, device="cpu", **options).save(f"{folder}/run")
        return stochens.load(f"{folder}/run", net)


def joined(net: nn.Module, data: Any, *, members: Sequence[int], **options: Any) -> Posterior:
    options["device"] = "cpu"
    return stochens.join([stochens.fit(net, data, members=[k], **options) for k in members])


def shifted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn_like(x), y


def fit_augmented(net: nn.Module, data: Any, **options: Any) -> Posterior:
    return stochens.fit(net, stochens.Data(data, augment=shifted), **options)


SWAG = {**FITTED, "snapshots": 4, "rank": 3}
SHORT = {"warmup": 8, "step_size": 0.2}
NUTS = sampled(stochens.nuts, 4, max_depth=3, **SHORT)
LANGEVIN = {"steps": 12, "step_size": 0.05, "batch_size": 8}
MCLMC = {"draws_per_member": 4, "thin": 2, "warmup": 8, "training": 3}
SGMCMC = {"burn_in": 4, "thin": 2, "batch_size": 8}

SOURCES: dict[str, Source] = {
    "fit regular": fitted("regular")._replace(lacks=PLAIN | ENDS),
    "fit dropout": fitted(Dropout(0.3)),
    "fit dropconnect": fitted("dropconnect"),
    "fit np-dropout": fitted("np-dropout"),
    "fit gaussian": fitted(Gaussian(0.2)),
    "fit gaussian, learned": fitted(Gaussian(0.2, learn=True)),
    "fit np-dropout and gaussian": fitted(["np-dropout", Gaussian(0.2, learn=True)]),
    "fit natural": fitted("regular", optimizer="natural"),
    "fit natural, np-dropout": fitted("np-dropout", optimizer=stochens.Natural(sigma=0.1)),
    "fit lora": fitted(LoRA(2))._replace(lacks=PLAIN | ENDS),
    "fit lora and gaussian": fitted([LoRA(2, dropout=0.1), Gaussian(0.2, learn=True)]),
    "fit last-layer": fitted("last-layer")._replace(lacks=PLAIN | ENDS),
    "fit validated": fitted(
        Dropout(0.3), validation=Validation(held_out(), patience=1), lr=0.1, epochs=6
    ),
    "fit natural, best": fitted(
        "regular", optimizer="natural", validation=Validation(held_out(), best=True)
    ),
    "fit own optimizer": fitted("dropout", lr=None, optimizer=OWN_STEPS)._replace(stops=(2, 7)),
    "fit augmented": Source(fit_augmented, {**FITTED, "method": Dropout(0.3)}, lacks=ENDS),
    "fit auto": fitted(Auto(candidates=["dropout", "np-dropout"], members=2)),
    "fit one noise": fitted("dropout", likelihood="gaussian")._replace(outputs=1),
    "multiswa": Source(stochens.multiswa, FITTED, lacks=PLAIN | ENDS),
    "multiswag": Source(stochens.multiswag, SWAG, lacks=ENDS),
    "multiswag np-dropout": Source(
        stochens.multiswag, {**SWAG, "method": "np-dropout"}, lacks=ENDS
    ),
    "nuts": NUTS._replace(stops=(9, 70)),
    "hmc": sampled(stochens.hmc, 4, max_leapfrogs=5, **SHORT)._replace(stops=(9, 50)),
    "sgmcmc sgld": sampled(stochens.sgmcmc, 4, kind="sgld", **SGMCMC),
    "sgmcmc sghmc": sampled(stochens.sgmcmc, 4, kind="sghmc", **SGMCMC),
    "sgmcmc sghmc, rmsprop": sampled(stochens.sgmcmc, 4, preconditioner="rmsprop", **SGMCMC),
    "sgmcmc csghmc": sampled(stochens.sgmcmc, 4, kind="csghmc", cycles=2, **SGMCMC),
    "langevin": Source(stochens.langevin, LANGEVIN, lacks=PLAIN | ENDS | AT_ONCE),
    "mclmc": Source(
        stochens.mclmc,
        MCLMC,
        ids="chains",
        option="members",
        draws=4,
        lacks=PLAIN | AT_ONCE,
        stops=(2, 7),
    ),
    "mclmc by trials": Source(
        stochens.mclmc,
        # long enough for each draw to be of a trial of its own
        MCLMC | {"target_accept": 0.8, "warmup": 200, "thin": 40},
        ids="chains",
        option="members",
        draws=4,
        lacks=PLAIN | AT_ONCE,
        stops=(2, 19),
    ),
    "load": Source(saved_and_loaded, {**FITTED, "method": "np-dropout"}, lacks=NO_RUN),
    "join": Source(joined, {**FITTED, "method": "np-dropout"}, lacks=NO_RUN),
    "fit over Ray": fitted(
        "np-dropout", optimizer="natural", validation=Validation(held_out(), best=True)
    )._replace(run={"engine": "ray", "chunk": 2}, lacks=FAR),
    "nuts over Ray": NUTS._replace(run={"engine": "ray"}, lacks=PLAIN | FAR),
}


def data_of(source: Source) -> tuple[Tensor, Tensor]:
    """24 points [24, 2] in float64, so that rounding hides nothing, and their class or number."""
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long() if source.outputs == 2 else x.sum(1, keepdim=True)


def network_of(source: Source) -> nn.Module:
    with seeded(0):  # its own weights are what adapters are put on
        return MLP(2, 4, source.outputs).double()


def make(
    name: str,
    ids: Sequence[int] = IDS,
    *,
    seed: int = 0,
    resume: Posterior | None = None,
    **run: Any,
) -> Posterior:
    """The posterior of a row for some of its members or chains; on a CPU unless told."""
    source = SOURCES[name]
    place = {} if "device" in source.lacks else {"device": "cpu"}
    options = run_options(**{**place, **source.run, **run})
    own = {source.option or source.ids: list(ids), "seed": seed, **options}
    if resume is not None:
        own["resume"] = resume
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # runs this short are not to be trusted
        return source.make(network_of(source), data_of(source), **source.options, **own)


@functools.cache
def whole(name: str) -> Posterior:
    """All of its members or chains; made once, and never changed."""
    return make(name)


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """After so many steps of a run."""
    count, keep = itertools.count(1), Keeper.__call__

    def pressing(keeper: Keeper, number: int, tensors: Any) -> None:
        if next(count) == after:
            signal.raise_signal(signal.SIGINT)
        keep(keeper, number, tensors)

    monkeypatch.setattr(Keeper, "__call__", pressing)
    monkeypatch.setattr(driver, "BLOCK_SECONDS", 0.0)  # NUTS and HMC look after each leapfrog step


# -- what two posteriors have in common -----------------------------------------------------------


def parts(value: Any, name: str = "") -> dict[str, Any]:
    """Everything in a posterior by name, down to tensors and plain values."""
    if isinstance(value, nn.Module):
        inner: Any = {"layers": str(value), **shared_by_all(value)}
    elif dataclasses.is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        inner = value._asdict() if hasattr(value, "_asdict") else value
    if not isinstance(inner, dict):
        return {name: inner}
    return {k: v for key, one in inner.items() for k, v in parts(one, f"{name}.{key}").items()}


def assert_same(one: Any, other: Any, **within: float) -> None:
    """Every field of two posteriors: to the bit, or float64 within rtol and atol and float32 to
    rounding."""
    ours, theirs = parts(one), parts(other)
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        if not isinstance(value, Tensor):
            assert value == theirs[name], name
            continue
        exact = {"rtol": 0.0, "atol": 0.0}
        wide = value.dtype == torch.float64
        bounds = {} if within and not wide else (within or exact)
        torch.testing.assert_close(
            theirs[name],
            value,
            **bounds,
            equal_nan=True,
            msg=functools.partial("{}: {}".format, name),
        )
