"""Whole networks of `models.py` written by hand for all members at once, as a traced program with
operator rules would run them: what member-examples a second can a design reach?

Each takes params {name: [M, ...]}, named as in one member, and x [M, B, ...], and gives logits
[M, B, C]. Linear layers are baddbmm, attention folds members into the batch. Convolutions are one
grouped launch with members in the channels, [B, M C, H, W], or one launch a member (in turn or on
side streams) with members in the batch, [M B, C, H, W]. Images are channels_last throughout.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import CNN, Network, ResNet18, Text, ViT
from stacked_layers import CL, members_in_channels, members_out_of_channels, on_streams

Params = dict[str, Tensor]
Forward = Callable[[Params, Tensor], Tensor]


def linear(p: Params, name: str, x: Tensor) -> Tensor:
    """x [M, N, I] -> [M, N, O]."""
    return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), x, p[f"{name}.weight"].mT)


def layer_norm(p: Params, name: str, x: Tensor) -> Tensor:
    """x [M, N, W] -> [M, N, W]."""
    plain = F.layer_norm(x, x.shape[-1:])
    weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
    return torch.addcmul(bias.unsqueeze(1), plain, weight.unsqueeze(1))


def attend(qkv: Tensor, heads: int, batch: int) -> Tensor:
    """qkv [M, B T, 3 W] -> [M, B T, W], members and batch as one axis for the fused kernels."""
    m, rows, wide = qkv.shape
    parts = qkv.view(m * batch, rows // batch, 3, heads, wide // 3 // heads)
    q, k, v = parts.permute(2, 0, 3, 1, 4)  # each [M B, H, T, D]
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(m, rows, wide // 3)


# -- networks without convolutions -----------------------------------------------------------------


def mlp(p: Params, x: Tensor) -> Tensor:
    names = [name.removesuffix(".weight") for name in p if name.endswith(".weight")]
    for name in names[:-1]:
        x = F.relu(linear(p, name, x))
    return linear(p, names[-1], x)


def vit(p: Params, x: Tensor, *, depth: int, heads: int) -> Tensor:
    m, b, c, side, _ = x.shape
    n = side // 4
    patches = x.view(m, b, c, n, 4, n, 4).permute(0, 1, 3, 5, 2, 4, 6).reshape(m, b * n * n, -1)
    weight, bias = p["patch.weight"].flatten(2), p["patch.bias"]
    h = torch.baddbmm(bias.unsqueeze(1), patches, weight.mT)
    h = (h.view(m, b, n * n, -1) + p["place"]).view(m, b * n * n, -1)  # place [M, 1, T, W]
    for k in range(depth):
        at = f"blocks.{k}."
        qkv = linear(p, at + "qkv", layer_norm(p, at + "norm1", h))
        h = h + linear(p, at + "proj", attend(qkv, heads, b))
        up = F.gelu(linear(p, at + "up", layer_norm(p, at + "norm2", h)))
        h = h + linear(p, at + "down", up)
    pooled = layer_norm(p, "norm", h).view(m, b, n * n, -1).mean(2)
    return linear(p, "head", pooled)


def text(p: Params, x: Tensor, *, depth: int, heads: int) -> Tensor:
    m, b, t = x.shape
    words = p["words.weight"]  # [M, V, W]
    first = words.shape[1] * torch.arange(m, device=x.device).view(m, 1, 1)
    h = F.embedding(x + first, words.flatten(0, 1)) + p["place"]
    h = h.view(m, b * t, -1)
    for k in range(depth):
        at = f"layers.{k}."
        into = {
            "in.weight": p[at + "self_attn.in_proj_weight"],
            "in.bias": p[at + "self_attn.in_proj_bias"],
        }
        qkv = linear(into, "in", layer_norm(p, at + "norm1", h))
        h = h + linear(p, at + "self_attn.out_proj", attend(qkv, heads, b))
        up = F.gelu(linear(p, at + "linear1", layer_norm(p, at + "norm2", h)))
        h = h + linear(p, at + "linear2", up)
    pooled = layer_norm(p, "norm", h).view(m, b, t, -1).mean(2)
    return linear(p, "head", pooled)


# -- convolutional networks, in either layout ------------------------------------------------------


class Layout(Protocol):
    """Where the members of an image [., ., H, W] are."""

    def enter(self, x: Tensor) -> Tensor:
        """[M, B, C, H, W] -> the layout."""

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor: ...

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor: ...

    def leave(self, x: Tensor, m: int) -> Tensor:
        """The layout -> [M, B, C, H, W]."""


def _channels_last(weight: Tensor) -> Tensor:
    """[M, O, I, k, k] as it is, in a memory where each member's kernel is channels_last."""
    return weight.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _pad(weight: Tensor) -> int:
    return weight.shape[-1] // 2


