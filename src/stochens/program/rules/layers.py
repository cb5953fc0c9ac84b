"""Layers without positions: products, norms, attention, embeddings, recurrent ones, noise."""

from typing import Any

import torch
from torch.nn import functional as F

from stochens.program import noise, operators
from stochens.program.rules.table import Made, mapped_arguments, rule
from stochens.program.stacker import Arguments, Stacker, replace


@rule("linear")
def linear(s: Stacker, target: Any, given: Arguments) -> Made:
    x, weight, bias = given["input"], given["weight"], given["bias"]
    if weight.shared and (bias is None or bias.shared):  # frozen
        return s.emit(F.linear, s.front(x), weight.node, bias and bias.node), "front"
    return s.emit(
        operators.linear, s.stacked(x), s.stacked(weight), bias and s.stacked(bias)
    ), "front"


@rule("addmm")
def addmm(s: Stacker, target: Any, given: Arguments) -> Made:
    """bias + x weight: bias [O], x [N, I], weight [I, O]."""
    if given["beta"] != 1 or given["alpha"] != 1:
        return None
    bias = given["self"]
    if bias.rank != 1:
        return None
    own = [s.stacked(given["mat1"]), s.stacked(given["mat2"]), s.stacked(bias)]
    return s.emit(operators.product, *own), "front"


@rule("mm", "bmm", "matmul")
def matmul(s: Stacker, target: Any, given: Arguments) -> Made:
    one, two = given["self"], given["mat2" if "mat2" in given else "other"]
    if min(one.rank, two.rank) < 2:
        return None
    rank = max(one.rank, two.rank)
    return s.emit(torch.matmul, s.ranked(one, rank), s.ranked(two, rank)), "front"


@rule("layer_norm", "rms_norm")
def last_axes_norm(s: Stacker, target: Any, given: Arguments) -> Made:
    x, weight = given["input"], given["weight"]
    own = [s.stacked(x), given["normalized_shape"], weight and s.stacked(weight)]
    if target.name().startswith("aten::rms_norm"):
        return s.emit(operators.rms_norm, *own, given["eps"]), "front"
    bias = given["bias"] and s.stacked(given["bias"])
    return s.emit(operators.layer_norm, *own, bias, given["eps"]), "front"


@rule("group_norm")
def group_norm(s: Stacker, target: Any, given: Arguments) -> Made:
    x, own = given["input"], [given[n] and s.stacked(given[n]) for n in ("weight", "bias")]
    groups, eps = given["num_groups"], given["eps"]
    if x.where == "channels":
        made = s.emit(operators.group_norm_in_channels, x.node, groups, *own, eps, s.members)
        return made, "channels"
    return s.emit(operators.group_norm, s.stacked(x), groups, *own, eps), "front"


@rule("batch_norm")
def batch_norm(s: Stacker, target: Any, given: Arguments) -> Made:
    if given["training"] or given["running_mean"] is None:
        return None
    names = ("weight", "bias", "running_mean", "running_var")
    own = [given[n] and s.stacked(given[n]) for n in names]
    return s.emit(operators.batch_norm, s.stacked(given["input"]), *own, given["eps"]), "front"


@rule("scaled_dot_product_attention")
def attention(s: Stacker, target: Any, given: Arguments) -> Made:
    values = [given[name] for name in ("query", "key", "value")]
    mask = given["attn_mask"]
    if any(v.rank != 4 for v in values) or (mask is not None and mask.shared and mask.rank > 4):
        return None
    over = None
    if mask is not None:
        over = s.emit(operators.with_rank, s.stacked(mask), 4)
    options = {n: given[n] for n in ("scale", "enable_gqa") if given.get(n)}
    made = s.emit(
        operators.attend,
        *map(s.stacked, values),
        over,
        given["dropout_p"],
        given["is_causal"],
        options,
    )
    return made, "front"


@rule("embedding")
def embedding(s: Stacker, target: Any, given: Arguments) -> Made:
    weight, index = given["weight"], given["indices"]
    if given["sparse"] or given["scale_grad_by_freq"]:
        return None
    if weight.shared:
        more = [given["padding_idx"]]
        return s.emit(target, weight.node, s.front(index), *more), "front"
    return s.emit(operators.embed, weight.node, s.stacked(index), given["padding_idx"]), "front"


@rule("dropout")
def dropout(s: Stacker, target: Any, given: Arguments) -> Made:
    """The network's own, from torch's generator."""
    x = given["input"]
    if not given["train"] or given["p"] == 0:
        return x.node, x.where
    if x.where == "channels":
        return s.emit(target, x.node, given["p"], True), "channels"
    return s.emit(target, s.stacked(x), given["p"], True), "front"


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(s: Stacker, target: Any, given: Arguments) -> Made:
    """One member after the other: vmap has no rule for them."""
    axes, args, _ = mapped_arguments(s, target, given)
    return s.emit(operators.loop_members, target, axes, s.members, *args), "front"


@rule("stochens::noise_mask", "stochens::noise_normal")
def draw_noise(s: Stacker, target: Any, given: Arguments) -> Made:
    draw = noise.draw_mask if "mask" in target.name() else noise.draw_normal
    made = s.emit(draw, *replace(given, lambda v: v.node).values())
    return made, "shared" if s.alone else "front"
