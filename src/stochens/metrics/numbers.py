"""Metrics of predicted numbers: CRPS, interval score, pinball loss."""

import math

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.metrics.inputs import checked_real, with_targets
from stochens.metrics.terms import averages

SQRT_PI_2 = math.sqrt(math.pi / 2)
NEAR = 1e-4  # relative difference of two scales from which on the formula for equal ones is as good


@averages
def crps(draws: Tensor, y: Tensor) -> Tensor:
    """CRPS = mean_bd E|Y - y| - 1/2 E|Y - Y'|, from n >= 2 draws of Y; in the units of y.

    draws [n, B, D], y [B, D]. It is the unbiased (fair) estimate: pairs of different draws.

    >>> crps(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[1.0]]))  # 1 - 2 / 2
    0.0
    """
    draws, y = with_targets(draws, y)
    n = len(draws)
    if n < 2:
        raise InputError("crps needs two draws of y or more, got 1; use p.sample(1000)")
    ordered = draws.sort(0).values
    rank = torch.arange(1, n + 1, device=draws.device, dtype=torch.double)
    weights = (2 * rank - n - 1).view(-1, 1, 1)  # sum_ij |y_i - y_j| = 2 sum_i (2 i - n - 1) y_(i)
    pairs = (weights * ordered).sum(0) / (n * (n - 1))
    return ((draws - y).abs().mean(0) - pairs).mean(-1)


@averages
def gaussian_crps(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """CRPS of the equal mixture of Gaussians, exactly: mean_bd E|Y - y| - 1/2 E|Y - Y'|.

    means, variances [S, B, D], y [B, D] (Grimit et al. 2006)

    >>> round(gaussian_crps(torch.zeros(1, 1, 1), torch.ones(1, 1, 1), torch.zeros(1, 1)), 4)
    0.2337
    """
    means, y = with_targets(means, y)
    variances = checked_real(variances, "variances", means)
    return gaussian_crps_terms(means, variances, y).mean(-1)


def gaussian_crps_terms(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """Of each target, [B, D]."""
    pairs = torch.zeros_like(y)
    for mean, variance in zip(means, variances, strict=True):  # S at a time, and not S^2
        pairs += _distance(means - mean, (variances + variance).sqrt()).mean(0) / len(means)
    return _distance(y - means, variances.sqrt()).mean(0) - pairs / 2


def _distance(mean: Tensor, sd: Tensor) -> Tensor:
    """E|Z| of Z ~ N(mean, sd^2) = mean erf(z / sqrt 2) + 2 sd phi(z),  z = mean / sd"""
    z = mean / sd
    value = mean * torch.erf(z / math.sqrt(2)) + sd / SQRT_PI_2 * (-z.square() / 2).exp()
    return value.where(sd > 0, mean.abs())


@averages
def laplace_crps(locs: Tensor, scales: Tensor, y: Tensor) -> Tensor:
    """CRPS of the equal mixture of Laplace distributions, exactly.

    locs, scales [S, B, D], y [B, D]

    >>> laplace_crps(torch.zeros(1, 1, 1), torch.ones(1, 1, 1), torch.zeros(1, 1))
    0.25
    """
    locs, y = with_targets(locs, y)
    scales = checked_real(scales, "scales", locs)
    return laplace_crps_terms(locs, scales, y).mean(-1)


def laplace_crps_terms(locs: Tensor, scales: Tensor, y: Tensor) -> Tensor:
    """Of each target, [B, D]: E|Y - y| = d + b exp(-d / b), d = |y - loc|."""
    far = (y - locs).abs()
    pairs = torch.zeros_like(y)
    for loc, scale in zip(locs, scales, strict=True):
        pairs += _laplace_distance((locs - loc).abs(), scales, scale).mean(0) / len(locs)
    return (far + scales * (-far / scales).exp()).mean(0) - pairs / 2


def _laplace_distance(d: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """E|Y - Y'| of two Laplace variables d apart, of scales a and b:

    d + (a^3 exp(-d / a) - b^3 exp(-d / b)) / (a^2 - b^2),  and  d + (3 s + d) / 2 exp(-d / s)
    where both are s.
    """
    middle = (a + b) / 2
    alike = (a - b).abs() <= NEAR * middle
    same = (3 * middle + d) / 2 * (-d / middle).exp()
    gap = (a.square() - b.square()).where(~alike, 1.0)
    apart = (a.pow(3) * (-d / a).exp() - b.pow(3) * (-d / b).exp()) / gap
    return d + torch.where(alike, same, apart)


@averages
def interval_score(low: Tensor, high: Tensor, y: Tensor, level: float = 0.95) -> Tensor:
    """mean_bd (high - low) + 2 / (1 - level) (low - y)^+ + 2 / (1 - level) (y - high)^+

    of central intervals that hold y with probability `level`; low, high, y all [B] or all [B, D]
    (Gneiting and Raftery 2007). The smallest is the best.

    >>> interval_score(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([1.5]), 0.5)
    3.0
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level!r}")
    low, high, y = (checked_real(t, n, y) for t, n in ((low, "low"), (high, "high"), (y, "y")))
    beyond = (low - y).clamp_min(0) + (y - high).clamp_min(0)
    return (high - low + 2 / (1 - level) * beyond).reshape(len(y), -1).mean(-1)


@averages
def pinball(quantile: Tensor, y: Tensor, level: float) -> Tensor:
    """mean_bd max(level (y - q), (level - 1) (y - q)) of the quantile at `level`.

    quantile, y both [B] or both [B, D]. Twice the mean over all levels is the CRPS.

    >>> pinball(torch.tensor([0.0]), torch.tensor([2.0]), 0.75)
    1.5
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level!r}")
    error = checked_real(y, "y", y) - checked_real(quantile, "quantile", y)
    return torch.maximum(level * error, (level - 1) * error).reshape(len(y), -1).mean(-1)
