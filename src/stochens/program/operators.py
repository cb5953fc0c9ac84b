"""Layers for all members at once: what the rules put into a program.

Members stand in front, x [M, B, ...], or in the channels, x [B, M C, *positions], where
convolutions are one grouped launch. Weights are [M, ...].
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

Op = Callable[..., Any]


# -- layouts ---------------------------------------------------------------------------------------


def into_channels(x: Tensor) -> Tensor:
    """[M, B, C, *positions] -> [B, M C, *positions]."""
    folded = x.movedim(0, 1).flatten(1, 2)
    return _channels_last(folded)


def out_of_channels(x: Tensor, members: int) -> Tensor:
    """[B, M C, *positions] -> [M, B, C, *positions]."""
    apart: Tensor = x.unflatten(1, (members, -1))
    return apart.movedim(1, 0)


def _channels_last(x: Tensor) -> Tensor:
    """The same numbers, with each position's channels side by side: faster on a GPU."""
    if x.is_cuda and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def with_rank(x: Tensor, rank: int) -> Tensor:
    """[M, *s] -> [M, 1, ..., 1, *s] with `rank` axes after M."""
    return x.reshape(len(x), *[1] * (rank + 1 - x.dim()), *x.shape[1:])


def for_each(x: Tensor, members: int) -> Tensor:
    """What members share as if each had it: [*s] -> [M, *s], without its memory."""
    return x.unsqueeze(0).expand(members, *x.shape)


# -- layers ----------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x_m weight_m^T + bias_m: x [M, ..., I], weight [M, O, I], bias [M, O] -> [M, ..., O]."""
    order = _as_they_lie(x)
    x = x.permute(order)
    rows = x.reshape(len(x), -1, x.shape[-1])  # [M, N, I]
    y = product(rows, weight.mT, bias)
    return y.view(*x.shape[:-1], weight.shape[1]).permute(_inverse(order))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight + bias: x [M, N, I], weight [M, I, O], bias [M, O] -> [M, N, O]."""
    if bias is None:
        return torch.bmm(x, weight)
    if torch.compiler.is_compiling():  # the sum is fused with what follows; baddbmm would begin
        return torch.bmm(x, weight) + bias.unsqueeze(1)  # by a copy of the bias for each row
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def _as_they_lie(x: Tensor) -> list[int]:
    """The axes between the first and the last in the order of memory: rows of a linear layer may
    come in any order, and in this one they need no copy."""
    between = sorted(range(1, x.dim() - 1), key=x.stride, reverse=True)
    return [0, *between, x.dim() - 1] if x.dim() > 1 else [0]


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def patches(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution that steps by its own size is a linear layer of patches:
    x [M, B, C, H, W], weight [M, O, C, k, l] -> [M, B, O, H / k, W / l]."""
    m, b, c, height, width = x.shape
    k, l = weight.shape[-2:]  # noqa: E741
    cut = x.reshape(m, b, c, height // k, k, width // l, l).permute(0, 1, 3, 5, 2, 4, 6)
    y = linear(cut.reshape(m, b, height // k, width // l, c * k * l), weight.flatten(2), bias)
    return y.permute(0, 1, 4, 2, 3)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, step: Sequence[int]) -> Tensor:
    """A convolution of single positions is a linear layer of channels:
    x [M, B, C, *positions], weight [M, O, C, 1, ...] -> [M, B, O, *positions / step]."""
    for axis, every in enumerate(step):
        if every > 1:
            x = x[(slice(None),) * (3 + axis) + (slice(None, None, every),)]
    y = linear(x.movedim(2, -1), weight.flatten(2), bias)
    return y.movedim(-1, 2)


def convolve(
    op: Op, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, rest: dict[str, Any]
) -> Tensor:
    """x [B, M C, *positions] or, where all members have the same, [B, C, *positions]; weight
    [M, O, C / groups, *kernel] -> [B, M O, *positions]. `groups`: of the launch."""
    m, o, i, *kernel = weight.shape
    if x.is_cuda and len(kernel) == 2:
        x = _channels_last(x)
        weight = weight.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    flat = weight.reshape(m * o, i, *kernel)
    y: Tensor = op(x, flat, None if bias is None else bias.flatten(), groups=groups, **rest)
    return y


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """x [M, ..., *shape], weight and bias [M, *shape]."""
    return affine(F.layer_norm(x, list(shape), eps=eps), weight, bias, x.dim() - 1)


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    """x [M, ..., *shape], weight [M, *shape]."""
    return affine(F.rms_norm(x, list(shape), eps=eps), weight, None, x.dim() - 1)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """x [M, B, C, *positions], weight and bias [M, C]."""
    plain = F.group_norm(x.flatten(0, 1), groups, eps=eps).view(x.shape)
    positions = [1] * (x.dim() - 3)
    own = [None if p is None else p.view(*p.shape, *positions) for p in (weight, bias)]
    return affine(plain, own[0], own[1], x.dim() - 1)


def group_norm_in_channels(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, members: int
) -> Tensor:
    """x [B, M C, *positions], weight and bias [M, C]; `groups` of each member."""
    own = [None if p is None else p.flatten() for p in (weight, bias)]
    return F.group_norm(x, members * groups, own[0], own[1], eps)


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, rank: int) -> Tensor:
    """x weight + bias, with the axes of weight and bias [M, ...] the last of x's `rank`."""
    scale = None if weight is None else with_rank(weight, rank)
    if bias is None:
        return x if scale is None else x * scale
    shift = with_rank(bias, rank)
    return x + shift if scale is None else torch.addcmul(shift, x, scale)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """By kept statistics: x [M, B, C, *positions], weight, bias, mean and var [M, C]."""
    positions = [1] * (x.dim() - 3)

    def across(p: Tensor) -> Tensor:
        return p.view(len(p), 1, -1, *positions)

    y = (x - across(mean)) * across(torch.rsqrt(var + eps))
    y = y if weight is None else y * across(weight)
    return y if bias is None else y + across(bias)


def batch_norm_in_channels(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """Likewise of x [B, M C, *positions]."""
    own = [None if p is None else p.flatten() for p in (weight, bias)]
    return F.batch_norm(x, mean.flatten(), var.flatten(), own[0], own[1], eps=eps)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    options: dict[str, Any],
) -> Tensor:
    """q, k, v [M, B, H, T, D] -> [M, B, H, T, D], members with the batch or with the heads, so that
    torch's fused kernels serve. mask [M or 1, ...], of as many axes, or none."""

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **options)

    if mask is None and not options.get("enable_gqa") and all(map(_heads_with_batch, (q, k, v))):
        y = call(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), None)  # [M, B H, T, D]
        return y.view(len(y), *q.shape[1:3], *y.shape[2:])
    if mask is not None:
        mask = mask.expand(len(q), q.shape[1], *mask.shape[2:]).flatten(0, 1)
    y = call(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask)  # [M B, H, T, D]
    return y.view(*q.shape[:2], *y.shape[1:])


