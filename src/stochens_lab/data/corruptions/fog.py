"""Fog: a plasma fractal laid over the image."""

import torch
from torch import Tensor

from stochens_lab.data.corruptions.draws import uniform
from stochens_lab.data.corruptions.filters import to_bytes, unit
from stochens_lab.data.corruptions.published import SIDE

WIBBLE = 100.0  # Hendrycks and Dietterich (2019): the fractal's first step


def fog(x: Tensor, keys: Tensor, thickness: float, decay: float) -> Tensor:
    """y = (x + thickness f) m / (m + thickness),  m = max x of the image,  f the fractal."""
    x = unit(x)
    top = x.amax((1, 2, 3), keepdim=True)
    x = x + thickness * plasma(keys, SIDE, decay=decay).unsqueeze(1)
    return to_bytes(x * top / (top + thickness))


def plasma(keys: Tensor, side: int, *, decay: float) -> Tensor:
    """Fractal landscapes in [0, 1], periodic, [B, side, side]: the diamond-square algorithm.

    From coarse to fine, the middle of each square and then of each diamond becomes the mean of its
    four corners + U(-w^2, w^2), and w falls by the factor `decay` from one scale to the next.

    >>> f = plasma(torch.arange(2), 8, decay=2.0)
    >>> f.amin((1, 2)).tolist(), f.amax((1, 2)).tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """
    f = torch.zeros(len(keys), side, side, dtype=torch.float64, device=keys.device)
    step, wibble, used = side, WIBBLE, 0

    def add_wibble(total: Tensor) -> Tensor:
        nonlocal used
        u = uniform(keys, *total.shape[1:], skip=used)
        used += total[0].numel()
        return total / 4 + wibble * ((2 * u - 1) * wibble)

    while step >= 2:
        half = step // 2
        corners = f[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        f[:, half::step, half::step] = add_wibble(pairs + pairs.roll(-1, 2))
        middles = f[:, half::step, half::step]
        right = middles + middles.roll(1, 1) + (corners + corners.roll(-1, 2))
        f[:, ::step, half::step] = add_wibble(right)
        below = middles + middles.roll(1, 2) + (corners + corners.roll(-1, 1))
        f[:, half::step, ::step] = add_wibble(below)
        step, wibble = half, wibble / decay
    f -= f.amin((1, 2), keepdim=True)
    return f / f.amax((1, 2), keepdim=True)
