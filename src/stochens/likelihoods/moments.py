"""What every prediction of numbers has: its moments, and what follows from the draws'
distributions."""

import abc
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from stochens.errors import InputError
from stochens.likelihoods.draws import Parameters, Predicted, over_chains
from stochens.likelihoods.information import MOST_COUNTS, discrete_crps, information
from stochens.likelihoods.number_measures import LEVEL
from stochens.likelihoods.number_views import NumberViews
from stochens.likelihoods.targets import Missing, present
from stochens.metrics.numbers import crps, gaussian_crps_terms, laplace_crps_terms
from stochens.metrics.terms import per_example

CRPS_DRAWS = 1000  # of y, where the CRPS has no closed form
CRPS_PAIRS = 100_000_000  # of draws and targets, from which on it is by draws of y too
ALMOST_ALL = 1 - 1e-12  # of the probability of counts, which are added up that far
AT_ONCE = 1 << 19  # numbers of draws of which an interval is computed at a time


class Moments(Predicted):
    """What every prediction of numbers has: mean and variance of y, and where the variance is
    from. `aleatoric` and `epistemic` are variances, which add up to `variance`."""

    aleatoric: Tensor  # [B, D], mean variance of the draws: the noise of the data
    epistemic: Tensor  # [B, D], variance of the draws' means: what the parameters are unsure of
    missing: Missing  # whether NaN among targets is left out

    @property
    def variance(self) -> Tensor:
        """aleatoric + epistemic, the variance of y: [B, D]."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The root of `variance`."""
        return self.variance.sqrt()

    @abc.abstractmethod
    def each(self) -> Distribution:
        """Each draw's distribution of y, one of torch's of [S, B, D], in float64."""

    @abc.abstractmethod
    def quantile(self, level: float) -> Tensor:
        """y with P(Y <= y) = level under the mixture: [B, D]."""

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `level`: low and high, each [B, D]."""
        if not 0 < level < 1:
            raise InputError(f"an interval's level must be in (0, 1), got {level!r}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @abc.abstractmethod
    def some(self, rows: slice) -> Self:
        """The same at some of the inputs."""

    def summaries(self, level: float | None = None) -> dict[str, Tensor]:
        """Mean, std, aleatoric and epistemic (variances), and where draws are kept and the family
        has a cdf an interval, of 95 % unless told, low and high: [B, D]."""
        parts = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        found = {"mean": self.mean, "std": self.std, **parts}
        if not self.keeps_draws or not has_cdf(one := self.some(slice(0, 1)).each()):
            return found
        rows = max(1, AT_ONCE // max(1, one.batch_shape.numel() * one.event_shape.numel()))
        tops = range(0, len(self.mean), rows)  # in float64 all draws may be too many
        level = LEVEL if level is None else level
        ends = [self.some(slice(top, top + rows)).interval(level) for top in tops]
        low, high = (torch.cat(each) for each in zip(*ends, strict=True))
        return {**found, "low": low, "high": high}

    @property
    def entropy(self) -> Tensor:
        """H[p(y | x, data)] of each target in nats, [B, D]: exact for counts up to 20,000, else
        with the error of an estimate by 512 draws of y (information.py)."""
        return information(self.each(), self._counts())[0].to(self.mean)

    @property
    def mutual_information(self) -> Tensor:
        """What the parameters are unsure of, in nats: [B, D], as exact as `entropy`."""
        return information(self.each(), self._counts())[1].to(self.mean)

    def crps(self, y: Tensor) -> Tensor:
        """The continuous ranked probability score of targets y, in their units and float64: [B, D].

        Exact for Gaussians, Laplace distributions and counts; of other families, and of very many
        draws, from 1000 draws of y. NaN where y is missing.
        """
        y = self._targets(y).to(self.mean.device, torch.float64)
        there, each = ~y.isnan(), self.each()
        filled, exact = y.where(there, 0.0), CLOSED_CRPS.get(type(each))
        counts, size = self._counts(), each.batch_shape.numel() * each.batch_shape[0]
        if counts is not None:
            found = discrete_crps(each, counts, filled)
        elif exact is not None and size <= CRPS_PAIRS:
            found = exact(each, filled)
        else:
            drawn = self.sample(CRPS_DRAWS).double()  # [n, B, D]
            columns = zip(drawn.flatten(2).unbind(2), filled.flatten(1).unbind(1), strict=True)
            each_column = [per_example(crps, d[..., None], v[:, None]) for d, v in columns]
            found = torch.stack(each_column, 1).reshape(y.shape)
        return found.where(there, math.nan)

    @property
    def views(self) -> NumberViews:
        """What figures and reports show of it."""
        return NumberViews(self, self._targets, self._cumulative)

    def _cumulative(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """P(Y < y) and P(Y <= y) under the mixture, each [B, D] in float64; None where the family
        has no cdf."""
        each = self.each()
        if not has_cdf(each):
            return None
        y = present(y.to(self.mean.device, torch.float64))[0]
        up_to = each.cdf(y).mean(0)
        whole = getattr(each.support, "is_discrete", False)
        return (each.cdf(y - 1).mean(0) if whole else up_to), up_to

    def _counts(self) -> Tensor | None:
        """0, 1, ... as far as they have any probability; None for other numbers, and for many."""
        each = self.each()
        if not has_cdf(each) or each.support is not constraints.nonnegative_integer:
            return None
        last = float(self.quantile(ALMOST_ALL).max())
        if not last <= MOST_COUNTS:
            return None
        return torch.arange(last + 1, dtype=torch.float64, device=self.mean.device)

    def _targets(self, y: Tensor) -> Tensor:
        shape, y = self.mean.shape, torch.as_tensor(y)
        if y.shape != shape and (*y.shape, 1) != tuple(shape):
            raise InputError(f"targets must be {tuple(shape)}, got {tuple(y.shape)}")
        if self.missing == "refuse" and y.is_floating_point() and bool(y.isnan().any()):
            raise InputError(
                f"targets have {int(y.isnan().sum())} NaN; a likelihood with missing='mask' leaves "
                "them out"
            )
        return y.reshape(shape)


def _gaussian_crps(each: Any, y: Tensor) -> Tensor:
    return gaussian_crps_terms(each.loc, each.scale.square(), y)


def _laplace_crps(each: Any, y: Tensor) -> Tensor:
    return laplace_crps_terms(each.loc, each.scale, y)


CLOSED_CRPS: dict[type[Distribution], Callable[[Any, Tensor], Tensor]] = {
    torch.distributions.Normal: _gaussian_crps,
    torch.distributions.Laplace: _laplace_crps,
}


def has_cdf(each: Distribution) -> bool:
    """Whether the family has overridden torch's own, which only raises."""
    return type(each).cdf is not Distribution.cdf


def moments_of(
    averages: tuple[Tensor, ...], centre: Parameters, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, aleatoric and epistemic [B, D], from averages of mean, variance and the square of the
    distance to the centre."""
    mean, aleatoric, square = (over_chains(t) for t in averages)
    epistemic = (square - (mean - centre[0]).square()).clamp_min(0)
    return mean.to(dtype), aleatoric.to(dtype), epistemic.to(dtype)


def exported_moments(means: Tensor, variances: Tensor) -> dict[str, Tensor]:
    """From draws [S, B, D], each [B, D]."""
    mean, aleatoric = means.mean(0), variances.mean(0)
    epistemic = (means - mean).square().mean(0)
    std = (aleatoric + epistemic).sqrt()
    return {"mean": mean, "std": std, "aleatoric": aleatoric, "epistemic": epistemic}
