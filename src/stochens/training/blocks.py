"""Members in blocks that fit into memory, and what becomes of those that are lost."""

import gc
import warnings
from collections.abc import Callable
from typing import Protocol

import torch

from stochens.errors import Failed, Unsuited, outside
from stochens.members import Params, take
from stochens.posterior.history import History
from stochens.posterior.low_rank import LowRankGaussian
from stochens.training.task import Lost, Trained


class AllLost(Failed):
    """No member is left."""


class Block(Protocol):
    """Trains these members from their starts [m, ...], which it may overwrite; `name` is where it
    keeps its checkpoints."""

    def __call__(self, part: Params, own: tuple[int, ...], *, name: str) -> Trained: ...


Begin = Callable[[tuple[int, ...]], Params]  # where these members begin, [m, ...]
Again = Callable[[tuple[int, ...], int], Trained]  # (members, the number of the attempt)
TRIES = 3


def in_blocks(
    train: Block,
    begin: Begin,
    ids: tuple[int, ...],
    size: int,
    *,
    coupled: bool = False,
    prefix: str = "",
) -> Trained:
    """All members, at most `size` at a time; fewer from where the device's memory is exhausted on.

    A block's members begin to exist when it does, and go to their place in the result when it ends:
    in memory there is the result, and what one block needs.

    Members are independent unless they are `coupled`: in blocks of another size each has the same
    start, data and noise; where torch draws for a whole block (through torch.compile, a network's
    own dropout), noise is another draw of the same law.
    """
    done = Gathered(len(ids))
    first, said = 0, False
    while first < len(ids):
        own = ids[first : first + size]
        try:
            name = f"{prefix}members-{own[0]:05d}-{own[-1]:05d}"
            done.add(train(begin(own), own, name=name), first)
            first += len(own)
        except torch.OutOfMemoryError as error:
            if len(own) == 1 or coupled:
                what = "one member does not fit" if len(own) == 1 else "the members do not fit"
                raise Unsuited(f"{what} into memory; use a smaller batch_size") from error
            if not said:
                words = f"{len(own)} members at a time do not fit into memory, so fewer are trained"
                warnings.warn(f"{words} together", stacklevel=outside())
            said, size = True, len(own) // 2
        _tidy_up()
    return done.result()


class Gathered:
    """Blocks of members put side by side, each as it comes."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._params: Params = {}
        self._low_rank: LowRankGaussian | None = None
        self._histories: list[History] = []
        self._lost: dict[int, Lost] = {}

    def add(self, block: Trained, first: int) -> None:
        """A block whose members have the places from `first` on."""
        self._params = self._placed(self._params, block.params, first)
        if block.low_rank is not None:
            before = self._low_rank or LowRankGaussian({}, {})
            parts = zip(before, block.low_rank, strict=True)
            self._low_rank = LowRankGaussian(
                *(self._placed(all_, part, first) for all_, part in parts)
            )
        self._histories.append(block.history)
        self._lost |= block.lost

    def _placed(self, all_: Params, part: Params, first: int) -> Params:
        count = len(next(iter(part.values())))
        if count == self._members:  # the only block
            return part
        if not all_:
            all_ = {name: t.new_empty(self._members, *t.shape[1:]) for name, t in part.items()}
        for name, t in part.items():
            all_[name][first : first + count] = t
        return all_

    def result(self) -> Trained:
        return Trained(self._params, self._low_rank, History.join(self._histories), self._lost)


def _tidy_up() -> None:
    """Give the device's memory back that the last block had."""
    if torch.cuda.is_available():
        gc.collect()  # a graph and its memory end with the last name for them
        torch.cuda.empty_cache()


def tried_again(trained: Trained, ids: tuple[int, ...], train: Again, how: str = "") -> Trained:
    """The lost ones trained again, and again, from other seeds each time; `how` is told."""
    for attempt in range(1, TRIES + 1):
        if not trained.lost:
            break
        warn_diverged(trained.lost, ids, f"trained again{how}")
        trained = _replaced(trained, train(tuple(trained.lost), attempt), ids)
    return trained


def _replaced(trained: Trained, again: Trained, ids: tuple[int, ...]) -> Trained:
    """The members that were lost in the places that they had, from another training of them."""
    rows = [ids.index(member) for member in trained.lost]
    for name, p in again.params.items():
        trained.params[name][rows] = p
    trained.history.put(rows, again.history)
    if trained.low_rank is not None and again.low_rank is not None:
        for one, other_part in zip(trained.low_rank, again.low_rank, strict=True):
            for name, t in other_part.items():
                one[name][rows] = t
    return trained._replace(lost=again.lost)


def drop_diverged(trained: Trained, ids: tuple[int, ...]) -> tuple[Trained, tuple[int, ...]]:
    """What is left, and whose it is."""
    if not trained.lost:
        return trained, ids
    rows = [row for row, member in enumerate(ids) if member not in trained.lost]
    if not rows:
        raise AllLost(f"all {len(ids)} members diverged; a smaller lr usually mends it")
    left = Trained(
        take(trained.params, rows),
        trained.low_rank and trained.low_rank.take(rows),
        trained.history.take(rows),
        {},
    )
    return left, tuple(ids[row] for row in rows)


def warn_diverged(lost: dict[int, Lost], ids: tuple[int, ...], what: str) -> None:
    """One warning that names them."""
    if not lost:
        return
    told = ", ".join(
        f"member {member} at step {one.step} with loss {one.loss:g}"
        if one.step >= 0
        else f"member {member} in its last step"
        for member, one in list(lost.items())[:10]
    )
    warnings.warn(
        f"{len(lost)} of {len(ids)} members diverged and are {what} ({told}); the others are "
        "unharmed. A smaller lr usually mends it",
        stacklevel=outside(),
    )
