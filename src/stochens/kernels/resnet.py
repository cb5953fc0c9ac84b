"""All members of a ResNet20FRN at once through the convolution kernels, forwards and backwards.

One autograd function for all the convolutions: between layers, activations stay in the kernels'
bf16 layout and gradients that meet are added inside a kernel.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens.kernels import conv
from stochens.kernels.changed import changed
from stochens.kernels.conv import Kept, Noise, Norm
from stochens.kernels.conv_plan import QUAD, Layer, plan_for
from stochens.kernels.draw_weights import draw_all_weights
from stochens.likelihoods import Likelihood
from stochens.members import Params, size, trainable
from stochens.methods import StochasticLayer, stochastic_layers
from stochens.methods.dropconnect import DropConnectLayer
from stochens.methods.dropout import DropoutLayer
from stochens.methods.np_dropout import NPDropoutLayer
from stochens.networks import ResNet20FRN
from stochens.randomness.seeds import NOISE, derive

log = logging.getLogger("stochens")

PARTS = ("weight", "bias", "weight", "bias", "tau")  # of a convolution, then of its FRN


class ConvNorm(NamedTuple):
    """One convolution with its FRN: the next activation from `source`, plus `residual`."""

    conv: str  # its path in the network
    norm: str
    layer: Layer
    rate: float
    source: int  # activations are numbered; 0 is the image
    residual: int | None
    silu: bool

    @property
    def names(self) -> list[str]:
        owners = (self.conv, self.conv, self.norm, self.norm, self.norm)
        return [f"{owner}.{part}" for owner, part in zip(owners, PARTS, strict=True)]


def resnet_forward(
    net: nn.Module,
    params: Params,
    x: Tensor,  # [B, 3, H, W]
    *,
    seed: Tensor,  # [1] int64, on the device of x
) -> Tensor | None:
    """Predictions of every member, [M, B, C] in float32, or None where the kernels do not fit.

    They fit ResNet20FRN on CUDA, plain, with dropout of each position or with noise on weights,
    images of up to 4 channels and float32 parameters. Dropout depends only on (seed, place among
    the members); noise on weights comes from where randomness/noise.py says.
    """
    if not _runs_here(x):
        return None
    steps = steps_of(net, x.shape[-2:])
    if steps is None or not _fits(net, steps, params):
        return None
    if not _compiled(steps, x.device, backward=False):
        return None
    return run(steps, draw_all_weights(net, params), conv.quads(x[None]), seed=seed)


def resnet_nll(
    net: nn.Module,
    likelihood: Likelihood,
    x: Tensor,  # [N, 3, H, W]
    y: Tensor,  # [N, ...]
    members: Sequence[int],
    seed: int,
) -> Callable[[Params, Any, int | Tensor], Tensor] | None:
    """A function (params, rows [M, B] or None, step) -> mean NLL [M], or None where none fits.

    The step chooses the noise; inside a CUDA graph it is a tensor [1] that the replays change.
    """
    if x.dim() != 4 or not _runs_here(x):
        return None
    steps = steps_of(net, x.shape[-2:])
    if steps is None or not _fits(net, steps, trainable(net)):
        return None
    if not _compiled(steps, x.device, backward=True):
        return None
    images = conv.quads(x[None])[0]  # [N, H, W, 4]: made once, gathered at each step
    ids = torch.tensor(members, dtype=torch.int32, device=x.device)
    first = torch.tensor([derive(seed, NOISE)], device=x.device)

    def nll(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        everything = rows is None
        batch = images.expand(len(ids), *images.shape) if everything else images[rows]
        theta = draw_all_weights(net, params)
        outputs = run(steps, theta, batch.contiguous(), seed=first + step, members=ids)
        return likelihood.nll(outputs, y.expand(len(ids), *y.shape) if everything else y[rows])

    return nll


def resnet_takes(net: nn.Module, x: Tensor) -> bool:
    """Whether the kernels run this network on images like x [B, 3, H, W]."""
    if x.dim() != 4 or not _runs_here(x):
        return False
    steps = steps_of(net, x.shape[-2:])
    return steps is not None and _fits(net, steps, trainable(net))


def _runs_here(x: Tensor) -> bool:
    return x.is_cuda and conv.available(x.device)


def run(
    steps: tuple[ConvNorm, ...],
    params: Params,
    images: Tensor,  # [M, B, H, W, 4] bf16, as `conv.quads` gives them; M = 1: the same for all
    *,
    seed: Tensor,
    members: Tensor | None = None,  # [M] int32: ids, which choose the noise; None: 0 to M - 1
) -> Tensor:
    """The forward pass itself, for steps that fit."""
    if members is None:
        members = torch.arange(size(params), dtype=torch.int32, device=images.device)
    tensors = [params[name].contiguous() for step in steps for name in step.names]
    features: Tensor = _Convolutions.apply(steps, seed, members, images, *tensors)  # type: ignore[no-untyped-call]
    pooled = features.float().mean((3, 4)).flatten(2)  # [M, B, 64]
    weight, bias = params["head.weight"], params["head.bias"]
    return torch.baddbmm(bias[:, None], pooled, weight.transpose(1, 2))


def steps_of(net: nn.Module, image: tuple[int, ...]) -> tuple[ConvNorm, ...] | None:
    """The network's convolutions in order, for images [H, W]; None if it is no ResNet20FRN."""
    if type(net) is not ResNet20FRN or not _as_written(net):
        return None
    height, width = image
    steps: list[ConvNorm] = []

    def add(path: str, norm: str, size: tuple[int, int], source: int, **options: Any) -> int:
        module = net.get_submodule(path)
        plain = module.plain if isinstance(module, StochasticLayer) else module
        assert isinstance(plain, nn.Conv2d)
        inputs = QUAD if source == 0 else plain.in_channels
        layer = Layer(
            inputs, plain.out_channels, *size, int(plain.stride[0]), int(plain.kernel_size[0])
        )
        rate = getattr(module, "output_rate", 0.0)
        options = {"residual": None, "silu": True, **options}
        steps.append(ConvNorm(path, norm, layer, rate, source, **options))
        return len(steps)

    h = add("conv", "norm", (height, width), 0)
    for name, block in net.blocks.named_children():
        path = f"blocks.{name}."
        size = steps[h - 1].layer.out
        inner = add(path + "conv1", path + "norm1", size, h)
        after = steps[inner - 1].layer.out
        residual = h
        if block.conv_short is not None:
            residual = add(path + "conv_short", path + "norm_short", size, h, silu=False)
        h = add(path + "conv2", path + "norm2", after, inner, residual=residual)
    fit = all(plan_for(s.layer, k) for s in steps for k in conv.KERNELS)
    return tuple(steps) if fit else None


