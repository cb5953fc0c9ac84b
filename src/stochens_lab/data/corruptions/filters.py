"""Filters of images [..., H, W], and the way from bytes to numbers and back.

Sums are written out term by term in one order, without convolution libraries: the result is the
same on every device, and that of SciPy to the last bit.
"""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def divide(x: Tensor, by: float) -> Tensor:
    """x / by, rounded once. A GPU multiplies by the reciprocal of a plain number instead, which is
    enough to lose a grey level when bytes are cut off."""
    return x / x.new_full((), by)


def unit(x: Tensor) -> Tensor:
    """x / 255: bytes to float64 in [0, 1]."""
    return divide(x.double(), 255)


def to_bytes(y: Tensor, *, slack: float = 0.0) -> Tensor:
    """floor(255 clip(y, 0, 1)): the published images were cut off, not rounded.

    `slack` (in grey levels) is for sums whose rounding would otherwise decide about a flat area.

    >>> to_bytes(torch.tensor([-1.0, 0.999, 2.0])).tolist()
    [0, 254, 255]
    """
    return (y.clamp(0, 1) * 255 + slack).to(torch.uint8)


@cache
def gaussian_weights(sigma: float, truncate: float) -> tuple[float, ...]:
    """w_k = exp(-k^2 / 2 sigma^2) / sum,  k = 0, ..., int(truncate sigma + 1/2), as in SciPy."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1) ** 2)
    return tuple((weights / weights.sum())[radius:].tolist())


def gaussian_filter(
    x: Tensor, sigma: float, *, border: str = "nearest", truncate: float = 4.0
) -> Tensor:
    """y_i = w_0 x_i + sum_k w_k (x_{i-k} + x_{i+k})  along the rows, then along the columns.

    x is float64 [..., H, W]. Beyond the border stand its pixels again: the last one ("nearest"), or
    the image mirrored with the last one twice ("reflect").

    >>> gaussian_filter(torch.ones(1, 4, 4).double(), 0.5).allclose(torch.ones(1).double())
    True
    """
    weights = gaussian_weights(sigma, truncate) if sigma > 0 else (1.0,)
    radius = len(weights) - 1
    if radius == 0:
        return x
    for axis in (-2, -1):
        n = x.shape[axis]
        places = torch.arange(-radius, n + radius, device=x.device)
        if border == "reflect":
            places = places % (2 * n)
            places = torch.minimum(places, 2 * n - 1 - places)
        wide = x.index_select(axis, places.clamp(0, n - 1))
        x = wide.narrow(axis, radius, n) * weights[0]
        for k in range(radius, 0, -1):  # from the smallest weight to the largest, as SciPy adds
            pair = wide.narrow(axis, radius - k, n) + wide.narrow(axis, radius + k, n)
            x += pair.mul_(weights[k])
    return x


def correlate(x: Tensor, kernel: Tensor) -> Tensor:
    """y_{ij} = sum_{ab} kernel_{ab} x_{i+a, j+b},  mirrored about the last pixels (OpenCV's 101).

    x [B, C, H, W], kernel [K, K] on the CPU, K odd.

    >>> correlate(torch.ones(1, 1, 3, 3), torch.full((3, 3), 2.0))[0, 0, 0, 0].item()
    18.0
    """
    side, (height, width) = len(kernel), x.shape[-2:]
    wide = F.pad(x, [side // 2] * 4, mode="reflect")
    y = torch.zeros_like(x)
    for (row, column), weight in np.ndenumerate(kernel.numpy()):
        if weight:
            part = wide[..., row : row + height, column : column + width]
            y += part if weight == 1 else part * weight.item()
    return y


@cache
def disk(radius: float, sigma: float) -> Tensor:
    """A disk of radius at most 2 with a blurred edge, float32 [7, 7], of sum 1.

    The pixels with  a^2 + b^2 <= radius^2,  equal, filtered by a 3 x 3 Gaussian.
    """
    span = np.arange(-3, 4)
    d = (span[:, None] ** 2 + span**2 <= radius**2).astype(np.float32)
    d /= d.sum()
    tail = math.exp(-0.5 / sigma**2)
    beside, middle = np.float32(tail / (1 + 2 * tail)), np.float32(1 / (1 + 2 * tail))
    for _ in range(2):  # float32 all the way, as the published weights are
        wide = np.pad(d, ((0, 0), (1, 1)))
        d = ((wide[:, :-2] + wide[:, 2:]) * beside + wide[:, 1:-1] * middle).T
    return torch.from_numpy(d.copy())
