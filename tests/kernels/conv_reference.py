"""What the kernels conv_*.cu do, in plain torch.

`conv_frn_silu` on [M, B, C, H, W] of any floating type, the noise of it, and `fragments`, which
`conv.pack` makes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from stochens.kernels.conv import Noise
from stochens.kernels.conv_plan import BLOCK, QUAD
from stochens.randomness.noise import hashed_words

EPS = 1e-6


def conv_frn_silu(
    x: Tensor,  # [M, B, inputs, H, W], or [1, B, ...] for all members
    weight: Tensor,  # [M, outputs, inputs, k, k]
    bias: Tensor,  # [M, outputs]
    gamma: Tensor,
    beta: Tensor,
    tau: Tensor,
    residual: Tensor | None = None,  # [M, B, outputs, H', W']
    *,
    stride: int = 1,
    silu: bool = True,
    noise: Noise,
) -> Tensor:
    """y = silu(t + residual), t = max(gamma z / rms(z) + beta, tau), z = conv(x) kept / (1 - p)."""
    x = x.expand(len(weight), *x.shape[1:])
    padding = weight.shape[-1] // 2
    z = torch.stack(
        [
            F.conv2d(one, w, b, stride=stride, padding=padding)
            for one, w, b in zip(x, weight, bias, strict=True)
        ]
    )
    if noise.rate:
        z = z * keep_mask(z.shape, noise) / (1 - noise.rate)
    n = z * torch.rsqrt(z.square().mean((-2, -1), keepdim=True) + EPS)
    gamma, beta, tau = (p[:, None, :, None, None] for p in (gamma, beta, tau))
    above = gamma * n + beta
    t = torch.where(above <= tau, tau, above)  # what is no number stays none
    u = t if residual is None else t + residual
    return F.silu(u) if silu else u


def keep_mask(shape: torch.Size, noise: Noise) -> Tensor:
    """Which elements [M, B, C, H, W] are not dropped."""
    return hashed_words(noise.members.long(), noise.seed, noise.site, shape[1:]) < noise.below


def fragments(weight: Tensor) -> Tensor:
    """Weights [M, outputs, inputs, k, k] in bf16, in the order in which the lanes want them.

    [M, taps, inputs / 16, outputs / 16, 32 lanes, 8]: lane (g, t) has outputs 4 (g / 2) + g % 2 and
    2 more, and of each the inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
    """
    members, outputs, inputs = weight.shape[:3]
    w = weight.reshape(members, outputs // BLOCK, 4, 2, 2, inputs // BLOCK, 2, 4, 2, -1)
    # member, n, g / 2, pair, g % 2, k, input / 8, t, input % 2, tap
    w = w.permute(0, 9, 5, 1, 2, 4, 7, 3, 6, 8)
    return w.to(torch.bfloat16, memory_format=torch.contiguous_format)


def image_fragments(weight: Tensor) -> Tensor:
    """The same for a first layer [M, outputs, <= 4, 3, 3]: the 16 inputs are 4 columns of 4.

    Lane (g, t) has column t: 4 inputs that lie together.
    """
    members, outputs, inputs = weight.shape[:3]
    w = F.pad(weight, (0, 1, 0, 0, 0, QUAD - inputs))  # [M, outputs, 4, 3, 4 columns]
    w = w.view(members, outputs, 2, 2, 3, 4)  # the inputs as (pair, input % 2)
    w = w.permute(0, 1, 2, 5, 3, 4)  # as if the columns were t
    return fragments(w.reshape(members, outputs, BLOCK, 3, 1))
