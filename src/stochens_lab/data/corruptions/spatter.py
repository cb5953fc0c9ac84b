"""Drops of water (intensities 1 to 3) or of mud (4 and 5) on the lens."""

import torch
from torch import Tensor

from stochens_lab.data.corruptions.draws import normal
from stochens_lab.data.corruptions.filters import correlate, divide, gaussian_filter
from stochens_lab.data.corruptions.outlines import canny, chamfer_distance, equalise

# Hendrycks and Dietterich (2019)
WATER, MUD = (175, 238, 238), (63, 42, 20)  # red, green, blue
CANNY_LOW, CANNY_HIGH = 50, 150
FARTHEST = 20.0  # pixels from an outline, more count as this
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))  # light from the upper left
SOLID = 0.8  # thinner mud is none


def spatter(
    x: Tensor,
    keys: Tensor,
    mean: float,
    sd: float,
    sigma: float,
    threshold: float,
    strength: float,
    muddy: float,
) -> Tensor:
    """y = x + m water  or  y = (1 - m) x + m mud,  where the liquid G_sigma N(mean, sd) is high."""
    liquid = gaussian_filter(mean + sd * normal(keys, *x.shape[2:]), sigma)  # [B, H, W]
    x = divide(x.float(), 255)
    if muddy:
        m = mud_layer(liquid, threshold, sigma=strength).float().unsqueeze(1)
        y = x * (1 - m) + _colour(MUD, x) * m
    else:
        y = x + (water_layer(liquid, threshold) * strength).unsqueeze(1) * _colour(WATER, x)
    return (y.clamp(0, 1) * 255).to(torch.uint8)


def _colour(rgb: tuple[int, int, int], x: Tensor) -> Tensor:
    return divide(x.new_tensor(rgb, dtype=torch.float64), 255).float().view(3, 1, 1)


def mud_layer(liquid: Tensor, threshold: float, *, sigma: float) -> Tensor:
    """m = G_sigma [liquid > threshold],  0 where it is below 0.8; float64 [B, H, W]."""
    m = gaussian_filter((liquid > threshold).double(), sigma)
    return m.masked_fill(m < SOLID, 0)


def water_layer(liquid: Tensor, threshold: float) -> Tensor:
    """m = liquid * relief / max,  float32 in [0, 1], [B, H, W].

    The relief is the distance to the nearest outline of a drop, spread over all grey levels and
    lit from one side. An image without a drop (there the published formula is 0 / 0) gets m = 0.
    """
    # as bytes, where numbers from 1 on start again from 0, as they do in the published code
    grey = (liquid.masked_fill(liquid < threshold, 0) * 255).int() & 255
    away = chamfer_distance(canny(grey, low=CANNY_LOW, high=CANNY_HIGH)).clamp(max=FARTHEST)
    levels = equalise(_mean3(away.double()).float().int())
    relief = correlate(levels.double().unsqueeze(1), torch.tensor(RELIEF)).squeeze(1)
    relief = _mean3(relief.clamp(0, 255)).round().float()
    m = grey.float() * relief
    top = m.amax((1, 2), keepdim=True)
    return m / torch.where(top > 0, top, 1)


def _mean3(x: Tensor) -> Tensor:
    """The mean of 3 x 3 pixels; x float64 [B, H, W]. The sum is exact: OpenCV's, in any order."""
    return correlate(x.unsqueeze(1), torch.ones(3, 3)).squeeze(1) * (1 / 9)
