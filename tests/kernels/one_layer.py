"""One layer by the kernels, convolution to SiLU, as a function that autograd can differentiate.

The network has no need of it; gradients are tested with it.
"""

from typing import Any

import torch
from torch import Tensor

from stochens.kernels.conv import Kept, Noise, Norm, Sums, backward, forward, pack, weight_gradient
from stochens.kernels.conv_plan import QUAD, Layer


def conv_frn_silu(
    x: Tensor,  # [M, B, inputs / 16, H, W, 16], or [M, B, H, W, 4]; M = 1: the same for all members
    weight: Tensor,  # [M, outputs, inputs, k, k]
    bias: Tensor,  # [M, outputs]
    gamma: Tensor,
    beta: Tensor,
    tau: Tensor,
    residual: Tensor | None = None,  # like the result
    *,
    stride: int = 1,
    silu: bool = True,
    noise: Noise,
) -> Tensor:
    """[M, B, outputs / 16, H / stride, W / stride, 16], differentiable in every tensor given."""
    y: Tensor = _ConvFrnSilu.apply(stride, silu, noise, x, weight, bias, gamma, beta, tau, residual)
    return y


def layer_of(x: Tensor, weight: Tensor, stride: int) -> Layer:
    """The shapes of a call."""
    images = x.dim() == 5
    height, width = x.shape[2:4] if images else x.shape[3:5]
    inputs = QUAD if images else weight.shape[2]
    return Layer(inputs, weight.shape[1], height, width, stride, weight.shape[-1])


class _ConvFrnSilu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stride: int,
        silu: bool,
        noise: Noise,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        gamma: Tensor,
        beta: Tensor,
        tau: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        layer, norm = layer_of(x, weight, stride), Norm(gamma, beta, tau)
        own, _ = pack(layer, weight, dx=False)
        y, kept = forward(layer, x, own, bias, norm, residual, noise, silu=silu, keep=True)
        assert kept is not None
        ctx.save_for_backward(x, weight, *norm, *kept, residual)
        ctx.options = layer, silu, noise
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gamma, beta, tau, z, rms, residual = ctx.saved_tensors
        layer, silu, noise = ctx.options
        wants = ctx.needs_input_grad[3]
        if wants and (layer.inputs == QUAD or len(x) != len(weight)):
            raise ValueError("no gradient in x where it is an image or shared by the members")
        norm, kept = Norm(gamma, beta, tau), Kept(z, rms)
        own = pack(layer, weight, dx=True)[1] if wants else None
        sums, dy = Sums([layer], dy), dy.contiguous()
        dconv, dresidual, dx = backward(
            layer, dy, kept, residual, own, norm, noise, silu=silu, sums=sums.norms[0]
        )
        weight_gradient(layer, x, dconv, sums.weights[0])
        return None, None, None, dx, *sums.gradients([weight.shape]), dresidual
