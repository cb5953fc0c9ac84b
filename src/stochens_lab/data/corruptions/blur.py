"""Blur: Gaussian, out of focus, through frosted glass, by zooming."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from stochens_lab.data.corruptions.draws import uniform
from stochens_lab.data.corruptions.filters import correlate, disk, gaussian_filter, to_bytes, unit
from stochens_lab.data.corruptions.published import SIDE


def gaussian_blur(x: Tensor, keys: Tensor, sigma: float) -> Tensor:
    """y = G_sigma x."""
    return to_bytes(gaussian_filter(unit(x), sigma))


def defocus_blur(x: Tensor, keys: Tensor, radius: float, sigma: float) -> Tensor:
    """y = D x,  D a disk with a blurred edge."""
    return to_bytes(correlate(unit(x), disk(radius, sigma)))


def glass_blur(x: Tensor, keys: Tensor, sigma: float, rounds: float) -> Tensor:
    """y = G_sigma M ... M G_sigma x,  where M moves pixels, once for each round:

        (M x)_{h, w} = x_{h - a, w - b},   a, b ~ Bernoulli(1/2),   h, w = 2, ..., 31

    The published loop means to swap pixels one after the other, but the two sides of its swap
    share memory, so that it copies one onto the other. It goes up and to the left, towards the
    pixels that it copies, so each copy is of an untouched pixel and all can be made at once.
    """
    x = to_bytes(gaussian_filter(unit(x), sigma))
    line = torch.arange(SIDE, device=x.device)
    inside = (line >= 2).unsqueeze(1) & (line >= 2)  # [H, W]
    for move in range(int(rounds)):
        up, left = (uniform(keys, 2, SIDE, SIDE, skip=move * 2 * SIDE**2) < 0.5).unbind(1)
        source = line.unsqueeze(1) * SIDE + line - (up.long() * SIDE + left.long()) * inside
        source = source.flatten(1).unsqueeze(1).expand(-1, 3, -1)  # [B, 3, H * W]
        x = x.flatten(2).gather(2, source).view_as(x)
    return to_bytes(gaussian_filter(unit(x), sigma))


def zoom_blur(x: Tensor, keys: Tensor, end: float) -> Tensor:
    """y = (x + sum_z Z_z x) / (1 + #z),  z = 1, 1.01, ...;  Z_z magnifies the middle by z.

    All of it is one matrix on the pixels of a channel.
    """
    flat = unit(x).flatten(2)  # [B, 3, H * W]
    return to_bytes((flat @ _zoom_operator(end).to(x.device)).view_as(x), slack=1e-6)


@cache
def _zoom_operator(end: float) -> Tensor:
    """The transposed matrix of zoom_blur, float64 [H * W, H * W]."""
    factors = np.arange(1, end, 0.01)
    lines = torch.stack([zoom_line(float(factor)) for factor in factors])  # [Z, H, H]
    total = torch.einsum("zij,zkl->ikjl", lines, lines).reshape(SIDE**2, SIDE**2)
    total += torch.eye(SIDE**2, dtype=torch.float64)
    return (total / (len(factors) + 1)).T.contiguous()


def zoom_line(factor: float) -> Tensor:
    """One axis of Z: float64 [H, H].

    The middle ceil(H / z) pixels become round(z ceil(H / z)) by linear interpolation, the first on
    the first and the last on the last, of which the middle H are kept.

    >>> zoom_line(1.0).equal(torch.eye(32).double())
    True
    """
    crop = int(np.ceil(SIDE / factor))
    size = round(crop * factor)
    place = (torch.arange(SIDE) + (size - SIDE) // 2).double() * ((crop - 1) / (size - 1))
    pixel = torch.arange(SIDE) - (SIDE - crop) // 2  # their places within the crop
    return (1 - (place.unsqueeze(1) - pixel).abs()).clamp(min=0)
