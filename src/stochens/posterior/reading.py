"""Inputs that come batch by batch, of which no more are held than are predicted at once."""

import itertools
from collections.abc import Callable, Iterable, Iterator

from stochens.errors import InputError
from stochens.likelihoods import Predicted
from stochens.posterior.predictive import join_rows
from stochens.trees import Input, cat, form, row_bytes

PIECE = 64 << 20  # bytes of inputs that are read before they are predicted


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
        self.available(rows)
        whole: Input = cat(self._held) if len(self._held) > 1 else self._held[0]
        self._held = [whole[rows:]] if len(whole) > rows else []
        return whole[:rows]


def predict_blocks(
    blocks: Iterable[Input],
    plan: Callable[[Ahead], tuple[int, int]],
    predict: Callable[[Input, tuple[int, int], int], Predicted],
    *,
    piece: int | None,
) -> Predicted:
    """As if all had been one tensor, where their shapes agree.

    `plan` says how many rows and members at a time, and `predict(x, plan, first row)` predicts
    pieces of whole batches of that many rows: noise is a function of the row that such a batch
    begins with. Where the shape changes, so that inputs are no one tensor, a new batch begins.
    `piece`: bytes of a piece, None for all of the inputs at once.
    """
    parts: list[Predicted] = []
    first_row = 0
    for _, run in itertools.groupby(blocks, key=form):
        ahead = Ahead(run)
        rows, chunk = plan(ahead)
        one = max(1, row_bytes(ahead.first))
        at_once = len(ahead.first) if piece is None else rows * max(1, piece // (rows * one))
        while ahead.available(1):
            x = ahead.take(at_once)
            part = predict(x, (rows, chunk), first_row)
            if parts and part.mean.shape[1:] != parts[0].mean.shape[1:]:
                raise InputError(
                    "predictions for batches of different lengths must have one shape to be one "
                    f"prediction, got {tuple(parts[0].mean.shape)} and {tuple(part.mean.shape)}; "
                    "predict each batch by itself"
                )
            if parts and parts[-1].keeps_draws and not part.keeps_draws:  # too many by now
                parts = [p.light() for p in parts]
            parts.append(part)
            first_row += len(x)
    return join_rows(parts)
