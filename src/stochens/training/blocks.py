"""Members in blocks that fit into memory, and what becomes of those that are lost."""

import gc
import warnings
from collections.abc import Callable
from typing import Protocol

import torch

from stochens.cluster.tasks import outside
from stochens.errors import Failed, Unsuited
from stochens.members import Params, join, take
from stochens.result.history import History
from stochens.spread import join_spreads
from stochens.training.loop import Lost, Trained


class AllLost(Failed):
    """No member is left."""


class Block(Protocol):
    """Trains these members from their starts [m, ...]; `name` is where it keeps its checkpoints."""

    def __call__(self, part: Params, own: tuple[int, ...], *, name: str) -> Trained: ...


Again = Callable[[tuple[int, ...], int], Trained]  # (members, the number of the attempt)
TRIES = 3


def in_blocks(
    train: Block,
    params: Params,
    ids: tuple[int, ...],
    size: int,
    *,
    coupled: bool = False,
    prefix: str = "",
) -> Trained:
    """All members, at most `size` at a time; fewer from where the device's memory is exhausted on.

    Members are independent unless they are `coupled`: in blocks of another size each has the same
    start, data and noise; where torch draws for a whole block (through torch.compile, a network's
    own dropout), noise is another draw of the same law.
    """
    blocks: list[Trained] = []
    first, said = 0, False
    while first < len(ids):
        own = ids[first : first + size]
        try:
            part = take(params, slice(first, first + size))
            blocks.append(train(part, own, name=f"{prefix}members-{own[0]:05d}-{own[-1]:05d}"))
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
    return _joined(blocks)


def _tidy_up() -> None:
    """Give the device's memory back that the last block had."""
    if torch.cuda.is_available():
        gc.collect()  # a graph and its memory end with the last name for them
        torch.cuda.empty_cache()


def tried_again(trained: Trained, ids: tuple[int, ...], train: Again) -> Trained:
    """The lost ones trained again, and again, from other seeds each time."""
    for attempt in range(1, TRIES + 1):
        if not trained.lost:
            break
        report_lost(trained.lost, ids, "trained again")
        trained = _replaced(trained, train(tuple(trained.lost), attempt), ids)
    return trained


def _joined(blocks: list[Trained]) -> Trained:
    spreads = [b.spread for b in blocks if b.spread is not None]
    return Trained(
        join([b.params for b in blocks]),
        join_spreads(spreads) if spreads else None,
        History.join([b.history for b in blocks]),
        {member: lost for b in blocks for member, lost in b.lost.items()},
    )


def _replaced(trained: Trained, again: Trained, ids: tuple[int, ...]) -> Trained:
    """The members that were lost in the places that they had, from another training of them."""
    rows = [ids.index(member) for member in trained.lost]
    params = {name: p.clone() for name, p in trained.params.items()}
    for name, p in again.params.items():
        params[name][rows] = p
    history = History(*(t.clone() for t in trained.history))
    for mine, other in zip(history, again.history, strict=True):
        mine[:, rows] = other
    spread = trained.spread
    if spread is not None and again.spread is not None:
        for one, other_part in zip(spread, again.spread, strict=True):
            for name, t in other_part.items():
                one[name][rows] = t
    return Trained(params, spread, history, again.lost)


def without_lost(trained: Trained, ids: tuple[int, ...]) -> tuple[Trained, tuple[int, ...]]:
    """What is left, and whose it is."""
    if not trained.lost:
        return trained, ids
    rows = [row for row, member in enumerate(ids) if member not in trained.lost]
    if not rows:
        raise AllLost(f"all {len(ids)} members diverged; a smaller lr usually mends it")
    left = Trained(
        take(trained.params, rows),
        trained.spread and trained.spread.take(rows),
        trained.history.take(rows),
        {},
    )
    return left, tuple(ids[row] for row in rows)


def report_lost(lost: dict[int, Lost], ids: tuple[int, ...], what: str) -> None:
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
