"""Convolution, dropout, FRN and SiLU of many members' images in one launch, forwards and backwards.

    z = (conv(x) + b) * kept / (1 - p),   n = z / sqrt(mean z^2 + eps)
    t = max(gamma n + beta, tau),         y = silu(t + residual)

`pack`, `forward`, `backward` and `weight_gradient` run the kernels conv_*.cu, compiled for each
layer by NVRTC; tests/kernels/conv_reference.py has the same in plain torch, and resnet.py makes a
network of them. Activations are bf16 in blocks of 16 channels, [M, B, C / 16, H, W, 16] (`blocked`,
`unblocked`), or [M, B, H, W, 4] for images of up to 4 channels (`quads`); parameters are float32,
and so is every sum. The noise is that of randomness/noise.py, by (seed, member id, number of the
draw, element of [B, C, H, W]); the backward pass reads it off the sign of the zeros in z.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from stochens.kernels import build
from stochens.kernels.conv_plan import (
    BLOCK,
    CREW,
    MOST_SHARED,
    QUAD,
    LaunchPlan,
    Layer,
    Tiles,
    plan_for,
    share,
)
from stochens.randomness.noise import below

# conv.hpp's, in its order
HAS_RESIDUAL, HAS_SILU, HAS_NOISE, KEEPS, SHARED_X, WANTS_DX, ADDS_DX = (1 << k for k in range(7))

KERNELS = ("conv_forward", "conv_backward", "conv_weight_gradient", "conv_pack")

Kernel = Callable[..., None]  # of (grid, block, args, shared_mem), as torch.cuda._compile_kernel's


# -- compiling ------------------------------------------------------------------------------------


def source(name: str, layer: Layer, plan: LaunchPlan, flags: int) -> str:
    """A kernel's file, name.cu, for this layer."""
    defines = {
        "CIN": layer.inputs,
        "COUT": layer.outputs,
        "H": layer.height,
        "W": layer.width,
        "STRIDE": layer.stride,
        "KERNEL": layer.kernel,
        "ROWS": plan.rows,
        "UNITS": plan.units,
        "BLOCKS_PER_SM": plan.blocks,
        "PAIRS": plan.pairs,
        "FLAGS": flags,
    }
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return head + build.source(f"{name}.cu")


@functools.cache
def kernel(name: str, layer: Layer, plan: LaunchPlan, flags: int, device: torch.device) -> Kernel:
    """One of `KERNELS`, compiled by NVRTC, which every CUDA build of torch brings along."""
    code = source(name, layer, plan, flags)
    with torch.cuda.device(device):
        _bind(device)
        made: Any = build.cuda_kernel(code, name)
        made.set_shared_memory_config(plan.shared(layer, name, residual=True))
    return made  # type: ignore[no-any-return]


_threads = threading.local()


def _bind(device: torch.device) -> None:
    """Give this thread (autograd has its own) a CUDA context, which torch makes at first need."""
    if getattr(_threads, "bound", None) != device:
        torch.zeros(1, device=device)
        _threads.bound = device


def available(device: torch.device | None = None) -> bool:
    """Whether the kernels can run on a device, the current one if None: they are not switched off,
    it is new (they are tested on Hopper alone) and has the shared memory that plans count on."""
    if not build.cuda_compiles() or not torch.cuda.is_available():
        return False
    about = torch.cuda.get_device_properties(device)
    # a GeForce of a newer generation has 99 KiB
    shared = getattr(about, "shared_memory_per_block_optin", MOST_SHARED)
    return about.major >= 9 and shared >= MOST_SHARED


def compile_all(jobs: Iterable[tuple[str, Layer, int]], device: torch.device) -> None:
    """Compile kernels (name, layer, flags) at the same time, a thread each."""

    def one(job: tuple[str, Layer, int]) -> None:
        name, layer, flags = job
        kernel(name, layer, _plan(layer, name), flags, device)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, dict.fromkeys(jobs)))


def _launch(
    name: str,
    layer: Layer,
    flags: int,
    grid: tuple[int, int, int],
    threads: int,
    args: list[Any],  # tensors, then numbers
    *,
    residual: bool = False,
) -> None:
    plan, device = _plan(layer, name), args[0].device
    run = kernel(name, layer, plan, flags, device)
    if device.type != "cuda":  # the tests' emulated one
        return run(grid, (threads, 1, 1), args, plan.shared(layer, name, residual=residual))
    with torch.cuda.device(device):
        _bind(device)
        run(grid, (threads, 1, 1), args, plan.shared(layer, name, residual=residual))


def _plan(layer: Layer, name: str) -> LaunchPlan:
    plan = plan_for(layer, name)
    if plan is None:
        raise ValueError(f"no kernel for {layer}")
    return plan


# -- layouts --------------------------------------------------------------------------------------


