"""Frost: ice crystals on the window. The published textures are photographs; ours are grown."""

import math
from functools import cache

import torch
from torch import Tensor

from stochens_lab.data.corruptions.draws import image_keys, uniform
from stochens_lab.data.corruptions.filters import gaussian_filter
from stochens_lab.data.corruptions.fog import plasma
from stochens_lab.data.corruptions.published import SIDE

TEXTURES = 5  # Hendrycks and Dietterich (2019) choose among as many
EXTENT = 256  # pixels of a texture's side


def frost(x: Tensor, keys: Tensor, image: float, ice: float) -> Tensor:
    """y = image x + ice t,  t a random piece of a random texture."""
    textures = frost_textures().to(x.device)
    u = uniform(keys, 3)
    which, top, left = (u * u.new_tensor([TEXTURES, EXTENT, EXTENT])).long().unbind(1)
    line = torch.arange(SIDE, device=x.device)
    rows = (top.unsqueeze(1) + line) % EXTENT  # [B, H]
    columns = (left.unsqueeze(1) + line) % EXTENT
    t = textures[which.view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]  # [B, H, W, 3]
    return (image * x.double() + ice * t.permute(0, 3, 1, 2)).clamp(0, 255).to(torch.uint8)


FERNS = 70  # in a texture
FINE = 2  # a texture is drawn larger by this, then reduced
TWIGS = (18, 9)  # on each side of a stem, and on each side of those
APART = 9.0  # pixels between twigs; denser ones are fainter
ANGLE = math.pi / 3  # between a crystal's axes
DEPTH, HAZE = 1.5, 0.7  # how much ice there is, and how much breath between it
ICE = (0.72, 0.86, 1.0)  # red, green, blue: thin ice is blue, thick ice is white


@cache
def frost_textures() -> Tensor:
    """Grey levels 0, ..., 255, float64 [5, 256, 256, 3]; they go on at the opposite side.

    Ferns of ice (a curved stem, twigs at 60 degrees, twigs on those) over a haze:
    t = 255 (1 - exp(-colour (depth ferns + haze)))
    """
    cpu = torch.device("cpu")
    keys = image_keys(0, TEXTURES, seed=0, name="frost texture", intensity=0, device=cpu)
    ferns = torch.stack([_ferns(key.view(1)) for key in keys])
    ice = DEPTH * ferns + HAZE * plasma(keys, EXTENT, decay=1.7)  # [5, EXTENT, EXTENT]
    return 255 * (1 - torch.exp(-ice.unsqueeze(-1) * torch.tensor(ICE, dtype=torch.float64)))


def _ferns(key: Tensor) -> Tensor:
    """The amount of ice, float64 [EXTENT, EXTENT]."""
    side = EXTENT * FINE
    u = uniform(key, 6, FERNS, skip=EXTENT**2)[0]  # after the haze's numbers
    begin, angle = side * u[:2].T, 2 * math.pi * u[2]
    length, bend = (0.1 + 0.35 * u[3] ** 2) * side, 1.5 * (u[4] - 0.5)
    weight = torch.ones(FERNS, dtype=torch.float64)
    ice = _stroke(begin, angle, length, bend, weight)
    for level, twigs in enumerate(TWIGS, 2):
        v = uniform(key, 3, len(begin), twigs, 2, skip=level * EXTENT**2)[0]  # [3, n, twigs, 2]
        t = ((torch.arange(twigs).double() + 0.5) / twigs).view(-1, 1)  # along the stem
        weight = weight * (length / (twigs * APART)).clamp(max=1)
        begin = _along(begin, angle, length, bend, t.flatten()).unsqueeze(2).expand(-1, -1, 2, -1)
        sides = ANGLE * torch.tensor([-1.0, 1.0]) + 0.15 * (v[1] - 0.5)
        angle = (angle.view(-1, 1, 1) + bend.view(-1, 1, 1) * t + sides).flatten()
        length = (length.view(-1, 1, 1) * (1 - t) * (0.2 + 0.4 * v[0])).flatten()
        begin, bend = begin.reshape(-1, 2), 0.6 * (v[2].flatten() - 0.5)
        weight = weight.repeat_interleave(2 * twigs)
        ice += _stroke(begin, angle, length, bend, weight)
    small = ice.clamp(max=4).view(EXTENT, FINE, EXTENT, FINE).mean((1, 3))
    return gaussian_filter(small, 0.4) + 0.25 * gaussian_filter(small, 2.0)


def _along(begin: Tensor, angle: Tensor, length: Tensor, bend: Tensor, t: Tensor) -> Tensor:
    """Points at t in [0, 1] of curved lines, [n, T, 2]: chords of arcs that turn by `bend`."""
    chord = angle.unsqueeze(1) + bend.unsqueeze(1) * t / 2
    way = length.unsqueeze(1) * t
    return begin.unsqueeze(1) + torch.stack([way * chord.sin(), way * chord.cos()], -1)


def _stroke(begin: Tensor, angle: Tensor, length: Tensor, bend: Tensor, weight: Tensor) -> Tensor:
    """Curved lines, thinner outwards, drawn on a large empty texture, [FINE EXTENT] * 2."""
    side = EXTENT * FINE
    points = math.ceil(float(length.max()))
    t = (torch.arange(points).double() + 0.5) / points
    row, column = (_along(begin, angle, length, bend, t).round().long() % side).unbind(-1)
    amount = (weight * length / points).unsqueeze(1) * (1.2 - t)
    ice = torch.zeros(side * side, dtype=torch.float64)
    return ice.index_add_(0, (row * side + column).flatten(), amount.flatten()).view(side, side)
