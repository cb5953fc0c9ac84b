"""Brightness, contrast and saturation. Images here are [B, 3, H, W], float64 in [0, 1]."""

import torch
from torch import Tensor

from stochens_lab.data.corruptions.filters import divide, to_bytes, unit

# Which of (v, q, p, t) is red, green and blue, in each sixth of the circle of hues.
SECTORS = ((0, 3, 2), (1, 0, 2), (2, 0, 3), (2, 1, 0), (3, 2, 0), (0, 2, 1))


def rgb_to_hsv(x: Tensor) -> Tensor:
    """Hue, saturation, value, each in [0, 1]; grey has hue and saturation 0.

    v = max(r, g, b),  d = v - min(r, g, b),  s = d / v,
    h = (g - b) / d, 2 + (b - r) / d or 4 + (r - g) / d, in sixths, for v = r, g or b

    >>> rgb_to_hsv(torch.tensor([0.0, 1.0, 0.0]).view(1, 3, 1, 1)).flatten().tolist()
    [0.333..., 1.0, 1.0]
    """
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    range_ = value - x.amin(1)
    some = torch.where(range_ > 0, range_, 1)
    hue = torch.where(red == value, (green - blue) / some, 0)
    hue = torch.where(green == value, 2 + (blue - red) / some, hue)
    hue = torch.where(blue == value, 4 + (red - green) / some, hue)
    hue = torch.where(range_ > 0, divide(hue, 6) % 1, 0)
    return torch.stack([hue, range_ / torch.where(value > 0, value, 1), value], 1)


def hsv_to_rgb(x: Tensor) -> Tensor:
    """p = v (1 - s),  q = v (1 - f s),  t = v (1 - (1 - f) s),  f the part of the sixth of the hue.

    >>> hsv_to_rgb(torch.tensor([0.5, 1.0, 1.0]).view(1, 3, 1, 1)).flatten().tolist()
    [0.0, 1.0, 1.0]
    """
    hue, saturation, value = x.unbind(1)
    sector = (hue * 6).floor()
    part = hue * 6 - sector
    p = value * (1 - saturation)
    q = value * (1 - part * saturation)
    t = value * (1 - (1 - part) * saturation)
    which = torch.tensor(SECTORS, device=x.device)[sector.long() % 6]  # [B, H, W, 3]
    return torch.stack([value, q, p, t], 1).gather(1, which.permute(0, 3, 1, 2))


def brightness(x: Tensor, keys: Tensor, shift: float) -> Tensor:
    """v <- clip(v + shift, 0, 1)."""
    hsv = rgb_to_hsv(unit(x))
    hsv[:, 2] = (hsv[:, 2] + shift).clamp(0, 1)
    return to_bytes(hsv_to_rgb(hsv))


def saturate(x: Tensor, keys: Tensor, factor: float, shift: float) -> Tensor:
    """s <- clip(factor s + shift, 0, 1)."""
    hsv = rgb_to_hsv(unit(x))
    hsv[:, 1] = (hsv[:, 1] * factor + shift).clamp(0, 1)
    return to_bytes(hsv_to_rgb(hsv))


def contrast(x: Tensor, keys: Tensor, factor: float) -> Tensor:
    """y = factor (x - mean) + mean,  the mean of each channel of each image."""
    # a sum of whole numbers: the same in any order
    total = x.sum((2, 3), keepdim=True, dtype=torch.int64)
    mean = divide(total.double(), 255 * x.shape[2] * x.shape[3])
    return to_bytes((unit(x) - mean) * factor + mean)
