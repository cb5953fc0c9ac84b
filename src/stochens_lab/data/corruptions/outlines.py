"""What OpenCV does with outlines, batched: Canny, the chamfer distance, histogram equalisation.

Images are [B, H, W], whole numbers. All is integer arithmetic (but for the scale of equalise), so
that the results are those of OpenCV's own code, exactly.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# OpenCV's fixed point: tan(22.5 degrees) with 15 bits; distances to neighbours with 16 bits:
# beside, diagonal, and a knight's move away (Borgefors 1986)
TAN_BITS, TAN_22 = 15, 13573
UNIT, BESIDE, DIAGONAL, KNIGHT = 65536, 65536, 91750, 143976
FAR = 1 << 28


def canny(grey: Tensor, *, low: int, high: int) -> Tensor:
    """Outlines, bool [B, H, W]: ridges of |dx| + |dy| above `low` that hang together with one above
    `high`. grey holds 0, ..., 255; dx and dy are Sobel's.

    >>> step = torch.zeros(1, 6, 6, dtype=torch.int32)
    >>> step[:, :, 3:] = 200
    >>> canny(step, low=50, high=150)[0, 0].tolist()
    [False, False, True, False, False, False]
    """
    dx, dy = sobel(grey)
    size = dx.abs() + dy.abs()
    wide = F.pad(size, [1] * 4)

    def neighbour(down: int, right: int) -> Tensor:
        rows, columns = size.shape[1:]
        return wide[:, 1 + down : 1 + down + rows, 1 + right : 1 + right + columns]

    flat, steep = dx.abs() * TAN_22, dx.abs() * (TAN_22 + (2 << TAN_BITS))
    rise = dy.abs() << TAN_BITS
    across = (size > neighbour(0, -1)) & (size >= neighbour(0, 1))
    along = (size > neighbour(-1, 0)) & (size >= neighbour(1, 0))
    falling = (size > neighbour(-1, -1)) & (size > neighbour(1, 1))
    rising = (size > neighbour(-1, 1)) & (size > neighbour(1, -1))
    slanted = torch.where((dx ^ dy) < 0, rising, falling)
    ridge = torch.where(rise < flat, across, torch.where(rise > steep, along, slanted))
    weak = ridge & (size > low)
    return grow(weak & (size > high), within=weak)


def sobel(grey: Tensor) -> tuple[Tensor, Tensor]:
    """dx and dy, int32 [B, H, W]: weights 1, 2, 1; beyond the border stand its pixels."""
    wide = F.pad(grey.float().unsqueeze(1), [1] * 4, mode="replicate").squeeze(1).int()
    down = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]  # [B, H, W + 2]
    right = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]  # [B, H + 2, W]
    return down[:, :, 2:] - down[:, :, :-2], right[:, 2:] - right[:, :-2]


def grow(seed: Tensor, *, within: Tensor) -> Tensor:
    """All pixels of `within` (bool) that a path of neighbours joins to `seed`."""
    while True:
        near = F.max_pool2d(seed.float().unsqueeze(1), 3, stride=1, padding=1).squeeze(1) > 0
        larger = near & within
        if larger.equal(seed):
            return seed
        seed = larger


def chamfer_distance(outline: Tensor) -> Tensor:
    """Distance to the nearest True, float32 [B, H, W]: OpenCV's DIST_L2 with mask 5.

    d_p = min_q (d_q + |p - q|),  q up to a knight's move away: one sweep down, one up.

    >>> chamfer_distance(torch.tensor([[[True, False, False], [False, False, False]]])).tolist()
    [[[0.0, 1.0, 2.0], [1.0, 1.39..., 2.19...]]]
    """
    d = torch.where(outline, 0, FAR).int()
    d = _sweep(_sweep(d).flip(1, 2)).flip(1, 2)
    return d.float() / UNIT


def _sweep(d: Tensor) -> Tensor:
    """From the top row down, each row from the two above it and then from left to right."""
    rows, columns = d.shape[1:]
    d = F.pad(d, [2, 2, 2, 0], value=FAR)
    ramp = torch.arange(columns, dtype=torch.int32, device=d.device) * BESIDE
    for row in range(2, rows + 2):
        above, two_above = d[:, row - 1], d[:, row - 2]
        own = d[:, row, 2:-2]
        for line, right, cost in (
            (above, 0, BESIDE),
            (above, -1, DIAGONAL),
            (above, 1, DIAGONAL),
            (above, -2, KNIGHT),
            (above, 2, KNIGHT),
            (two_above, -1, KNIGHT),
            (two_above, 1, KNIGHT),
        ):
            own = torch.minimum(own, line[:, 2 + right : 2 + right + columns] + cost)
        # min_{k <= j} own_k + (j - k) BESIDE
        d[:, row, 2:-2] = (own - ramp).cummin(1).values + ramp
    return d[:, 2:, 2:-2]


def equalise(grey: Tensor) -> Tensor:
    """Grey levels 0, ..., 255 spread so that each is as frequent; OpenCV's equalizeHist.

    level <- round(255 #{pixels in (lowest, level]} / #{pixels above the lowest}),  in float32; an
    image of one level stays as it is.

    >>> equalise(torch.tensor([[[3, 3], [4, 9]]])).tolist()
    [[[0, 0], [128, 255]]]
    """
    images, pixels = len(grey), grey[0].numel()
    flat = grey.long().flatten(1)
    offset = 256 * torch.arange(images, device=grey.device).unsqueeze(1)
    count = torch.bincount((flat + offset).flatten(), minlength=256 * images).view(images, 256)
    lowest = flat.amin(1, keepdim=True)
    below = count.gather(1, lowest)  # [B, 1]
    rest = pixels - below
    some = rest.clamp(min=1).float()
    scale = torch.full_like(some, 255) / some  # not 255 / some, which torch rounds twice
    level = ((count.cumsum(1) - below).float() * scale).round().long().clamp(0, 255)
    return torch.where(rest > 0, level.gather(1, flat), flat).view_as(grey)
