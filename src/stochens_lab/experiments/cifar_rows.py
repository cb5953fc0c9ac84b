"""The methods of the CIFAR table: how a block of members of each is made."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stochens.members import Params
from stochens.methods import DropConnect, Dropout, Method, NPDropout, Regular
from stochens.posterior.posterior import Posterior
from stochens.randomness.seeds import derive
from stochens.run.cluster.connect import Engines
from stochens.run.options import Run
from stochens.samplers.langevin import langevin, usual_step
from stochens.samplers.sgmcmc import sgmcmc
from stochens.samplers.swag import multiswa
from stochens.training.fit import fit
from stochens.training.schedules import Optimizer
from stochens_lab.experiments.cifar_config import CifarConfig
from stochens_lab.experiments.runs import engine_of

Net = Callable[[], nn.Module]
Data = tuple[Tensor, Tensor]
SWA_RATE = 0.5  # of the learning rate, constant, as Izmailov et al. 2018 have it on CIFAR
SWA_TAIL = 0.25  # the share of training that is averaged, likewise
CYCLES = 5  # of a chain of SGHMC; each gives one draw
EXPLORATION = 0.8  # the share of a cycle without noise (Zhang et al. 2020)


class Block(NamedTuple):
    """Which members to make, of what, where."""

    net: Net
    data: Data
    ids: Sequence[int]
    device: str
    keep: Path  # where the work is kept meanwhile
    start: Params | None = None  # what to begin with, [len(ids), ...]


Make = Callable[[CifarConfig, Block], Posterior]


def _common(options: CifarConfig, block: Block) -> dict[str, Any]:
    return {
        "members": block.ids,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "prior_precision": options.prior_precision,
        "seed": options.seed,
        "run": _run(block, _engine(options, block.device)),
        **({} if block.start is None else {"start": block.start}),
    }


def _run(block: Block, engine: Engines) -> Run:
    precision = "bf16" if block.device.startswith("cuda") else "float32"
    return Run(device=block.device, precision=precision, engine=engine, checkpoint=block.keep)


def _engine(options: CifarConfig, device: str) -> Engines:
    """The kernels have all but two convolutions at each node, which torch.compile does fastest."""
    two = options.method == "np-dropout" and options.node == "position"
    within = "compile" if two and device.startswith("cuda") else "auto"
    return engine_of(options.engine, options.address, within=within)


def _by_fit(options: CifarConfig, block: Block) -> Posterior:
    return fit(
        block.net,
        block.data,
        method=RULES[options.method](options),
        optimizer=Optimizer("sgd", schedule=options.schedule),
        lr=options.lr,
        **_common(options, block),
    )


def _by_swa(options: CifarConfig, block: Block) -> Posterior:
    """From scratch, or from members that are trained: then all of it is the tail."""
    return multiswa(
        block.net,
        block.data,
        optimizer="sgd",
        lr=SWA_RATE * options.lr,
        average_from=1 - SWA_TAIL if block.start is None else 0.0,
        **_common(options, block),
    )


def _by_sghmc(options: CifarConfig, block: Block) -> Posterior:
    """Chains of CYCLES draws each, as many as make the block; its members are those draws."""
    chains = -(-len(block.ids) // CYCLES)
    steps = options.epochs * -(-len(block.data[0]) // options.batch_size) // CYCLES  # of a cycle
    explore = max(1, round(EXPLORATION * steps))
    drawn = sgmcmc(
        block.net,
        block.data,
        kind="csghmc",
        chains=chains,
        samples=CYCLES,
        cycles=CYCLES,
        burn_in=explore,
        thin=max(1, steps - explore),
        batch_size=options.batch_size,
        lr=options.lr,
        prior_precision=options.prior_precision,
        seed=derive(options.seed, block.ids[0]),  # another block has other chains
        run=_run(block, engine_of(options.engine, options.address)),
    )
    first = drawn.take(slice(0, len(block.ids)))
    return dataclasses.replace(first, members=tuple(block.ids), seed=options.seed)


def _by_langevin(options: CifarConfig, block: Block) -> Posterior:
    """Each member carried from the prior to the posterior, in as many steps as training has."""
    usual = usual_step(len(block.data[0]))
    return langevin(
        block.net,
        block.data,
        members=block.ids,
        steps=options.epochs * -(-len(block.data[0]) // options.batch_size),
        batch_size=options.batch_size,
        step_size=usual if options.step_size is None else options.step_size,
        prior_precision=options.prior_precision,
        seed=options.seed,
        run=_run(block, engine_of(options.engine, options.address)),
    )


RULES: dict[str, Callable[[CifarConfig], Method]] = {  # what the members' layers follow
    "regular": lambda options: Regular(),
    "multiswa": lambda options: Regular(),
    "dropout": lambda options: Dropout(options.rate, node=options.node),
    "dropconnect": lambda options: DropConnect(options.rate),
    "np-dropout": lambda options: NPDropout(node=options.node),
    "csghmc": lambda options: Regular(),
    "langevin": lambda options: Regular(),
}
TRAININGS: dict[str, Make] = {
    "regular": _by_fit,
    "multiswa": _by_swa,
    "dropout": _by_fit,
    "dropconnect": _by_fit,
    "np-dropout": _by_fit,
    "csghmc": _by_sghmc,
    "langevin": _by_langevin,
}
ROWS = {  # as the paper names them
    "regular": "regular",
    "multiswa": "MultiSWA",
    "dropout": "SE1 {rate:g}",
    "dropconnect": "SE2 {rate:g}",
    "np-dropout": "SE3",
    "csghmc": "cSGHMC",
    "langevin": "langevin",
}


def name_row(options: CifarConfig) -> str:
    """As the paper has it, and what differs from the authors' choice of nodes."""
    noted = options.node == "channel" and options.method in ("dropout", "np-dropout")
    return ROWS[options.method].format(rate=options.rate) + (" by channel" if noted else "")


def train_block(options: CifarConfig, block: Block) -> Posterior:
    """The block's members, trained."""
    return TRAININGS[options.method](options, block)
