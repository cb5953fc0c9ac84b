"""Ways to run one layer for all members: candidates for the rule table of issue 20.

A problem has canonical tensors with a leading member axis: x [M, B, ...] first, then the layer's
parameters [M, ...]. A form folds them into the layout it likes, which the networks around it would
keep, so that this is not timed; runs; and unfolds what comes out to compare it with the loop.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensors = list[Tensor]
CL = torch.channels_last


def as_is(tensors: Tensors) -> Tensors:
    return tensors


def only(outputs: Tensors) -> Tensor:
    return outputs[0]


class Form(NamedTuple):
    name: str
    call: Callable[[Tensors], Tensors]  # of folded tensors
    fold: Callable[[Tensors], Tensors] = as_is
    unfold: Callable[[Tensors], Tensor] = only  # -> [M, B, ...]
    on_cpu: bool = True  # whether it can be checked there in float64


class Problem(NamedTuple):
    shapes: Sequence[tuple[int, ...]]  # of the canonical tensors
    forms: list[Form]  # the first one is the loop over members
    flop: float  # of the forward pass
    vocabulary: int = 0  # not 0: the first tensor is of whole numbers


def distance(ours: Tensors, theirs: Tensors) -> float:
    """The largest ||a - b|| / ||b|| over the tensors."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


# -- members one after the other -------------------------------------------------------------------

_streams: list[torch.cuda.Stream] = []


def on_streams(one: Callable[[int], Tensor], members: int, *, at_most: int = 10) -> Tensors:
    """`one(k)` of every member, each on a side stream, joined at the end; on a CPU in turn."""
    if not torch.cuda.is_available():
        return [one(k) for k in range(members)]
    while len(_streams) < at_most:
        _streams.append(torch.cuda.Stream())
    main, outputs = torch.cuda.current_stream(), []
    used = _streams[: min(at_most, members)]
    for stream in used:
        stream.wait_stream(main)
    for k in range(members):
        with torch.cuda.stream(used[k % len(used)]):
            outputs.append(one(k))
    for stream in used:
        main.wait_stream(stream)
    return outputs


def by_member(tensors: Tensors) -> Tensors:
    """All tensors of member 0, then all of member 1, ..."""
    return [t[k] for k in range(len(tensors[0])) for t in tensors]


def by_member_channels_last(tensors: Tensors) -> Tensors:
    return [t.contiguous(memory_format=CL) if t.dim() == 4 else t for t in by_member(tensors)]


def looped(
    layer: Callable[..., Tensor],
    count: int,
    name: str = "loop",
    *,
    streams: bool = False,
    fold: Callable[[Tensors], Tensors] = by_member,
) -> Form:
    """`layer` of `count` tensors, for each member."""

    def call(flat: Tensors) -> Tensors:
        def one(k: int) -> Tensor:
            return layer(*flat[k * count : (k + 1) * count])

        members = len(flat) // count
        return on_streams(one, members) if streams else [one(k) for k in range(members)]

    return Form(name, call, fold, torch.stack)


def vmapped(layer: Callable[..., Tensor], name: str = "vmap") -> Form:
    return Form(name, lambda t: [vmap(layer)(*t)])


def compiled(form: Form) -> Form:
    """By torch.compile."""
    call = torch.compile(form.call, dynamic=False)
    return form._replace(name=f"{form.name}, compiled", call=call)


# -- linear ----------------------------------------------------------------------------------------


def linear(m: int, rows: int, inputs: int, outputs: int) -> Problem:
    """x [M, N, I], weight [M, O, I], bias [M, O] -> [M, N, O]."""

    def baddbmm(t: Tensors) -> Tensors:
        return [torch.baddbmm(t[2].unsqueeze(1), t[0], t[1].mT)]

    def bmm(t: Tensors) -> Tensors:
        return [torch.bmm(t[0], t[1].mT) + t[2].unsqueeze(1)]

    def offsets(t: Tensors) -> Tensors:
        ends = torch.arange(1, m + 1, device=t[0].device, dtype=torch.int32) * rows
        return [t[0].flatten(0, 1), *t[1:], ends]

    def grouped(t: Tensors) -> Tensors:
        product = F.grouped_mm(t[0], t[1].mT, offs=t[3])
        return [product.view(m, rows, outputs) + t[2].unsqueeze(1)]

    forms = [
        looped(F.linear, 3),
        looped(F.linear, 3, "loop on streams", streams=True),
        Form("baddbmm", baddbmm),
        Form("bmm + bias", bmm),
        vmapped(F.linear),
        Form("grouped_mm", grouped, offsets, on_cpu=False),
    ]
    shapes = [(m, rows, inputs), (m, outputs, inputs), (m, outputs)]
    return Problem(shapes, forms, 2.0 * m * rows * inputs * outputs)


# -- convolution -----------------------------------------------------------------------------------


