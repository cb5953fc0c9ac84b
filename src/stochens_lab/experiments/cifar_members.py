"""Blocks of members in a run's folder, and members of another run to begin with."""

import re
import warnings
from pathlib import Path

from stochens.errors import InputError
from stochens.members import Params, trainable
from stochens.methods import stochastic
from stochens.posterior.joining import join_posteriors
from stochens.posterior.posterior import Posterior, load
from stochens.run.cluster.tasks import runs
from stochens_lab.experiments.cifar_config import CifarConfig
from stochens_lab.experiments.cifar_rows import RULES, Net

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


def keep_copy(members: Posterior, copy: Path, net: Net) -> None:
    """A copy, so that a run which goes on can do without the one it began with."""
    if _read_copy(copy, net, list(members.members)) is None:
        members.save(copy, overwrite=True)


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
    wanted = stochastic(net(), RULES[options.method](options), output=there.recipe.output)
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
