"""The noise of mini-batches, measured while a chain burns in and taken off what is injected.

The gradients g and g' of two neighbouring steps differ by the noise of their batches, and a little
by what the chain moved, so that

    n = E (g' - g)^2 / 2,   [M, D],

is the variance of that noise. A kick of variance  2 (1 - beta) T - s^2 n  in the place of
2 (1 - beta) T  makes both together what they should be (Chen et al. 2014, with a diagonal
estimate). Noise that is correlated is more than that in some directions, and less in others. The
direction v in which s (g' - g) is largest is looked for by Oja's rule (1982). On a full batch it is
the stiffest one: there s (g' - g) = s^2 a p, a being the curvature.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The most that the variance of draws may be too large by, along v, when lr is chosen for them.
NOISY = 0.25  # before the diagonal of the noise is taken off, which is most of it, or some
COARSE = 0.05  # by the size of steps
PULL = 0.1  # of a difference on v; as many as ten of them count


class Noise(NamedTuple):
    """What is known of the noise of each chain. `looks` differences have been seen."""

    last: Tensor  # [M, D], the gradient of the step before
    square: Tensor  # [M, D], the sum of (g' - g)^2 / 2
    v: Tensor  # [M, D], of length 1, in the coordinates q / s
    along: Tensor  # [M], float64: the variance of the noise along it
    rate: Tensor  # [M], float64: what the lr of each chain is multiplied by


def unknown(v: Tensor) -> Noise:
    """v [M, D]: where the search for the largest direction begins."""
    v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
    zero, one = torch.zeros_like(v), torch.ones(len(v), dtype=torch.float64, device=v.device)
    return Noise(zero, zero.clone(), v, torch.zeros_like(one), one)


def seen(noise: Noise, g: Tensor, scaled: Tensor, looks: int) -> Noise:
    """After the gradient g of one more step; the first is only kept, to be compared with.

    scaled: s (g' - g) / sqrt(2), or what of it the largest direction is looked for in.
    """
    if looks == 0:
        return noise._replace(last=g, square=torch.zeros_like(g))
    half = (g - noise.last) / math.sqrt(2)
    square = noise.square + half.square()
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True).double()  # [M, 1]
    inner = (scaled.double() * noise.v).sum(1, keepdim=True)
    # v += PULL (u . v) u,  u = scaled / |scaled|
    v = noise.v + PULL * (inner / length.square()).to(g) * scaled
    v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
    v = torch.where((length > 0) & v.isfinite().all(1, keepdim=True), v, noise.v)
    along = noise.along + PULL * (inner.squeeze(1).square() - noise.along)
    return noise._replace(last=g, square=square, v=v, along=along)


def noise_share(noise: Noise, kick: float) -> Tensor:
    """By how much the noise of mini-batches makes variances too large along v, as a share of the
    most that is allowed, [M]."""
    return noise.along / kick / NOISY


def step_share(noise: Noise, momentum: float, temperature: float) -> Tensor:
    """Likewise the size of full-batch steps, [M]: by  x / (2 (1 + beta)),  x = s^2 a.

    The variance along v is  x^2 T / (1 + beta),  since that of p is 2 T / (1 + beta).
    """
    x = (noise.along * (1 + momentum) / temperature).sqrt()
    return x / (2 * (1 + momentum)) / COARSE


def cooled(noise: Noise, share: Tensor) -> Noise:
    """With a `rate` so much lower that a share [M] above 1, which grows like lr, comes down to 1.

    On a grid, so that a last bit, which the other chains may change, does not matter.
    """
    wanted = (1 / share).clamp(max=1.0).nan_to_num(1.0)
    return noise._replace(rate=noise.rate * torch.exp2(torch.floor(4 * torch.log2(wanted)) / 4))


def kick_variance(
    noise: Noise,
    looks: int,
    s: Tensor | float,
    kick: float,
    held: Tensor | float = 0.0,
) -> Tensor | float:
    """What is injected, [M, D], where batches bring noise of their own. held: what of its variance
    is seen to by the friction of directions."""
    if looks == 0:
        return kick
    own = (s * s * (noise.square / looks) - held).clamp_min(0.0)
    return (kick - own).clamp_min(0.0)
