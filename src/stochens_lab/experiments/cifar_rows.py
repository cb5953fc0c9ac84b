"""The methods of the CIFAR table: how a block of members of each is made, where they lie in a
run's folder, and members of another run to begin with."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stochens.errors import InputError
from stochens.members import Params, trainable
from stochens.methods import DropConnect, Dropout, Method, NPDropout, Regular, stochastic
from stochens.posterior.joining import join_posteriors
from stochens.posterior.posterior import Posterior, load
from stochens.randomness.seeds import derive
from stochens.run.cluster.tasks import runs
from stochens.run.options import Run
from stochens.samplers.langevin import langevin, usual_step
from stochens.samplers.sgmcmc import sgmcmc
from stochens.samplers.swag import multiswa
from stochens.training.fit import fit
from stochens.training.schedules import Natural, Optimizer
from stochens_lab.experiments.cifar_config import CifarConfig
from stochens_lab.experiments.runs import work_in

Net = Callable[[], nn.Module]
Data = tuple[Tensor, Tensor]
SWA_RATE = 0.5  # of the learning rate, constant, as Izmailov et al. 2018 have it on CIFAR
SWA_TAIL = 0.25  # the share of training that is averaged, likewise
CYCLES = 5  # of a chain of cyclical SGHMC; each gives one draw
EXPLORATION = 0.8  # the share of a cycle without noise (Zhang et al. 2020)
DRAWS = 5  # of a chain of SGHMC at a constant rate
TRAINING, BURN_IN = 0.2, 0.4  # shares of its epochs: before the chain, and of the chain


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
        "prior": options.prior_precision,
        "seed": options.seed,
        "run": _run(options, block, within=_within(options, block.device)),
        **({} if block.start is None else {"start": block.start}),
    }


def _run(options: CifarConfig, block: Block, *, within: str = "auto") -> Run:
    precision = "bf16" if block.device.startswith("cuda") else "float32"
    return work_in(options, block.keep, within=within, device=block.device, precision=precision)


def _within(options: CifarConfig, device: str) -> str:
    """The kernels have all but two convolutions at each node, which torch.compile does fastest."""
    two = options.method == "np-dropout" and options.node == "position"
    return "compile" if two and device.startswith("cuda") else "auto"


def optimizer_of(options: CifarConfig) -> Optimizer | Natural:
    """The authors' steps of the rate are for plain members: natural gradients have a cosine."""
    if options.optimizer == Natural.name:
        rates = "cosine" if options.schedule == "step" else options.schedule
        return Natural(sigma=options.sigma, memory=options.memory, schedule=rates)
    return Optimizer(options.optimizer, schedule=options.schedule)


def _by_fit(options: CifarConfig, block: Block) -> Posterior:
    return fit(
        block.net,
        block.data,
        method=KINDS[options.method].rule(options),
        optimizer=optimizer_of(options),
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


def _by_cycles(options: CifarConfig, block: Block) -> Posterior:
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
        prior=options.prior_precision,
        seed=derive(options.seed, block.ids[0]),  # another block has other chains
        run=_run(options, block),
    )
    return _as_members(drawn, options, block)


