"""Inputs that come batch by batch, of which no more are held than are predicted at once."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from stochens.errors import InputError
from stochens.likelihoods import Predicted
from stochens.posterior.predictive import join_rows
from stochens.trees import Input, form, leaves_of, like_leaves, row_bytes


class Ahead:
    """Batches of one shape, read when they are needed.

    >>> import torch
    >>> ahead = Ahead(iter(torch.arange(10).split(4)))
    >>> ahead.available(5), ahead.take(5), ahead.available(100)
    (5, tensor([0, 1, 2, 3, 4]), 5)
    """

    def __init__(self, blocks: Iterator[Input]) -> None:
        self._blocks, self._held = blocks, [next(blocks)]

    @property
    def first(self) -> Input:
        """Some rows that are here."""
        return self._held[0]

    def available(self, rows: int) -> int:
        """So many, or how many there are if they are fewer."""
        here = sum(map(len, self._held))
        while here < rows and (block := next(self._blocks, None)) is not None:
            self._held.append(block)
            here += len(block)
        return min(here, rows)

    def take(self, rows: int) -> Input:
        """The next rows, at most so many."""
        rows = self.available(rows)
        if len(self._held[0]) >= rows:
            first = self._held.pop(0)
            self._held = ([first[rows:]] if len(first) > rows else []) + self._held
            return first[:rows]
        like, filled = self._held[0][:0], 0
        parts = [t.new_empty(rows, *t.shape[1:]) for t in leaves_of(like)]
        while filled < rows:  # a batch goes as soon as it is copied
            block = self._held.pop(0)
            some = min(len(block), rows - filled)
            for part, t in zip(parts, leaves_of(block), strict=True):
                part[filled : filled + some] = t[:some]
            filled += some
            if some < len(block):
                self._held.insert(0, block[some:])
        taken: Input = like_leaves(like, parts)
        return taken


class Planned(NamedTuple):
    """How some inputs of one shape are predicted."""

    rows: int  # of a batch
    chunk: int  # members at a time
    row_bytes: int = 1  # of what is held of a row of outputs until the next piece


def predict_pieces(
    blocks: Iterable[Input],
    plan: Callable[[Ahead], Planned],
    predict: Callable[[Input, Planned, int], Predicted],
    *,
    piece: int,
) -> Iterator[Predicted]:
    """Piece by piece, as if all had been one tensor, where their shapes agree.

    `predict(x, plan, first row)` predicts pieces of whole batches: noise is a function of the row
    that such a batch begins with. Where the shape changes, so that inputs are no one tensor, a new
    batch begins. `piece`: bytes of inputs, and of outputs, of a piece, but a batch at least.
    """
    first_row = 0
    for _, run in itertools.groupby(blocks, key=form):
        ahead = Ahead(run)
        planned = plan(ahead)
        of_row = max(1, row_bytes(ahead.first), planned.row_bytes)
        at_once = planned.rows * max(1, piece // (planned.rows * of_row))
        while ahead.available(1):
            x = ahead.take(at_once)
            count = len(x)
            part = predict(x, planned, first_row)
            del x  # who looks at the part for long needs no inputs
            yield part
            first_row += count


def join_pieces(pieces: Iterable[Predicted]) -> Predicted:
    """All as one prediction. Its draws are here if those of the last piece are."""
    parts: list[Predicted] = []
    for part in pieces:
        if parts:
            refuse_other_shape(part, parts[0].mean.shape)
        if parts and parts[-1].keeps_draws and not part.keeps_draws:  # too many by now
            parts = [p.light() for p in parts]
        parts.append(part)
    return join_rows(parts)


def refuse_other_shape(part: Predicted, first: torch.Size) -> None:
    """Predictions that are no one prediction."""
    if part.mean.shape[1:] != first[1:]:
        raise InputError(
            "predictions for batches of different lengths must have one shape to be one "
            f"prediction, got {tuple(first)} and {tuple(part.mean.shape)}; predict each batch by "
            "itself"
        )
