"""The methods of the CIFAR table: how a block of members of each is made."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from stochens.fitting import fit
from stochens.methods import DropConnect, Dropout, MethodLike, NPDropout, Regular
from stochens.posterior import Posterior
from stochens.posteriors.sgmcmc import sgmcmc
from stochens.posteriors.swag import multiswa

Net = Callable[[], nn.Module]
Data = tuple[Tensor, Tensor]
SWA_RATE = 0.5  # of the learning rate, constant, as Izmailov et al. 2018 have it on CIFAR
SWA_TAIL = 0.25  # the share of training that is averaged, likewise
CYCLES = 5  # of a chain of SGHMC; each gives one draw
EXPLORATION = 0.8  # the share of a cycle without noise (Zhang et al. 2020)


class Options(Protocol):
    """What a block needs to know of a Config."""

    @property
    def method(self) -> str: ...
    @property
    def rate(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def prior_precision(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def engine(self) -> str: ...


Make = Callable[[Options, Net, Data, Sequence[int], str, Path], Posterior]


def _common(options: Options, ids: Sequence[int], device: str) -> dict[str, Any]:
    return {
        "members": ids,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "optimizer": "sgd",
        "prior_precision": options.prior_precision,
        "seed": options.seed,
        "device": device,
        "bf16": device.startswith("cuda"),
        "engine": _engine(options, device),
    }


def _engine(options: Options, device: str) -> str:
    """The kernels have regular ensembles and dropout; the rest is fastest by torch.compile."""
    slow = options.method in ("dropconnect", "np-dropout") and device.startswith("cuda")
    return "compile" if slow and options.engine == "auto" else options.engine


def _by_fit(method_of: Callable[[float], MethodLike]) -> Make:
    def make(
        options: Options, net: Net, data: Data, ids: Sequence[int], device: str, keep: Path
    ) -> Posterior:
        return fit(
            net,
            data,
            method=method_of(options.rate),
            lr=options.lr,
            schedule=options.schedule,
            checkpoint=keep,
            **_common(options, ids, device),
        )

    return make


def _by_swa(
    options: Options, net: Net, data: Data, ids: Sequence[int], device: str, keep: Path
) -> Posterior:
    return multiswa(
        net,
        data,
        lr=SWA_RATE * options.lr,
        average_from=1 - SWA_TAIL,
        checkpoint=keep,
        **_common(options, ids, device),
    )


def _by_sghmc(
    options: Options, net: Net, data: Data, ids: Sequence[int], device: str, keep: Path
) -> Posterior:
    """Chains of CYCLES draws each, as many as make the block; its members are those draws."""
    chains = -(-len(ids) // CYCLES)
    steps = options.epochs * -(-len(data[0]) // options.batch_size) // CYCLES  # of a cycle
    explore = max(1, round(EXPLORATION * steps))
    drawn = sgmcmc(
        net,
        data,
        kind="csghmc",
        chains=chains,
        samples=CYCLES,
        cycles=CYCLES,
        burn_in=explore,
        thin=max(1, steps - explore),
        batch_size=options.batch_size,
        lr=options.lr,
        prior_precision=options.prior_precision,
        seed=options.seed + ids[0],  # another block has other chains
        device=device,
        bf16=device.startswith("cuda"),
        engine=options.engine,
        checkpoint=keep,
    )
    first = drawn.take(slice(0, len(ids)))
    return dataclasses.replace(first, members=tuple(ids), seed=options.seed)


METHODS: dict[str, Make] = {
    "regular": _by_fit(lambda rate: Regular()),
    "multiswa": _by_swa,
    "dropout": _by_fit(lambda rate: Dropout(rate)),
    "dropconnect": _by_fit(lambda rate: DropConnect(rate)),
    "np-dropout": _by_fit(lambda rate: NPDropout()),
    "csghmc": _by_sghmc,
}
ROWS = {  # as the paper names them
    "regular": "regular",
    "multiswa": "MultiSWA",
    "dropout": "SE1 {rate:g}",
    "dropconnect": "SE2 {rate:g}",
    "np-dropout": "SE3",
    "csghmc": "cSGHMC",
}


def row_name(method: str, rate: float) -> str:
    """
    >>> row_name("dropout", 0.1)
    'SE1 0.1'
    """
    return ROWS[method].format(rate=rate)


def block_of(
    options: Options, net: Net, data: Data, ids: Sequence[int], device: str, keep: Path
) -> Posterior:
    """The members with these numbers, trained; `keep` is where the work is kept meanwhile."""
    return METHODS[options.method](options, net, data, ids, device, keep)