def members_in_channels(x: Tensor) -> Tensor:
    """[M, B, C, H, W] -> [B, M C, H, W]."""
    return x.transpose(0, 1).flatten(1, 2)


def members_out_of_channels(x: Tensor, m: int) -> Tensor:
    """[B, M C, H, W] -> [M, B, C, H, W]."""
    b, wide, *size = x.shape
    return x.reshape(b, m, wide // m, *size).transpose(0, 1)


def convolution(
    m: int, batch: int, inputs: int, outputs: int, size: int, *, kernel: int = 3, stride: int = 1,
    depthwise: bool = False, tuned: bool = False,
) -> Problem:  # fmt: skip
    """x [M, B, I, S, S], weight [M, O, I, k, k] -> [M, B, O, S', S']; tuned: compiled as well."""
    own, pad = (inputs if depthwise else 1), kernel // 2

    def conv(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, stride, pad, groups=own)

    def grouped(t: Tensors) -> Tensors:
        return [F.conv2d(t[0], t[1], None, stride, pad, groups=m * own)]

    def fold(t: Tensors) -> Tensors:
        return [members_in_channels(t[0]).contiguous(), t[1].flatten(0, 1)]

    def fold_last(t: Tensors) -> Tensors:
        return [one.contiguous(memory_format=CL) for one in fold(t)]

    def unfold(outs: Tensors) -> Tensor:
        return members_out_of_channels(outs[0], m)

    def fold_positions(t: Tensors) -> Tensors:  # [M, B, S, S, I], [M, k k I, O]
        weight = t[1].permute(0, 3, 4, 2, 1).reshape(m, -1, outputs)
        return [t[0].permute(0, 1, 3, 4, 2).contiguous(), weight.contiguous()]

    def by_products(t: Tensors) -> Tensors:
        x = F.pad(t[0], (0, 0, pad, pad, pad, pad))
        to = (size + 2 * pad - kernel) // stride + 1
        end = stride * (to - 1) + 1
        parts = [
            x[:, :, i : i + end : stride, j : j + end : stride]
            for i in range(kernel)
            for j in range(kernel)
        ]
        columns = torch.cat(parts, -1).view(m, batch * to * to, kernel * kernel * inputs)
        return [torch.bmm(columns, t[1]).view(m, batch, to, to, outputs)]

    last = by_member_channels_last
    forms = [
        looped(conv, 2),
        looped(conv, 2, "loop, channels_last", fold=last),
        looped(conv, 2, "loop on streams, channels_last", fold=last, streams=True),
        Form("grouped", grouped, fold, unfold),
        Form("grouped, channels_last", grouped, fold_last, unfold),
        vmapped(conv),
    ]
    if not depthwise:
        unfolded = Form(
            "columns + bmm", by_products, fold_positions, lambda o: o[0].permute(0, 1, 4, 2, 3)
        )
        forms += [unfolded, compiled(unfolded)] if tuned else [unfolded]
    shapes = [(m, batch, inputs, size, size), (m, outputs, inputs // own, kernel, kernel)]
    positions = ((size - 1) // stride + 1) ** 2
    flop = 2.0 * m * batch * positions * outputs * (inputs // own) * kernel**2
    return Problem(shapes, forms, flop)


# -- normalisation ---------------------------------------------------------------------------------


def layer_norm(m: int, rows: int, width: int) -> Problem:
    """x [M, N, W], weight and bias [M, W] -> [M, N, W]."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), weight, bias)

    def broadcast(t: Tensors) -> Tensors:
        return [torch.addcmul(t[2].unsqueeze(1), F.layer_norm(t[0], (width,)), t[1].unsqueeze(1))]

    plain = Form("broadcast", broadcast)
    forms = [looped(norm, 3), plain, compiled(plain), vmapped(norm)]
    return Problem([(m, rows, width), (m, width), (m, width)], forms, 8.0 * m * rows * width)


def group_norm(m: int, batch: int, channels: int, size: int, groups: int = 32) -> Problem:
    """x [M, B, C, S, S], weight and bias [M, C] -> [M, B, C, S, S]."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x, groups, weight, bias)

    def in_channels(t: Tensors) -> Tensors:
        return [F.group_norm(t[0], m * groups, t[1].flatten(), t[2].flatten())]

    def fold(t: Tensors) -> Tensors:
        return [members_in_channels(t[0]).contiguous(), *t[1:]]

    def fold_last(t: Tensors) -> Tensors:
        return [fold(t)[0].contiguous(memory_format=CL), *t[1:]]

    def unfold(outs: Tensors) -> Tensor:
        return members_out_of_channels(outs[0], m)

    def in_batch(t: Tensors) -> Tensors:
        x = F.group_norm(t[0], groups).unflatten(0, (m, batch))
        weight, bias = (p.view(m, 1, channels, 1, 1) for p in t[1:])
        return [torch.addcmul(bias, x, weight)]

    def fold_batch(t: Tensors) -> Tensors:
        return [t[0].flatten(0, 1).contiguous(), *t[1:]]

    def fold_batch_last(t: Tensors) -> Tensors:
        return [t[0].flatten(0, 1).contiguous(memory_format=CL), *t[1:]]

    channels_last = Form("members in channels, channels_last", in_channels, fold_last, unfold)
    batch_last = Form("broadcast, channels_last", in_batch, fold_batch_last)
    forms = [
        looped(norm, 3),
        Form("members in channels", in_channels, fold, unfold),
        channels_last,
        compiled(channels_last),
        Form("broadcast", in_batch, fold_batch),
        batch_last,
        compiled(batch_last),
        vmapped(norm),
    ]
    shapes = [(m, batch, channels, size, size), (m, channels), (m, channels)]
    return Problem(shapes, forms, 8.0 * m * batch * channels * size**2)


# -- attention, embedding, recurrence --------------------------------------------------------------


def attention(m: int, batch: int, heads: int, tokens: int, width: int) -> Problem:
    """q, k and v [M, B, H, T, D] -> [M, B, H, T, D]."""

    def folded(t: Tensors) -> Tensors:
        q, k, v = (one.flatten(0, 1) for one in t)
        return [F.scaled_dot_product_attention(q, k, v).unflatten(0, (m, batch))]

    def by(backend: SDPBackend, call: Callable[[Tensors], Tensors]) -> Callable[..., Tensors]:
        def inside(t: Tensors) -> Tensors:
            with sdpa_kernel(backend):
                return call(t)

        return inside

    def over_members(t: Tensors) -> Tensors:
        q, k, v = t
        return [vmap(F.scaled_dot_product_attention)(q, k, v)]

    forms = [
        looped(F.scaled_dot_product_attention, 3),
        Form("folded", folded),
        Form("folded, flash", by(SDPBackend.FLASH_ATTENTION, folded), on_cpu=False),
        Form("folded, cuDNN", by(SDPBackend.CUDNN_ATTENTION, folded), on_cpu=False),
        Form("folded, efficient", by(SDPBackend.EFFICIENT_ATTENTION, folded), on_cpu=False),
        Form("folded, mathematical", by(SDPBackend.MATH, folded)),
        Form("vmap, mathematical", by(SDPBackend.MATH, over_members)),
        Form("vmap", over_members, on_cpu=False),
    ]
    flop = 4.0 * m * batch * heads * tokens**2 * width
    return Problem([(m, batch, heads, tokens, width)] * 3, forms, flop)


def embedding(m: int, batch: int, tokens: int, words: int, width: int) -> Problem:
    """ids [M, B, T], weight [M, V, D] -> [M, B, T, D]."""

    def offsets(t: Tensors) -> Tensors:
        first = words * torch.arange(m, device=t[0].device).view(m, 1, 1)
        return [F.embedding(t[0] + first, t[1].flatten(0, 1))]

    def indexed(t: Tensors) -> Tensors:
        return [t[1][torch.arange(m, device=t[0].device).view(m, 1, 1), t[0]]]

    forms = [
        looped(F.embedding, 2),
        Form("offsets", offsets),
        Form("indexed", indexed),
        vmapped(F.embedding),
    ]
    shapes: list[tuple[int, ...]] = [(m, batch, tokens), (m, words, width)]
    return Problem(shapes, forms, 0.0, words)


def lstm(m: int, batch: int, tokens: int, width: int) -> Problem:
    """x [M, B, T, W], the weights of one LSTM layer -> all hidden states [M, B, T, W]."""

    def one(x: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        zero = x.new_zeros(1, len(x), width)
        out: Tensor = torch.lstm(
            x, (zero, zero), [w, u, b, c], True, 1, 0.0, True, False, True
        )[0]  # fmt: skip
        return out

    def scan(t: Tensors) -> Tensors:
        x, w, u, b, c = t
        rows = x.transpose(1, 2).flatten(1, 2)  # [M, T B, W]
        driven = torch.baddbmm((b + c).unsqueeze(1), rows, w.mT).view(m, tokens, batch, -1)
        h = cell = x.new_zeros(m, batch, width)
        outs = []
        for now in driven.unbind(1):
            i, f, g, o = torch.baddbmm(now, h, u.mT).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            h = o.sigmoid() * cell.tanh()
            outs.append(h)
        return [torch.stack(outs, 2)]

    forms = [
        looped(one, 5),
        looped(one, 5, "loop on streams", streams=True),
        Form("scan of baddbmm", scan),
    ]
    w4: tuple[int, ...] = (m, 4 * width, width)
    b4: tuple[int, ...] = (m, 4 * width)
    flop = 16.0 * m * batch * tokens * width**2
    return Problem([(m, batch, tokens, width), w4, w4, b4, b4], forms, flop)
