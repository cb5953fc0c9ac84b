"""Layers without positions: products, norms, attention, embeddings, recurrent ones, noise."""

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from stochens.program import noise, operators
from stochens.program.rules.table import Made, mapped_arguments, rule
from stochens.program.stacker import Arguments, Stacker, Value, call, replace


@rule("linear")
def linear(s: Stacker, target: Any, given: Arguments) -> Made:
    x, weight, bias = given["input"], given["weight"], given["bias"]
    if weight.shared:  # one product of all rows of all members
        shift = bias.node if bias is not None and bias.shared else None
        y = s.emit(F.linear, s.front(x), weight.node, shift)
        if bias is None or bias.shared:
            return y, "front"
        return s.emit(operators.shifted, y, s.ranked(bias, x.rank)), "front"
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
    x, weight = given["mat1"], given["mat2"]
    if weight.shared:
        y = s.emit(torch.matmul, s.front(x), weight.node)
        return s.emit(operators.shifted, y, s.ranked(bias, 2)), "front"
    return s.emit(operators.product, *map(s.stacked, (x, weight, bias))), "front"


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
    if _all_shared(given, "weight", "bias"):  # rows of all members are rows
        return call(s, target, replace({**given, "input": s.front(x)}, lambda v: v.node)), "front"
    own = [s.stacked(x), given["normalized_shape"], weight and s.stacked(weight)]
    if target.name().startswith("aten::rms_norm"):
        return s.emit(operators.rms_norm, *own, given["eps"]), "front"
    bias = given["bias"] and s.stacked(given["bias"])
    return s.emit(operators.layer_norm, *own, bias, given["eps"]), "front"


@rule("group_norm")
def group_norm(s: Stacker, target: Any, given: Arguments) -> Made:
    x = given["input"]
    if x.where != "channels" and _all_shared(given, "weight", "bias"):
        return _with_batch(s, target, given), "front"
    own = [given[n] and s.stacked(given[n]) for n in ("weight", "bias")]
    groups, eps = given["num_groups"], given["eps"]
    if x.where == "channels":
        made = s.emit(operators.group_norm_in_channels, x.node, groups, *own, eps, s.members)
        return made, "channels"
    return s.emit(operators.group_norm, s.stacked(x), groups, *own, eps), "front"


@rule("batch_norm")
def batch_norm(s: Stacker, target: Any, given: Arguments) -> Made:
    if given["training"] or given["running_mean"] is None:
        return None
    x, names = given["input"], ("weight", "bias", "running_mean", "running_var")
    if x.where != "channels" and _all_shared(given, *names):
        return _with_batch(s, target, given), "front"
    own = [given[n] and s.stacked(given[n]) for n in names]
    if x.where == "channels":
        return s.emit(operators.batch_norm_in_channels, x.node, *own, given["eps"]), "channels"
    return s.emit(operators.batch_norm, s.stacked(x), *own, given["eps"]), "front"


def _all_shared(given: Arguments, *names: str) -> bool:
    return _are_shared([given[name] for name in names if given.get(name) is not None])


def _are_shared(values: list[Value]) -> bool:
    return all(value.shared for value in values)


def _with_batch(s: Stacker, target: Any, given: Arguments) -> fx.Node:
    """A layer whose parameters all members share: their examples are one batch of it."""
    (_, x), *rest = given.items()
    own = replace(dict(rest), lambda v: v.node)
    return s.emit(operators.with_batch, target, s.front(x), own)


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
    """One member after the other, since vmap has no rule for them; or all examples as one batch
    where members share the weights."""
    if "batch_first" in given and given["input"].rank == 3 and _are_shared(given["params"]):
        x, states, *rest = given.values()
        several = not isinstance(states, Value)  # an LSTM has two of them
        own = [s.stacked(h) for h in (states if several else [states])]
        plain = replace(rest, lambda v: v.node)
        batch = 0 if given["batch_first"] else 1
        made = s.emit(operators.recur_with_batch, target, s.stacked(x), own, plain, batch, several)
        return made, "front"
    axes, args, _ = mapped_arguments(s, target, given)
    return s.emit(operators.loop_members, target, axes, s.members, *args), "front"


@rule("stochens::noise_mask", "stochens::noise_normal")
def draw_noise(s: Stacker, target: Any, given: Arguments) -> Made:
    draw = noise.draw_mask if "mask" in target.name() else noise.draw_normal
    made = s.emit(draw, *replace(given, lambda v: v.node).values())
    return made, "shared" if s.alone else "front"