def blocked(x: Tensor) -> Tensor:
    """[..., C, H, W] as bf16 in blocks of 16 channels, [..., C / 16, H, W, 16]."""
    blocks: Tensor = x.unflatten(-3, (-1, BLOCK)).movedim(-3, -1)
    return blocks.to(torch.bfloat16).contiguous()


def unblocked(x: Tensor) -> Tensor:
    """[..., C / 16, H, W, 16] as [..., C, H, W]."""
    return x.movedim(-1, -3).flatten(-4, -3)


def quads(x: Tensor) -> Tensor:
    """Images [..., C, H, W] of up to 4 channels as bf16 [..., H, W, 4]."""
    x = x.to(torch.bfloat16).movedim(-3, -1)
    return F.pad(x, (0, QUAD - x.shape[-1])).contiguous()


def pack(layer: Layer, weight: Tensor, *, dx: bool) -> tuple[Tensor, Tensor | None]:
    """The weights and, for the gradient of x, the transposed ones in the order in which the lanes
    want them (`fragments` in conv_reference.py): one launch."""
    members, _, inputs = weight.shape[:3]
    shape = (members, layer.taps, -(-layer.inputs // BLOCK), layer.outputs // BLOCK, 32, 8)
    forwards = torch.empty(shape, dtype=torch.bfloat16, device=weight.device)
    shape = (*shape[:2], shape[3], shape[2], 32, 8)
    backwards = torch.empty(shape, dtype=torch.bfloat16, device=weight.device) if dx else None
    grid = (layer.outputs // BLOCK, members, 1)
    args = [weight, forwards, forwards if backwards is None else backwards, inputs]
    _launch("conv_pack", layer, WANTS_DX * dx, grid, 256, args)
    return forwards, backwards


# -- the three passes -----------------------------------------------------------------------------


class Noise(NamedTuple):
    """Which outputs are dropped: `rate` of them, by the words of randomness/noise.py."""

    rate: float
    seed: Tensor  # [1] int64, on the device: a CUDA graph can go on to the next
    members: Tensor  # [M] int32
    site: int  # the number of the draw

    @property
    def below(self) -> int:
        """The number below which words are kept."""
        return below(1 - self.rate)


class Norm(NamedTuple):
    """FRN's parameters, [M, outputs] each."""

    gamma: Tensor
    beta: Tensor
    tau: Tensor


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass."""

    z: Tensor  # like y
    rms: Tensor  # [M, B, outputs], 1 / sqrt(mean z^2 + eps)


def forward_flags(*, residual: bool, silu: bool, noise: bool, keep: bool, shared: bool) -> int:
    flags = HAS_RESIDUAL * residual | HAS_SILU * silu | HAS_NOISE * noise
    return flags | KEEPS * keep | SHARED_X * shared


def backward_flags(*, residual: bool, silu: bool, noise: bool, dx: bool, adds: bool) -> int:
    flags = HAS_RESIDUAL * residual | HAS_SILU * silu | HAS_NOISE * noise
    return flags | WANTS_DX * dx | ADDS_DX * adds


def forward(
    layer: Layer,
    x: Tensor,  # [M, B, ...]; [1, B, ...] where all members have the same
    weight: Tensor,  # as `pack` gives it
    bias: Tensor,
    norm: Norm,
    residual: Tensor | None,
    noise: Noise,
    *,
    silu: bool,
    keep: bool,
) -> tuple[Tensor, Kept | None]:
    """y, and what to keep of it."""
    plan = _plan(layer, "conv_forward")
    members, batch = len(bias), x.shape[1]
    shape = (members, batch, layer.outputs // BLOCK, *layer.out, BLOCK)
    y = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    kept = None
    if keep:
        rms = torch.empty(members, batch, layer.outputs, device=x.device)
        kept = Kept(torch.empty_like(y), rms)
    flags = forward_flags(
        residual=residual is not None,
        silu=silu,
        noise=noise.rate > 0,
        keep=keep,
        shared=len(x) != members,
    )
    args = [x, weight, bias, *norm, y if residual is None else residual, noise.seed, noise.members]
    args += [y, y, bias] if kept is None else [kept.z, y, kept.rms]
    numbers = [batch, noise.site, noise.below]
    grid = (_blocks("conv_forward", layer, members, batch, x.device)[0], members, 1)
    threads = plan.threads(layer)
    given = [*args, *numbers]
    _launch("conv_forward", layer, flags, grid, threads, given, residual=residual is not None)
    return y, kept


def backward(
    layer: Layer,
    dy: Tensor,
    kept: Kept,
    residual: Tensor | None,
    weight: Tensor | None,  # the transposed ones of `pack`; None: dx is not wanted
    norm: Norm,
    noise: Noise,
    *,
    silu: bool,
    sums: Tensor,  # of `Sums.norms`: to fill
    dx: Tensor | None = None,  # to add to, in place
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of the convolution's output, of the residual and of x."""
    plan = _plan(layer, "conv_backward")
    members, batch = dy.shape[:2]
    dconv = torch.empty_like(dy)
    dresidual = None if residual is None else torch.empty_like(dy)
    adds = dx is not None
    if weight is not None and dx is None:
        shape = (members, batch, layer.inputs // BLOCK, layer.height, layer.width, BLOCK)
        dx = torch.empty(shape, dtype=torch.bfloat16, device=dy.device)
    flags = backward_flags(
        residual=residual is not None,
        silu=silu,
        noise=noise.rate > 0,
        dx=weight is not None,
        adds=adds,
    )
    args = [dy, kept.z, kept.rms, dy if residual is None else residual]
    args += [dy if weight is None else weight, *norm, dconv]
    args += [dconv if dresidual is None else dresidual, dconv if dx is None else dx, sums]
    numbers = [batch, noise.below, sums.stride(0)]
    grid, threads = (len(sums), members, 1), plan.threads(layer)
    given = [*args, *numbers]
    _launch("conv_backward", layer, flags, grid, threads, given, residual=residual is not None)
    return dconv, dresidual, dx


def weight_gradient(layer: Layer, x: Tensor, dconv: Tensor, sums: Tensor) -> None:
    """Fills one of `Sums.weights`."""
    plan = _plan(layer, "conv_weight_gradient")
    members, batch = dconv.shape[:2]
    args = [x, dconv, sums, batch, sums.stride(0)]
    grid = (len(sums), members, layer.tiles // plan.pairs)
    flags = SHARED_X * (len(x) != members)
    _launch("conv_weight_gradient", layer, flags, grid, 32 * CREW, args)


# -- sums over blocks of threads ------------------------------------------------------------------


class Sums:
    """Room for the parameters' gradients as blocks of threads leave them behind, all layers' side
    by side, so that one launch adds up those of all layers."""

    norms: tuple[Tensor, ...]  # [blocks, 4 M outputs] of each layer: of bias, gamma, beta and tau
    weights: tuple[Tensor, ...]  # [blocks, M outputs inputs taps]

    def __init__(self, layers: Sequence[Layer], dy: Tensor) -> None:
        members, batch = dy.shape[:2]
        norms = [4 * members * a.outputs for a in layers]
        weights = [members * a.fragments for a in layers]
        where = (members, batch, dy.device)
        of_norms = _common([_blocks("conv_backward", a, *where) for a in layers])
        of_weights = _common([_gradient_blocks(a, *where) for a in layers])
        self.members = members
        self._norms = torch.empty(of_norms, sum(norms), device=dy.device)
        self._weights = torch.empty(of_weights, sum(weights), device=dy.device)
        self.norms = self._norms.split(norms, dim=1)
        self.weights = self._weights.split(weights, dim=1)
        self._sizes = norms, weights

    def gradients(self, shapes: list[torch.Size]) -> list[Tensor]:
        """Of weight (of such a shape), bias, gamma, beta and tau, layer after layer."""
        norms = self._norms.sum(0).split(self._sizes[0])
        weights = self._weights.sum(0).split(self._sizes[1])
        found: list[Tensor] = []
        for weight, norm, shape in zip(weights, norms, shapes, strict=True):
            found += [_as_weight(weight, shape), *norm.view(4, self.members, -1)]
        return found


def _common(blocks: list[tuple[int, int]]) -> int:
    """One number of blocks for all layers: what the greediest wants, if all have as many images."""
    return min(max(wanted for wanted, _ in blocks), min(most for _, most in blocks))


def _as_weight(gradient: Tensor, shape: torch.Size) -> Tensor:
    """[M x outputs x inputs x taps] as the weights' own shape."""
    members, outputs, inputs = shape[:3]
    if inputs > QUAD:
        return gradient.view(shape)
    by_column = gradient.view(members, outputs, 4, QUAD, 3)  # columns, inputs, rows
    return by_column[:, :, :3, :inputs].permute(0, 1, 3, 4, 2)


def _blocks(
    name: str, layer: Layer, members: int, batch: int, device: torch.device
) -> tuple[int, int]:
    """How many blocks of threads share a member's images, and the most that can."""
    plan = _plan(layer, name)
    at_once = min(plan.blocks, MOST_SHARED // plan.shared(layer, name, residual=True))
    sets = -(-batch // (plan.units * Tiles(layer, plan).images))
    return share(members, sets, _multiprocessors(device) * at_once), sets


def _gradient_blocks(
    layer: Layer, members: int, batch: int, device: torch.device
) -> tuple[int, int]:
    """The same of `weight_gradient`."""
    plan = _plan(layer, "conv_weight_gradient")
    tiles = layer.tiles // plan.pairs
    units = -(-batch // Tiles(layer, plan).images)
    return share(members * tiles, units, _multiprocessors(device)), units


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