def _as_written(net: ResNet20FRN) -> bool:
    """Whether all parts of the network are as its class makes them, but for noise.

    A part may have been exchanged (another padding, FRN's eps, a block that computes more), used
    twice or hooked into: vmap calls what is there, and the kernels know only the original.
    """
    inputs, classes = getattr(net.conv, "in_channels", 0), getattr(net.head, "out_features", 0)
    parts = dict(net.named_modules())
    return (
        0 < inputs <= QUAD
        and classes > 0
        and _settings(parts) == _original(inputs, classes)
        and all(_has_known_noise(m) and not changed(m) for m in parts.values())
    )


@functools.cache
def _original(inputs: int, classes: int) -> dict[str, tuple[type, str]]:
    with torch.device("meta"):
        net = ResNet20FRN(classes)
        net.conv = nn.Conv2d(inputs, net.conv.out_channels, 3, padding=1)
    return _settings(dict(net.named_modules()))


def _settings(parts: dict[str, nn.Module]) -> dict[str, tuple[type, str]]:
    """What each part is: its type, and all its options, which torch's modules name in full."""
    plain = {p: m.plain if isinstance(m, StochasticLayer) else m for p, m in parts.items()}
    return {path: (type(module), module.extra_repr()) for path, module in plain.items()}


def _has_known_noise(module: nn.Module) -> bool:
    """Whether this layer's noise is dropout of each position of a convolution, or on weights alone
    and so drawn before the kernels run."""
    if not isinstance(module, StochasticLayer):
        return True
    if type(module) is DropoutLayer:
        return type(module.inner) is nn.Conv2d and not module.by_channel
    if type(module) is NPDropoutLayer:
        return not module.by_position
    return type(module) is DropConnectLayer


