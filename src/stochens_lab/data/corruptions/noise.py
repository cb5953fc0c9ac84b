"""Noise in every number of an image: Gaussian, speckle, shot, impulse."""

from functools import cache

import torch
from torch import Tensor

from stochens_lab.data.corruptions.draws import normal, uniform
from stochens_lab.data.corruptions.filters import divide, to_bytes, unit


def gaussian_noise(x: Tensor, keys: Tensor, sd: float) -> Tensor:
    """y = x + sd z,  z ~ N(0, 1)."""
    return to_bytes(unit(x) + normal(keys, *x.shape[1:]) * sd)


def speckle_noise(x: Tensor, keys: Tensor, sd: float) -> Tensor:
    """y = x + x sd z,  z ~ N(0, 1)."""
    x = unit(x)
    return to_bytes(x + x * (normal(keys, *x.shape[1:]) * sd))


def shot_noise(x: Tensor, keys: Tensor, photons: float) -> Tensor:
    """y = k / photons,  k ~ Poisson(x photons).

    By inversion, k = #{j: F_x(j) < u}: there are only 256 values of x, so F is a table. Row v of it
    is raised by v, and one search serves all rows. Counts above `photons` are white, all of them.
    """
    count = int(photons)
    table = _poisson_table(count).to(x.device)  # [256 * count]
    u = uniform(keys, *x.shape[1:]).add_(x)
    k = torch.searchsorted(table, u).sub_(x.long() * count).clamp_(0, count)
    return to_bytes(divide(k.double(), photons))


@cache
def _poisson_table(count: int) -> Tensor:
    """v + P(k <= j),  k ~ Poisson(v / 255 count),  at place v count + j."""
    rate = torch.arange(256).double().unsqueeze(1) / 255 * count  # [256, 1]
    k = torch.arange(count).double()  # [K]
    log_p = torch.xlogy(k, rate) - rate - torch.lgamma(k + 1)
    return (torch.arange(256).unsqueeze(1) + log_p.exp().cumsum(1).clamp(max=1)).flatten()


def impulse_noise(x: Tensor, keys: Tensor, amount: float) -> Tensor:
    """y = 1 or 0 with probability amount / 2 each, else x."""
    u = uniform(keys, *x.shape[1:])
    return x.masked_fill(u < amount, 0).masked_fill(u < amount / 2, 255)
