"""y are numbers with outliers: noise with heavier tails than a Gaussian's."""

import abc
import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, distributions

from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, limited, mean_over_examples, wide
from stochens.likelihoods.numbers import Numbers, location_scale
from stochens.likelihoods.special import betainc
from stochens.likelihoods.targets import (
    Missing,
    check_missing,
    check_width,
    present,
    real_targets,
)


class LocationScale(Likelihood):
    """What both share: targets [N, D]; outputs [B, D] with a scale that is given, or [B, 2 D], the
    D locations, then the D logarithms of scale^2."""

    in_units: ClassVar[bool] = True
    usual_method: ClassVar[str] = "regular"
    scale: float | None
    missing: Missing

    def __post_init__(self) -> None:
        check_missing(self.missing)
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise InputError(f"scale must be a positive number or None, got {self.scale!r}")

    def both(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale, each [..., B, D]."""
        if self.scale is not None:
            return outputs, torch.full_like(outputs, self.scale)
        loc, log_square = outputs.chunk(2, dim=-1)
        return loc, (limited(log_square) / 2).exp()

    @abc.abstractmethod
    def terms(self, z: Tensor) -> Tensor:
        """-log p(z) of (y - loc) / scale."""

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """sum_d -log p((y_d - loc_d) / scale_d) + log scale_d"""
        loc, scale = self.both(wide(outputs))
        own, there = present(y)
        terms = (self.terms((own - loc) / scale) + scale.log()).where(there, 0.0)
        return mean_over_examples(terms.sum(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        return real_targets(y, self.missing)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        check_width(self, outputs, y)

    def width(self, targets: int) -> int:
        return targets if self.scale is not None else 2 * targets

    @property
    def learns_noise(self) -> bool:
        return self.scale is None


@dataclasses.dataclass(frozen=True)
class Laplace(LocationScale):
    """p(y | x) = exp(-|y - loc| / scale) / (2 scale): the loss is the absolute error.

    Outputs are [B, 2 D], the D locations, then the D log scale^2; with a `scale` that is given they
    are the locations [B, D]. missing="mask": NaN in y adds nothing to the likelihood.

    >>> float(Laplace(scale=0.5).nll(torch.zeros(1, 1), torch.ones(1, 1)))  # 2 + log 1
    2.0
    """

    scale: float | None = None
    missing: Missing = "refuse"
    name: ClassVar[str] = "laplace"

    def distribution(self, outputs: Tensor) -> Numbers:
        """Laplace(loc, scale)"""
        loc, scale = self.both(outputs)
        return Numbers(
            distributions.Laplace,
            loc=loc,
            scale=scale,
            missing=self.missing,
            rescaled=location_scale,
        )

    def terms(self, z: Tensor) -> Tensor:
        return z.abs() + math.log(2)


class StudentTNumbers(distributions.StudentT):
    """With the cdf that torch's has not: half of I_(df / (df + z^2))(df / 2, 1 / 2) is the tail."""

    def cdf(self, value: Tensor) -> Tensor:
        square = ((value - self.loc) / self.scale).square()
        x, rest = self.df / (self.df + square), square / (self.df + square)
        x, rest = x.where(square.isfinite(), 0.0), rest.where(square.isfinite(), 1.0)
        tail = betainc(self.df / 2, torch.full_like(x, 0.5), x, rest) / 2
        return torch.where(value > self.loc, 1 - tail, tail)


@dataclasses.dataclass(frozen=True)
class StudentT(LocationScale):
    """y = loc + scale t, t of Student's distribution with `df` > 2 degrees of freedom.

    Outliers pull little at its mean. Outputs are [B, 2 D], the D locations, then the D log scale^2;
    with a `scale` that is given they are the locations [B, D]. The standard deviation of y is
    scale sqrt(df / (df - 2)). missing="mask": NaN in y adds nothing to the likelihood.

    >>> like = StudentT(df=3.0, scale=1.0)
    >>> round(float(like.nll(torch.zeros(1, 1), torch.zeros(1, 1))), 4)
    1.0009
    """

    df: float = 4.0
    scale: float | None = None
    missing: Missing = "refuse"
    name: ClassVar[str] = "student-t"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 < self.df < math.inf:
            raise InputError(
                f"df must be above 2, below which there is no variance, and finite, got {self.df!r}"
            )

    def distribution(self, outputs: Tensor) -> Numbers:
        """loc + scale t"""
        loc, scale = self.both(outputs)
        df = torch.full_like(loc, self.df)
        return Numbers(
            StudentTNumbers,
            df=df,
            loc=loc,
            scale=scale,
            missing=self.missing,
            rescaled=location_scale,
        )

    def terms(self, z: Tensor) -> Tensor:
        """(df + 1) / 2 log(1 + z^2 / df) + log sqrt(df pi) Gamma(df / 2) / Gamma((df + 1) / 2)"""
        df = self.df
        log_norm = math.lgamma(df / 2) - math.lgamma((df + 1) / 2) + math.log(df * math.pi) / 2
        return (df + 1) / 2 * (z.square() / df).log1p() + log_norm
