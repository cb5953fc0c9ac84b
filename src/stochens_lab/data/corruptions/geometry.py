"""Where the pixels are: elastic transform and pixelate."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from stochens_lab.data.corruptions.draws import uniform
from stochens_lab.data.corruptions.filters import gaussian_filter, to_bytes, unit
from stochens_lab.data.corruptions.published import SIDE

CENTRE, ARM = SIDE // 2, SIDE // 3  # of the three points that define the affine part
PRECISION_BITS = 22  # of Pillow's resampling weights for bytes


def elastic_transform(
    x: Tensor, keys: Tensor, strength: float, sigma: float, affine: float
) -> Tensor:
    """An affine map, then a smooth displacement, both read between pixels (bilinear):

        y(u) = x'(u + d(u)),  d = strength G_sigma U(-1, 1),   x' = x of an affine map that moves
        three points by U(-affine, affine) each

    Lengths are in units of the image's side. Older versions of OpenCV read the affine map at
    places rounded to 1/32 pixel, so the official images have that too; here nothing is rounded.
    """
    corners = (2 * uniform(keys, 3, 2) - 1) * (affine * SIDE)  # [B, 3, (x, y)]
    moved = bilinear(unit(x), affine_places(corners), mirror="pixel")
    noise = 2 * uniform(keys, 2, SIDE, SIDE, skip=corners[0].numel()) - 1
    shift = gaussian_filter(noise, sigma * SIDE, border="reflect", truncate=3.0)
    places = _grid(x.device) + shift.permute(0, 2, 3, 1) * (strength * SIDE)
    return to_bytes(bilinear(moved, places, mirror="edge"), slack=1e-6)


def _grid(device: torch.device) -> Tensor:
    line = torch.arange(SIDE, dtype=torch.float64, device=device)
    return torch.stack([line.expand(SIDE, SIDE), line.unsqueeze(1).expand(SIDE, SIDE)], -1)


def affine_places(shift: Tensor) -> Tensor:
    """Where each pixel is read, float64 [B, H, W, (x, y)], when three points move by `shift`.

    The points c + (a, a), c + (a, -a), c - (a, a) go to p_0, p_1, p_2; a pixel at
    p_0 + s (p_1 - p_0) + t (p_2 - p_0)  shows what was at  c + (a, a) - 2 a (t, s + t).

    >>> affine_places(torch.zeros(1, 3, 2).double())[0, 5, 7].tolist()
    [7.0, 5.0]
    """
    c, a = CENTRE, ARM
    p = shift + shift.new_tensor([[c + a, c + a], [c + a, c - a], [c - a, c - a]])  # [B, 3, 2]
    x0, y0 = p[:, 0].view(-1, 2, 1, 1).unbind(1)  # [B, 1, 1]
    x1, y1 = (p[:, 1] - p[:, 0]).view(-1, 2, 1, 1).unbind(1)
    x2, y2 = (p[:, 2] - p[:, 0]).view(-1, 2, 1, 1).unbind(1)
    x, y = _grid(shift.device).unbind(-1)  # [H, W]
    area = x1 * y2 - x2 * y1
    s = ((x - x0) * y2 - (y - y0) * x2) / area
    t = ((y - y0) * x1 - (x - x0) * y1) / area
    return torch.stack([c + a - 2 * a * t, c + a - 2 * a * (s + t)], -1)


def bilinear(x: Tensor, places: Tensor, *, mirror: str) -> Tensor:
    """x [B, C, H, W] read at places [B, H, W, (x, y)], in pixels.

    Outside, the image is mirrored about the middle of its last pixels ("pixel", OpenCV's 101) or
    about their outer edge ("edge", SciPy's reflect).
    """
    if mirror == "pixel":
        places, corners = places * (2 / (SIDE - 1)) - 1, True
    else:
        places, corners = (2 * places + 1) / SIDE - 1, False
    return F.grid_sample(x, places, padding_mode="reflection", align_corners=corners)


def pixelate(x: Tensor, keys: Tensor, share: float) -> Tensor:
    """y = up(down(x)),  to int(share H) pixels and back, each the mean of those below it.

    Pillow's arithmetic for bytes: rows, then columns, each rounded, with weights in fixed point.
    All sums are whole numbers below 2^53, so float64 adds them without error.
    """
    y = x.double()
    for before, after in ((SIDE, int(share * SIDE)), (int(share * SIDE), SIDE)):
        weights = box_weights(before, after).to(x.device)
        for axis in (3, 2):
            total = (y.transpose(axis, 3) @ weights.T).transpose(axis, 3)
            y = ((total + 2 ** (PRECISION_BITS - 1)) * 0.5**PRECISION_BITS).floor().clamp(0, 255)
    return y.to(torch.uint8)


@cache
def box_weights(before: int, after: int) -> Tensor:
    """Pillow's BOX filter along one axis: float64 [after, before], times 2^22, whole numbers.

    A new pixel i is the mean of the old ones whose centre k + 1/2 has
    -1/2 < (k + 1/2 - (i + 1/2) r) / max(r, 1) <= 1/2,   r = before / after

    >>> (box_weights(4, 2) / 2**22).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    ratio = before / after
    new = (torch.arange(after).double().unsqueeze(1) + 0.5) * ratio
    offset = (torch.arange(before) - new + 0.5) / max(ratio, 1.0)
    inside = ((offset > -0.5) & (offset <= 0.5)).double()
    share = inside / inside.sum(1, keepdim=True)
    return (share * 2.0**PRECISION_BITS + 0.5).floor()
