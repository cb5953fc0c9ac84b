"""All members of a ResNet of FRN blocks through the convolution kernels, forwards and backwards.

One autograd function for all the convolutions: between layers, activations stay in the kernels'
bf16 layout and gradients that meet are added inside a kernel. What the next layer need not wait
for, the packing of weights and their gradients, runs on a stream beside: it fills what a layer's
last blocks of threads leave idle.
"""

import functools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.kernels import conv
from stochens.kernels.beside import Beside
from stochens.kernels.conv import Kept, Noise, Norm
from stochens.kernels.conv_plan import Layer
from stochens.members import Params, size

log = logging.getLogger("stochens")

BEHIND = 2  # layers that the gradients of weights may lag: so many dconv are kept for them


class ConvNorm(NamedTuple):
    """One convolution with its FRN: the next activation from `source`, plus `residual`."""

    # of the convolution's weight and bias, and of FRN's gamma, beta and tau
    names: tuple[str, str, str, str, str]
    layer: Layer
    rate: float
    source: int  # activations are numbered; 0 is the image
    residual: int | None
    silu: bool


class ResNet(NamedTuple):
    """Convolutions in order, then the mean over positions of the last one, and a linear head."""

    steps: tuple[ConvNorm, ...]
    head: tuple[str, str | None]  # weight and bias


def run(
    net: ResNet,
    params: Params,
    images: Tensor,  # [M, B, H, W, 4] bf16, as `conv.quads` gives them; M = 1: the same for all
    *,
    seed: Tensor,
    members: Tensor | None = None,  # [M] int32: ids, which choose the noise; None: 0 to M - 1
    sites: Sequence[int] | None = None,  # numbers of the draws, one for each step; None: 0, 1, ...
) -> Tensor:
    """Outputs of every member, [M, B, C] in float32."""
    if members is None:
        members = torch.arange(size(params), dtype=torch.int32, device=images.device)
    tensors = [params[name].contiguous() for step in net.steps for name in step.names]
    numbers = tuple(range(len(net.steps)) if sites is None else sites)
    given = (net.steps, numbers, seed, members, images, *tensors)
    features: Tensor = _Convolutions.apply(*given)  # type: ignore[no-untyped-call]
    pooled = features.float().mean((3, 4)).flatten(2)  # [M, B, channels]
    weight, bias = net.head
    product = params[weight].transpose(1, 2)
    if bias is None:
        return pooled @ product
    return torch.baddbmm(params[bias][:, None], pooled, product)


@functools.cache
def compile_steps(steps: tuple[ConvNorm, ...], device: torch.device, *, backward: bool) -> None:
    """Compile what the steps need, once, and all at the same time: seconds instead of a minute.

    For training, each member with images of its own; or, with no backward pass, for predictions,
    where all have the same.
    """
    jobs: list[tuple[str, Layer, int]] = []
    met: set[int] = set()  # activations that have a gradient already, going backwards
    for step in reversed(steps):
        own = {"residual": step.residual is not None, "silu": step.silu, "noise": step.rate > 0}
        shared = step.source == 0 and not backward
        flags = conv.forward_flags(**own, keep=backward, shared=shared)
        jobs.append(("conv_forward", step.layer, flags))
        if backward:
            flags = conv.backward_flags(**own, dx=step.source > 0, adds=step.source in met)
            met |= {step.source, *([] if step.residual is None else [step.residual])}
            jobs.append(("conv_backward", step.layer, flags))
            jobs.append(("conv_weight_gradient", step.layer, 0))
        dx = backward and step.source > 0
        jobs.append(("conv_pack", step.layer, conv.WANTS_DX * dx))
    log.info("preparing %d convolution kernels: some seconds, unless they are kept", len(jobs))
    conv.compile_all(jobs, device)


class _Convolutions(torch.autograd.Function):
    """Images [M, B, H, W, 4] -> the last activation [M, B, C / 16, H', W', 16]."""

    @staticmethod
    def forward(
        ctx: Any,
        steps: tuple[ConvNorm, ...],
        sites: tuple[int, ...],
        seed: Tensor,
        members: Tensor,
        x: Tensor,
        *params: Tensor,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad[5:])
        activations: list[Tensor] = [x]
        kept: list[Kept] = []
        packed: list[Tensor | None] = []  # weights for the backward pass
        beside = Beside(x.device)
        packs = []
        for step, weight in zip(steps, params[::5], strict=True):
            dx = keep and step.source > 0
            packs.append(beside.start(functools.partial(conv.pack, step.layer, weight, dx=dx)))
        for k, step in enumerate(steps):
            bias, *norm = params[5 * k + 1 : 5 * k + 5]
            (forwards, backwards), done = packs[k]
            beside.wait(done)
            y, own = conv.forward(
                step.layer,
                activations[step.source],
                forwards,
                bias,
                Norm(*norm),
                None if step.residual is None else activations[step.residual],
                Noise(step.rate, seed, members, sites[k]),
                silu=step.silu,
                keep=keep,
            )
            activations.append(y)
            packed.append(backwards)
            if own is not None:
                kept.append(own)
        if keep:
            ctx.save_for_backward(
                seed, members, *params, *activations[:-1], *packed, *sum(kept, ())
            )
            ctx.steps, ctx.sites = steps, sites
        return activations[-1]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("the convolution kernels have no second derivative")
        steps: tuple[ConvNorm, ...] = ctx.steps
        seed, members, *rest = ctx.saved_tensors
        many = len(steps)
        params, rest = rest[: 5 * many], rest[5 * many :]
        activations, packed, flat = rest[:many], rest[many : 2 * many], rest[2 * many :]
        pending: dict[int, Tensor] = {many: dy.contiguous()}  # gradients of activations so far
        sums = conv.Sums([step.layer for step in steps], dy)
        beside, behind = Beside(dy.device), deque[tuple[Tensor, Any]]()
        for k in reversed(range(many)):
            step = steps[k]
            dconv, dresidual, dx = conv.backward(
                step.layer,
                pending.pop(k + 1),
                Kept(*flat[2 * k : 2 * k + 2]),
                None if step.residual is None else activations[step.residual],
                packed[k],
                Norm(*params[5 * k + 2 : 5 * k + 5]),
                Noise(step.rate, seed, members, ctx.sites[k]),
                silu=step.silu,
                sums=sums.norms[k],
                dx=pending.pop(step.source, None),
            )
            if dx is not None:
                pending[step.source] = dx
            if step.residual is not None and dresidual is not None:
                others = pending.get(step.residual)  # there are none in a ResNet as it is written
                pending[step.residual] = dresidual if others is None else others + dresidual
            gradient = functools.partial(
                conv.weight_gradient,
                *(step.layer, activations[step.source], dconv, sums.weights[k]),
            )
            behind.append((dconv, beside.start(gradient)[1]))
            while len(behind) > (BEHIND if k else 0):
                beside.wait(behind.popleft()[1])
        return None, None, None, None, None, *sums.gradients([p.shape for p in params[::5]])
