"""The regularised incomplete beta function, which torch does not have, in float64."""

import numpy as np
import torch
from torch import Tensor

STEPS = 10_000  # of the continued fraction; it takes about the root of the larger parameter
LARGE = 3000.0  # both parameters above this: by quadrature of the density near x
NODES, WEIGHTS = np.polynomial.legendre.leggauss(32)
TINY = 1e-300  # in the place of 0 in a denominator


def betainc(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """I_x(a, b), with rest = 1 - x, which the caller knows to more digits than 1 - x has.

    Both ways are those of Press et al., Numerical Recipes (2007), section 6.4.

    >>> half = torch.tensor(0.5)
    >>> betainc(torch.tensor(2.0), torch.tensor(3.0), half, half)
    tensor(0.6875, dtype=torch.float64)
    """
    a, b, x, rest = torch.broadcast_tensors(*(t.double() for t in (a, b, x, rest)))
    swapped = x > (a + 1) / (a + b + 2)  # where the other tail converges faster
    first, second = torch.where(swapped, b, a), torch.where(swapped, a, b)
    at, beyond = torch.where(swapped, rest, x), torch.where(swapped, x, rest)
    tail = _by_fraction(first, second, at, beyond)
    found = torch.where(swapped, 1 - tail, tail)
    large = (a > LARGE) & (b > LARGE)
    if bool(large.any()):
        safe = a.where(large, 2 * LARGE), b.where(large, 2 * LARGE)
        found = torch.where(large, _by_quadrature(*safe, x), found)
    found = found.where(x > 0, 0.0).where(rest > 0, 1.0).clamp(0, 1)
    return found.where(~(a + b + x).isnan(), torch.nan)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


def _by_fraction(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """x^a (1 - x)^b / (a B(a, b)) times a continued fraction, by Lentz's method."""

    def away(t: Tensor) -> Tensor:
        return t.where(t.abs() > TINY, TINY)

    x, rest = x.clamp_min(TINY), rest.clamp_min(TINY)
    c = torch.ones_like(x)
    d = 1 / away(1 - (a + b) * x / (a + 1))
    h = d
    settled = torch.zeros_like(x, dtype=torch.bool)
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / away(1 + even * d), away(1 + even / c)
        h = h.where(settled, h * d * c)
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / away(1 + odd * d), away(1 + odd / c)
        step = d * c
        h = h.where(settled, h * step)
        settled = settled | ((step - 1).abs() < 1e-15) | ~step.isfinite()
        if m % 16 == 0 and bool(settled.all()):
            break
    front = (a * x.log() + b * rest.log() - _log_beta(a, b)).exp()
    return front * h / a


def _by_quadrature(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The density from x outwards, over ten standard deviations at least."""
    mean = a / (a + b)
    sd = (a * b / ((a + b).square() * (a + b + 1))).sqrt()
    above = x > mean
    end = torch.where(
        above,
        torch.maximum(mean + 10 * sd, x + 5 * sd).clamp_max(1.0),
        torch.minimum(mean - 10 * sd, x - 5 * sd).clamp_min(0.0),
    )
    total = torch.zeros_like(x)
    for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        t = (x + (end - x) * (node + 1) / 2).clamp(TINY, 1 - 2**-53)
        log_density = (a - 1) * (t / mean).log() + (b - 1) * ((1 - t) / (1 - mean)).log()
        total = total + weight / 2 * log_density.exp()
    front = (a - 1) * mean.log() + (b - 1) * (1 - mean).log() - _log_beta(a, b)
    tail = total * (end - x).abs() * front.exp()
    return torch.where(above, 1 - tail, tail)
