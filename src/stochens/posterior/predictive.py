"""Draws of the network's output, summed up to a prediction, so that they need not all be held."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stochens.likelihoods import (
    Draws,
    GaussianPredictive,
    Likelihood,
    NumberPredictive,
    Predicted,
    Predictive,
    draws_of,
    mean_of_draws,
)

__all__ = ["GaussianPredictive", "NumberPredictive", "Predicted", "Predictive", "Sums", "join_rows"]

DRAWS_BUDGET = 1 << 30  # bytes of draws that are kept without being asked


class Sums:
    """Collects outputs [m, b, C] of some draws at some rows; `result` when all have come."""

    def __init__(
        self,
        likelihood: Likelihood,
        draws: int,
        rows: int,
        *,
        keep: bool | None,
        groups: int,
        of_rows: int,
        temperature: float = 1.0,
    ) -> None:
        self.likelihood, self.temperature = likelihood, temperature
        self.shape = (draws, rows)
        self.of_rows = of_rows  # of all that is predicted; these may be a part
        self.keep = keep
        self.groups = groups  # equal blocks of draws (chains) that are summed apart
        self.centres: dict[int, tuple[Tensor, ...]] = {}  # by first row
        self.sums: tuple[Tensor, ...] = ()
        self.kept: tuple[Tensor, ...] | None = None
        self.kind: Draws | None = None
        self.whole: Predicted | None = None

    def add(self, outputs: Tensor, *, rows: slice, first_draw: int) -> None:
        said = draws_of(self.likelihood, outputs, self.temperature)
        if self.groups == 1 and (len(outputs), rows) == (self.shape[0], slice(0, self.shape[1])):
            self.whole = self._all_at_once(said)
            return
        if rows.start not in self.centres:
            self.centres[rows.start] = said.centre()
        terms = said.terms(*self.centres[rows.start])
        if self.kind is None:
            self.kind = said.at(tuple(p[:1, :1] for p in said.parameters))
            if self._keeps(said):
                self.kept = tuple(
                    torch.empty(*self.shape, *p.shape[2:], dtype=p.dtype) for p in said.parameters
                )
        self._add_terms(terms, rows, first_draw)
        for kept, own_draws in zip(self.kept or (), said.parameters, strict=False):
            kept[first_draw : first_draw + len(own_draws), rows] = own_draws.cpu()

    def _all_at_once(self, said: Draws) -> Predicted:
        kept = None
        if self._keeps(said):  # as tensors of their own, whatever the likelihood made them of
            kept = tuple(
                p.to("cpu", copy=True, memory_format=torch.contiguous_format)
                for p in said.parameters
            )
            if (found := said.whole(kept)) is not None:
                return found
        centre = said.centre()
        averages = tuple(mean_of_draws(t).cpu() for t in said.terms(*centre))
        return said.averaged(averages, tuple(c.cpu() for c in centre), kept)

    def _add_terms(self, terms: tuple[Tensor, ...], rows: slice, first_draw: int) -> None:
        self.sums = self.sums or tuple(
            torch.zeros(self.groups, self.shape[1], *t.shape[2:], dtype=torch.float64)
            for t in terms
        )
        size, last = self.shape[0] // self.groups, first_draw + len(terms[0])
        for group in range(first_draw // size, (last - 1) // size + 1):
            own = slice(max(0, group * size - first_draw), (group + 1) * size - first_draw)
            for total, term in zip(self.sums, terms, strict=True):
                total[group, rows] += term[own].sum(0, dtype=torch.float64).cpu()

    def _keeps(self, said: Draws) -> bool:
        """Whether the draws are kept: where that is asked for, or where they are few."""
        if self.keep is not None or said.large:
            return bool(self.keep)
        each = sum(math.prod(p.shape[2:]) * p.element_size() for p in said.parameters)
        return self.shape[0] * self.of_rows * each <= DRAWS_BUDGET

    def result(self) -> Predicted:
        if self.whole is not None:
            return self.whole
        assert self.kind is not None
        size = self.shape[0] // self.groups
        in_order = (self.centres[first] for first in sorted(self.centres))
        centre = tuple(torch.cat(parts).cpu() for parts in zip(*in_order, strict=True))
        return self.kind.averaged(tuple(total / size for total in self.sums), centre, self.kept)


def join_rows(parts: Sequence[Predicted]) -> Predicted:
    """Predictions at some inputs and at others, as one, in order; all of one kind."""
    return parts[0] if len(parts) == 1 else type(parts[0]).joined(parts)