def _by_chains(options: CifarConfig, block: Block) -> Posterior:
    """Chains of DRAWS draws each that go on from members which are trained for a share of the
    epochs, or are given; members are those draws. They step by the variance of gradients, at the
    rate that `sgmcmc` finds."""
    chains = -(-len(block.ids) // DRAWS)
    epochs, start = options.epochs, block.start
    if start is None:
        trained = dataclasses.replace(options, epochs=max(1, round(TRAINING * epochs)))
        beside = block.keep.with_name(f"{block.keep.name}-start")
        first = block._replace(ids=block.ids[:chains], keep=beside)
        start, epochs = _by_fit(trained, first).params, max(1, epochs - trained.epochs)
    steps = epochs * -(-len(block.data[0]) // options.batch_size)
    thin = max(1, round((1 - BURN_IN) * steps) // DRAWS)
    drawn = sgmcmc(
        block.net,
        block.data,
        chains=chains,
        samples=DRAWS,
        burn_in=max(1, steps - thin * DRAWS),
        thin=thin,
        preconditioner="fisher",
        start={name: p[:chains] for name, p in start.items()},
        batch_size=options.batch_size,
        prior=options.prior_precision,
        seed=derive(options.seed, block.ids[0]),
        run=_run(options, block),
    )
    return _as_members(drawn, options, block)


def _as_members(drawn: Posterior, options: CifarConfig, block: Block) -> Posterior:
    """As many draws as the block has members."""
    few = drawn.take(slice(0, len(block.ids)))
    return dataclasses.replace(few, members=tuple(block.ids), seed=options.seed)


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
        prior=options.prior_precision,
        seed=options.seed,
        run=_run(options, block),
    )


class Kind(NamedTuple):
    """How the paper names a row, what the members' layers follow, and how they are made."""

    row: str
    rule: Callable[[CifarConfig], Method]
    make: Make


def _plain(options: CifarConfig) -> Method:
    return Regular()


KINDS = {
    "regular": Kind("regular", _plain, _by_fit),
    "multiswa": Kind("MultiSWA", _plain, _by_swa),
    "dropout": Kind("SE1 {rate:g}", lambda o: Dropout(o.rate, node=o.node), _by_fit),
    "dropconnect": Kind("SE2 {rate:g}", lambda o: DropConnect(o.rate), _by_fit),
    "np-dropout": Kind("SE3", lambda o: NPDropout(node=o.node), _by_fit),
    "csghmc": Kind("cSGHMC", _plain, _by_cycles),
    "sghmc": Kind("SGHMC", _plain, _by_chains),
    "langevin": Kind("langevin", _plain, _by_langevin),
}


def name_row(options: CifarConfig) -> str:
    """As the paper has it, and what differs from the authors' choice of nodes."""
    noted = options.node == "channel" and options.method in ("dropout", "np-dropout")
    how = " natural" if options.optimizer == Natural.name else ""
    row = KINDS[options.method].row.format(rate=options.rate)
    return row + (" by channel" if noted else "") + how


def train_block(options: CifarConfig, block: Block) -> Posterior:
    """The block's members, trained."""
    return KINDS[options.method].make(options, block)


# Blocks of members --------------------------------------------------------------------------------

BLOCKS = "members"  # the folder of the blocks


def load_blocks(run: Path, net: Net, device: str) -> dict[Path, Posterior]:
    """The blocks that lie in a run's folder, in their order."""
    return {path: load(path, net, device=device) for path in _find_blocks(run)}


def find_missing(run: Path, members: int) -> list[int]:
    """Those of so many that lie in no block of the run's folder, which need not be there yet."""
    there: set[int] = set()
    for path in _find_blocks(run):
        there |= set(_parse_members(path.name))  # some may be lost, and stay so
    return [k for k in range(members) if k not in there]


def cut_blocks(run: Path, begun: list[str], members: int, size: int) -> list[list[int]]:
    """Blocks of the members that are missing: those that were begun as they were cut then, so that
    their work is not lost, and the rest in runs of at most `size`."""
    left = find_missing(run, members)
    blocks = [_parse_members(name) for name in begun if re.fullmatch(r"\d+-\d+", name)]
    blocks = [block for block in blocks if set(block) <= set(left)]
    rest = [k for k in left if not any(k in block for block in blocks)]
    return blocks + [one[at : at + size] for one in runs(rest) for at in range(0, len(one), size)]


def _find_blocks(run: Path) -> list[Path]:
    return sorted((run / BLOCKS).glob("[0-9]*-*"))


def _parse_members(name: str) -> list[int]:
    """
    >>> _parse_members("0003-0005")
    [3, 4, 5]
    """
    first, last = (int(word) for word in name.split("-"))
    return list(range(first, last + 1))


# To begin with ------------------------------------------------------------------------------------


def find_start(
    start: Path, copy: Path, options: CifarConfig, net: Net, ids: list[int]
) -> Posterior | None:
    """The members with these numbers in the run `start`, or in the copy of them that a run which
    was stopped has of its own; None where none is needed. Nothing is written."""
    if not ids:
        return None
    return _read_copy(copy, net, ids) or _read_start(start, options, net, ids)


def _read_copy(copy: Path, net: Net, ids: list[int]) -> Posterior | None:
    try:
        there = load(copy, net)
    except InputError as error:  # not there, or damaged: the run itself is asked then
        if copy.exists():
            warnings.warn(f"{error}; the run it is a copy of is read", stacklevel=2)
        return None
    return _take_members(there, ids) if set(ids) <= set(there.members) else None


def _read_start(start: Path, options: CifarConfig, net: Net, ids: list[int]) -> Posterior:
    blocks = list(load_blocks(start, net, "cpu").values())
    if not blocks:
        raise InputError(f"start = {start}, but there are no members of a run")
    there = join_posteriors(blocks)
    names = ", ".join(method.name for method in there.recipe.methods)
    if options.method == "multiswa" and names != "regular":
        raise InputError(f"{start} is of {names}; multiswa begins with regular")
    wanted = stochastic(net(), KINDS[options.method].rule(options), output=there.recipe.output)
    for name, p in trainable(wanted).items():
        if name not in there.params or there.params[name].shape[1:] != p.shape:
            raise InputError(f"{start} is of {names}, without the {name} that {options.method} has")
    if absent := [k for k in ids if k not in there.members]:
        raise InputError(f"{start} has no member {absent[0]} to begin with")
    return _take_members(there, ids)


def _take_members(posterior: Posterior, ids: list[int]) -> Posterior:
    return posterior.take([posterior.members.index(k) for k in ids])


def take_params(posterior: Posterior | None, ids: list[int]) -> Params | None:
    """What the members with these numbers begin with, [len(ids), ...]."""
    return None if posterior is None else _take_members(posterior, ids).params
