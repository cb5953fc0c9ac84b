"""What chance does to the expected calibration error, and how far from the measured one the true
one can be.

With g_k the true gap of bin k, accuracy minus confidence, the measured one is d_k ~ N(g_k, s_k^2).
ECE measures sum_k w_k |d_k| and means sum_k w_k |g_k|. Chance adds to it, most where g_k = 0:

    excess(g, s) = E|d| - |g| = 2 (s phi(g / s) - g Phi(-g / s)),   g >= 0,   which falls with g.

So the measured one is the true one, plus sum_k w_k excess(|g_k|, s_k), plus a fluctuation whose
standard deviation is at most sigma = sqrt(sum_k w_k^2 s_k^2), since |.| never widens. This gives

    measured - chance - z sigma  <=  true  <=  measured + z sigma,
    chance = sum_k w_k excess(max(|d_k| - z s_k, 0), s_k),

where the excess is taken at the smallest gap that is likely. Both ends hold at least as often as
they say; of a calibrated model, whose gaps are all chance, the lower end is 0.

Places of one example (pixels, tokens, labels of yes or no) depend on each other. Where `alike` of
them tell as much as one alone, s_k is that of count / alike independent ones. Errors of several
bins vary together then, and bins have more of some examples than of others: sigma^2 is `together`
times that of independent places, or the sum above if that is more. Where places are wrong together
and seldom, few examples tell little: 95 % may be 85 %, but an interval for accuracy has less.
"""

import math

import torch
from torch import Tensor

NORMAL = torch.distributions.Normal(0.0, 1.0, validate_args=False)


def bounds(
    confidence: Tensor,
    accuracy: Tensor,
    count: Tensor,
    *,
    level: float,
    alike: Tensor | float = 1.0,
    together: float = 1.0,
) -> tuple[float, float]:
    """The ends of an interval for the true error, of the bins' curve; all [bins], none empty.

    alike [bins], together: how many places tell as much as one alone, in each bin and of the whole.
    """
    count = count.double()
    weight = count / count.sum()
    gap = (accuracy - confidence).abs()
    s = spread(accuracy, count / alike)
    z = float(NORMAL.icdf(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    measured = float((weight * gap).sum())
    by_bins = (weight * s).square().sum()
    whole = together * (weight * spread(accuracy, count)).square().sum()
    fluctuation = z * float(torch.maximum(by_bins, whole).sqrt())
    chance = float((weight * excess((gap - z * s).clamp_min(0), s)).sum())
    return max(measured - chance - fluctuation, 0.0), min(measured + fluctuation, 1.0)


def spread(accuracy: Tensor, count: Tensor) -> Tensor:
    """The standard deviation of the accuracy of so many independent places."""
    likely = (count * accuracy + 1) / (count + 2)  # Laplace's rule: one example tells no spread
    return (likely * (1 - likely) / count).sqrt()


def excess(gap: Tensor, s: Tensor) -> Tensor:
    """E|d| - gap for d ~ N(gap, s^2), gap >= 0.

    >>> excess(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))  # at first sqrt(2 / pi)
    tensor([0.7979, 0.1666])
    """
    ratio = gap / s
    density = (-0.5 * ratio.square()).exp() / math.sqrt(2 * math.pi)
    beyond: Tensor = NORMAL.cdf(-ratio)
    return 2 * (s * density - gap * beyond)