def _fits(net: nn.Module, steps: tuple[ConvNorm, ...], params: Params) -> bool:
    names = {name for step in steps for name in step.names} | {"head.weight", "head.bias"}
    for path, layer in stochastic_layers(net).items():
        names |= {f"{path}.{name}" for name in layer.names}
    return names == set(params) and all(p.dtype == torch.float32 for p in params.values())


@functools.cache
def _compiled(steps: tuple[ConvNorm, ...], device: torch.device, *, backward: bool) -> bool:
    """Whether the steps could be compiled; where not, vmap does the work."""
    try:
        compile_steps(steps, device, backward=backward)
    except torch.OutOfMemoryError:
        raise  # fewer members may fit
    except (RuntimeError, AttributeError) as error:  # of NVRTC; of a torch that is another
        log.warning("convolutions run by vmap, which is slower: %s", error)
        return False
    return True


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
            if step.residual is not None:
                met.add(step.residual)
            flags = conv.backward_flags(**own, dx=step.source > 0, adds=step.source in met)
            met.add(step.source)
            jobs.append(("conv_backward", step.layer, flags))
            jobs.append(("conv_weight_gradient", step.layer, 0))
        dx = backward and step.source > 0
        jobs.append(("conv_pack", step.layer, conv.WANTS_DX * dx))
    conv.compile_all(jobs, device)


class _Convolutions(torch.autograd.Function):
    """Images [M, B, H, W, 4] -> the last activation [M, B, 4, H / 4, W / 4, 16]."""

    @staticmethod
    def forward(
        ctx: Any,
        steps: tuple[ConvNorm, ...],
        seed: Tensor,
        members: Tensor,
        x: Tensor,
        *params: Tensor,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad[4:])
        activations: list[Tensor] = [x]
        kept: list[Kept] = []
        packed: list[Tensor | None] = []  # weights for the backward pass
        for k, step in enumerate(steps):
            weight, bias, *norm = params[5 * k : 5 * k + 5]
            forwards, backwards = conv.pack(step.layer, weight, dx=keep and step.source > 0)
            y, own = conv.forward(
                step.layer,
                activations[step.source],
                forwards,
                bias,
                Norm(*norm),
                None if step.residual is None else activations[step.residual],
                Noise(step.rate, seed, members, k),
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
            ctx.steps = steps
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
        for k in reversed(range(many)):
            step = steps[k]
            dconv, dresidual, dx = conv.backward(
                step.layer,
                pending.pop(k + 1),
                Kept(*flat[2 * k : 2 * k + 2]),
                None if step.residual is None else activations[step.residual],
                packed[k],
                Norm(*params[5 * k + 2 : 5 * k + 5]),
                Noise(step.rate, seed, members, k),
                silu=step.silu,
                sums=sums.norms[k],
                dx=pending.pop(step.source, None),
            )
            if step.residual is not None and dresidual is not None:
                pending[step.residual] = dresidual
            if dx is not None:
                pending[step.source] = dx
            conv.weight_gradient(step.layer, activations[step.source], dconv, sums.weights[k])
        return None, None, None, None, *sums.gradients([p.shape for p in params[::5]])
