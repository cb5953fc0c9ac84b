"""Random numbers of an image: a pure function of its key and a counter, on every device.

    key_i = mix(seed of (seed, name, intensity) + i * GOLDEN),   number_k = mix(key_i + k * GOLDEN)

So an image's numbers do not depend on the images beside it, nor on how a set is cut in chunks.
"""

import math

import torch
from torch import Tensor

from stochens.randomness.hashed import GOLDEN, mix
from stochens.randomness.seeds import derive

CORRUPTION = 0x434F5252  # this purpose of a seed


def image_keys(
    first: int, count: int, *, seed: int, name: str, intensity: int, device: torch.device
) -> Tensor:
    """The keys of the images first, ..., first + count - 1, int64 [count]."""
    base = derive(seed, CORRUPTION, *name.encode(), intensity)
    return mix(torch.arange(first, first + count, device=device) * GOLDEN + base)


def uniform(keys: Tensor, *shape: int, skip: int = 0) -> Tensor:
    """float64 in (0, 1), [B, *shape], from the counters skip + 1, skip + 2, ...

    >>> keys = torch.arange(3)
    >>> uniform(keys, 4)[:, 2:].equal(uniform(keys, 2, skip=2))
    True
    """
    counter = torch.arange(skip + 1, skip + 1 + math.prod(shape), device=keys.device)
    bits = mix(keys.unsqueeze(1) + counter * GOLDEN).bitwise_right_shift_(12)
    # 52 bits, so that the half that keeps 0 and 1 out is exact
    numbers = bits.bitwise_and_((1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)
    return numbers.view(len(keys), *shape)


def normal(keys: Tensor, *shape: int) -> Tensor:
    """float64 from N(0, 1), [B, *shape], two from each pair of uniform numbers (Box and Muller).

    z_1 = sqrt(-2 log u) cos(2 pi v),   z_2 = sqrt(-2 log u) sin(2 pi v)
    """
    half = (math.prod(shape) + 1) // 2
    radius, angle = uniform(keys, 2, half).unbind(1)
    radius = radius.log_().mul_(-2).sqrt_()
    angle = angle.mul_(2 * math.pi)
    z = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)
    return z[:, : math.prod(shape)].view(len(keys), *shape)