def _heads_with_batch(q: Tensor) -> bool:
    """Whether [M, B, H, T, D] is [M, B H, T, D] without a copy, but not [M B, H, T, D]."""
    m, b, h, *_ = q.stride()
    return b == h * q.shape[2] and m != b * q.shape[1] and q.stride(-1) == 1


def embed(weight: Tensor, index: Tensor, padding: int) -> Tensor:
    """weight [M, V, W], index [M, ...] -> [M, ..., W]; the row `padding` has no gradient."""
    m, v, _ = weight.shape
    first = v * torch.arange(m, device=index.device).view(m, *[1] * (index.dim() - 1))
    rows = F.embedding(index + first, weight.flatten(0, 1))
    if padding < 0:
        return rows
    return torch.where((index == padding).unsqueeze(-1), rows.detach(), rows)


def with_batch(op: Op, x: Tensor, rest: dict[str, Any]) -> Tensor:
    """An operator that treats examples alike, of [M, B, ...] as of [M B, ...]."""
    y: Tensor = op(x.flatten(0, 1), **rest)
    return y.view(*x.shape[:2], *y.shape[1:])


def shifted(x: Tensor, bias: Tensor) -> Tensor:
    """x + bias, which broadcast."""
    return x + bias


def shifted_channels(x: Tensor, bias: Tensor, rank: int) -> Tensor:
    """x [M, B, C, *positions] or, where all members have the same, [B, C, *positions], of `rank`
    axes after M; bias [M, C] -> [M, B, C, *positions]."""
    return x + bias.view(len(bias), 1, -1, *[1] * (rank - 2))


def called(op: Op, x: Tensor, rest: dict[str, Any]) -> Tensor:
    """An operator with arguments by name."""
    y: Tensor = op(x, **rest)
    return y


def recur_with_batch(
    op: Op, x: Tensor, states: list[Tensor], rest: list[Any], batch: int, several: bool
) -> tuple[Tensor, ...]:
    """A recurrent layer whose weights all members share: x [M, B, T, I] with its batch first, or
    [M, T, B, I]; states [M, layers, B, H]. `batch`: the axis of one member's x. `several`: whether
    the layer takes a list of states."""

    def together(t: Tensor, axis: int) -> Tensor:
        return t.movedim(0, axis).flatten(axis, axis + 1)

    def apart(t: Tensor, axis: int) -> Tensor:
        split: Tensor = t.unflatten(axis, (len(x), -1))
        return split.movedim(axis, 0)

    own = [together(h, 1) for h in states]
    y, *ends = op(together(x, batch), own if several else own[0], *rest)
    return (apart(y, batch), *(apart(h, 1) for h in ends))


def fill(x: Tensor, value: Tensor) -> Tensor:
    """The value of each member in all places of x [M, ...]; value [] or [M, 1, ...]."""
    return value.to(x.dtype).expand_as(x)


# -- any other operator ----------------------------------------------------------------------------


def map_members(op: Op, axes: Sequence[Any], names: Sequence[str], *args: Any) -> Any:
    """vmap of an operator. axes: 0 for each argument that has the member axis, else None; the last
    arguments go by `names`."""

    def one(*own: Any) -> Any:
        plain = len(own) - len(names)
        return op(*own[:plain], **dict(zip(names, own[plain:], strict=True)))

    return vmap(one, in_dims=tuple(axes), randomness="different")(*args)


def loop_members(op: Op, axes: Sequence[Any], members: int, *args: Any) -> tuple[Tensor, ...]:
    """Likewise one member after the other, for operators that vmap does not know."""

    def own(value: Any, axis: Any, k: int) -> Any:
        if isinstance(axis, (list, tuple)):
            return [own(v, a, k) for v, a in zip(value, axis, strict=True)]
        return value if axis is None else value[k]

    each = [op(*(own(a, x, k) for a, x in zip(args, axes, strict=True))) for k in range(members)]
    return tuple(torch.stack(parts) for parts in zip(*each, strict=True))