class InChannels:
    """[B, M C, H, W]: grouped convolutions, group normalisation as torch has it."""

    def enter(self, x: Tensor) -> Tensor:
        return members_in_channels(x).contiguous(memory_format=CL)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        flat = _channels_last(weight).flatten(0, 1)
        plus = None if bias is None else bias.flatten()
        return F.conv2d(x, flat, plus, stride, _pad(weight), groups=len(weight))

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
        return F.group_norm(x, len(weight) * groups, weight.flatten(), bias.flatten())

    def leave(self, x: Tensor, m: int) -> Tensor:
        return members_out_of_channels(x, m)


class InBatch:
    """[M B, C, H, W]: one convolution a member, the rest broadcast."""

    def __init__(self, *, streams: bool = False) -> None:
        self._streams = streams

    def enter(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).contiguous(memory_format=CL)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        own, kernels = x.chunk(len(weight)), _channels_last(weight).unbind()

        def one(k: int) -> Tensor:
            plus = None if bias is None else bias[k]
            return F.conv2d(own[k], kernels[k], plus, stride, _pad(weight))

        members = len(weight)
        return torch.cat(
            on_streams(one, members) if self._streams else list(map(one, range(members)))
        )

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
        m, c = weight.shape
        plain = F.group_norm(x, groups).unflatten(0, (m, -1))
        return torch.addcmul(bias.view(m, 1, c, 1, 1), plain, weight.view(m, 1, c, 1, 1)).flatten(
            0, 1
        )

    def leave(self, x: Tensor, m: int) -> Tensor:
        return x.view(m, -1, *x.shape[1:])


LAYOUTS: dict[str, Layout] = {
    "grouped": InChannels(),
    "looped": InBatch(),
    "streams": InBatch(streams=True),
}


def cnn(p: Params, x: Tensor, *, layout: Layout) -> Tensor:
    m = len(x)
    h = layout.enter(x)
    for k in range(1, 5):
        h = F.relu(layout.conv(h, p[f"conv{k}.weight"], p[f"conv{k}.bias"], 1))
        h = F.max_pool2d(h, 2) if k % 2 == 0 else h
    return linear(p, "head", layout.leave(h, m).flatten(2))


def resnet18(p: Params, x: Tensor, *, layout: Layout, groups: int) -> Tensor:
    m = len(x)

    def block(h: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        h = layout.conv(h, p[f"{conv}.weight"], None, stride)
        return layout.norm(h, p[f"{norm}.weight"], p[f"{norm}.bias"], groups)

    h = F.relu(block(layout.enter(x), "stem", "norm"))
    for k in range(8):
        at = f"blocks.{k}."
        stride = 2 if k in (2, 4, 6) else 1
        inner = F.relu(block(h, at + "conv1", at + "norm1", stride))
        inner = block(inner, at + "conv2", at + "norm2")
        if f"{at}short.0.weight" in p:
            h = block(h, at + "short.0", at + "short.1", stride)
        h = F.relu(inner + h)
    return linear(p, "head", layout.leave(h, m).mean((3, 4)))


def forwards(network: Network) -> dict[str, Forward]:
    """The stacked forms of a network, by name; none where none is written."""
    net = network.build()
    if isinstance(net, ViT):
        depth, first = len(net.blocks), net.blocks[0]
        heads = int(first.heads)  # type: ignore[arg-type]
        return {"stacked": partial(vit, depth=depth, heads=heads)}
    if isinstance(net, Text):
        return {"stacked": partial(text, depth=len(net.layers), heads=net.heads)}
    if isinstance(net, CNN):
        return {name: partial(cnn, layout=layout) for name, layout in LAYOUTS.items()}
    if isinstance(net, ResNet18):
        groups = net.norm.num_groups
        return {
            name: partial(resnet18, layout=layout, groups=groups)
            for name, layout in LAYOUTS.items()
        }
    if isinstance(net, nn.Sequential):
        return {"stacked": mlp}
    return {}
