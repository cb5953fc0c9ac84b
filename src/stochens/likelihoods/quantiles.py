"""y are numbers of which some quantiles are learned, by the pinball loss."""

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, constant, mean_over_examples, wide
from stochens.likelihoods.draws import Measure
from stochens.likelihoods.numbers import NumberPredictive, Numbers
from stochens.likelihoods.targets import (
    Missing,
    check_missing,
    check_width,
    present,
    real_targets,
)
from stochens.metrics import dense

NARROWEST = 1e-6  # of the distance between the outermost quantiles: how near two of them may be


class QuantileSpline(Distribution):
    """The distribution with these quantiles: uniform between neighbours, with exponential tails
    that go on with the density of the outermost pieces (as Park et al. 2022, with linear pieces).

    values [..., Q] are the quantiles at `levels`; they are sorted.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real

    def __init__(
        self, values: Tensor, levels: tuple[float, ...], validate_args: Any = None
    ) -> None:
        super().__init__(values.shape[:-1], validate_args=False)
        self.first, self.last = levels[0], 1 - levels[-1]  # the masses of both tails
        between = [b - a for a, b in itertools.pairwise(levels)]
        self.masses = constant(tuple(between), values.dtype, values.device)  # [Q - 1]
        values = values.sort(-1).values
        kind, size = torch.finfo(values.dtype), values.abs().amax(-1, keepdim=True)
        least = NARROWEST * (values[..., -1:] - values[..., :1]) + 8 * kind.eps * size + kind.tiny
        self.widths = values.diff(dim=-1).maximum(least)  # [..., Q - 1]
        self.knots = values[..., :1] + torch.nn.functional.pad(self.widths.cumsum(-1), (1, 0))
        self.density = self.masses / self.widths
        self.left = self.density[..., 0] / self.first  # rates of the tails
        self.right = self.density[..., -1] / self.last

    @property
    def mean(self) -> Tensor:
        a, b = self.knots[..., :-1], self.knots[..., 1:]
        inner = (self.masses * (a + b) / 2).sum(-1)
        low = self.first * (self.knots[..., 0] - 1 / self.left)
        return low + inner + self.last * (self.knots[..., -1] + 1 / self.right)

    @property
    def variance(self) -> Tensor:
        """E (y - mean)^2, piece by piece."""
        away = self.knots - self.mean.unsqueeze(-1)
        a, b = away[..., :-1], away[..., 1:]
        inner = (self.masses * (a.square() + a * b + b.square()) / 3).sum(-1)

        def tail(end: Tensor, rate: Tensor) -> Tensor:
            return (end + 1 / rate).square() + 1 / rate.square()

        low = self.first * tail(-away[..., 0], self.left)
        return low + inner + self.last * tail(away[..., -1], self.right)

    def entropy(self) -> Tensor:
        inner = -(self.masses * self.density.log()).sum(-1)
        low = self.first * (1 - self.density[..., 0].log())
        return low + inner + self.last * (1 - self.density[..., -1].log())

    def cdf(self, value: Tensor) -> Tensor:
        y, low, high = value.unsqueeze(-1), self.knots[..., 0], self.knots[..., -1]
        share = ((y - self.knots[..., :-1]) / self.widths).clamp(0, 1)
        inner = self.first + (self.masses * share).sum(-1)
        below = self.first * (self.left * (value - low).clamp_max(0)).exp()
        above = 1 - self.last * (-self.right * (value - high).clamp_min(0)).exp()
        return torch.where(value < low, below, torch.where(value > high, above, inner))

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self.knots[..., 0], self.knots[..., -1]
        piece = (value.unsqueeze(-1) >= self.knots[..., 1:-1]).sum(-1)  # 0 to Q - 2
        shape = torch.broadcast_shapes(piece.shape, self.density.shape[:-1])
        density = self.density.expand(*shape, -1)
        logs = density.gather(-1, piece.expand(shape).unsqueeze(-1)).squeeze(-1).log()
        beyond = self.left * (low - value).clamp_min(0) + self.right * (value - high).clamp_min(0)
        return logs - beyond

    def icdf(self, level: Tensor) -> Tensor:
        low, high = self.knots[..., 0], self.knots[..., -1]
        starts = self.first + torch.nn.functional.pad(self.masses.cumsum(-1), (1, 0))[:-1]
        share = ((level.unsqueeze(-1) - starts) / self.masses).clamp(0, 1)
        inner = low + (share * self.widths).sum(-1)
        tiny = torch.finfo(self.knots.dtype).tiny
        below = low + (level / self.first).clamp(tiny, 1).log() / self.left
        above = high - ((1 - level) / self.last).clamp(tiny, 1).log() / self.right
        inside = torch.where(level > 1 - self.last, above, inner)
        return torch.where(level < self.first, below, inside)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(
            torch.rand(
                *sample_shape,
                *self.batch_shape,
                dtype=self.knots.dtype,
                device=self.knots.device,
            )
        )


@dataclasses.dataclass(frozen=True)
class Quantiles(Likelihood):
    """exp(-sum_k pinball_k / scale): outputs [B, Q D] are the D first quantiles of y, then the D
    second ones, and so on, at `levels`.

    That is no density of y, so the posterior is a Gibbs posterior: the prior times
    exp(-sum of losses / scale), which depends on the units of y. A smaller `scale` trusts the data
    more; about the mean pinball loss of a good model makes it a fit of asymmetric Laplace noise.
    Each draw predicts the distribution with its quantiles (sorted, where they cross), uniform
    between them, with exponential tails. missing="mask": NaN in y adds nothing.

    >>> like = Quantiles((0.1, 0.5, 0.9))
    >>> float(like.nll(torch.zeros(1, 3), torch.ones(1, 1)))  # 0.1 + 0.5 + 0.9
    1.5
    """

    levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)
    scale: float = 1.0
    missing: Missing = "refuse"
    name: ClassVar[str] = "quantiles"
    in_units: ClassVar[bool] = True
    usual_method: ClassVar[str] = "regular"

    def __post_init__(self) -> None:
        check_missing(self.missing)
        levels = tuple(float(level) for level in self.levels)
        object.__setattr__(self, "levels", levels)  # of what JSON has
        ends = (0.0, *levels, 1.0)
        rising = all(a < b for a, b in itertools.pairwise(ends))
        if len(levels) < 2 or not rising:
            raise InputError(f"levels must be two or more, rising, in (0, 1), got {levels}")
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale must be a positive number, got {self.scale!r}")

    def _by_target(self, outputs: Tensor) -> Tensor:
        """[..., B, Q D] -> [..., B, D, Q]."""
        values: Tensor = outputs.unflatten(-1, (len(self.levels), -1)).movedim(-2, -1)
        return values

    def distribution(self, outputs: Tensor) -> Numbers:
        """Uniform between the quantiles, with exponential tails."""
        return Numbers(
            functools.partial(QuantileSpline, levels=self.levels),
            values=self._by_target(outputs),
            missing=self.missing,
            more=functools.partial(pinball_measures, levels=self.levels),
            rescaled=_rescaled,
        )

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """sum_dk max(t_k e_dk, (t_k - 1) e_dk) / scale,  e_dk = y_d - q_dk"""
        values, (own, there) = self._by_target(wide(outputs)), present(y)
        levels = constant(self.levels, values.dtype, values.device)
        error = own.unsqueeze(-1) - values
        terms = torch.maximum(levels * error, (levels - 1) * error).sum(-1).where(there, 0.0)
        return mean_over_examples(terms.sum(-1) / self.scale, weights)

    def check_targets(self, y: Tensor) -> Tensor:
        return real_targets(y, self.missing)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        check_width(self, outputs, y)

    def width(self, targets: int) -> int:
        return len(self.levels) * targets


def _rescaled(named: dict[str, Tensor], shift: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Quantiles [..., D, Q] of shift + scale y."""
    return {"values": shift.unsqueeze(-1) + scale.unsqueeze(-1) * named["values"]}


def pinball_measures(
    p: NumberPredictive, y: Tensor, *, levels: tuple[float, ...]
) -> dict[str, Measure]:
    """The pinball loss of the prediction's own quantiles, the mean over the levels and over the
    targets that are there."""
    own, there = present(y.to(p.mean))
    errors = [(t, own - p.quantile(t)) for t in levels]
    terms = torch.stack([torch.maximum(t * e, (t - 1) * e).double() for t, e in errors]).mean(0)
    if bool(there.all()):
        return {"pinball": (torch.mean, terms.flatten(1).mean(1))}
    sums = terms.where(there, 0.0).flatten(1).sum(1)
    return {"pinball": (dense.ratio, sums, there.flatten(1).sum(1).double())}
