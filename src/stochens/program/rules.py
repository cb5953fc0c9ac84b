"""The rule of each operator: how one member's node becomes a node for all members.

A rule gets the node's arguments by name, with Values in place of tensors, and returns a Value, or
None where it does not apply. What has no rule is vmap of that one operator. vmap is also what every
rule is tested against.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from stochens.private_names import schema_of
from stochens.program import noise, operators
from stochens.program.stacker import (
    Arguments,
    Stacker,
    Value,
    Where,
    arguments_of,
    call,
    is_pointwise,
    is_random,
    replace,
    values_in,
)

Rule = Callable[[Stacker, Any, Arguments], tuple[fx.Node, Where] | None]
Made = tuple[fx.Node, Where] | None
RULES: dict[str, Rule] = {}  # by the operator's name, "aten::linear"


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(made: Rule) -> Rule:
        RULES.update({name if "::" in name else f"aten::{name}": made for name in names})
        return made

    return add


def apply(
    s: Stacker, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], one: Any
) -> Value:
    """The node's Value for all members; args and kwargs hold Values, `one` is one member's."""
    given = arguments_of(target, args, kwargs)
    own = RULES.get(target.name().split(".")[0])
    tensors = values_in(given)
    shared = all(value.shared for value in tensors)
    made: Made = None
    if shared and (s.alone or not is_random(target)) and own is not draw_noise:
        own_view = own is view and "size" in given  # memory may lie otherwise than in the trace
        called = torch.ops.aten.reshape.default if own_view else target
        named = {"self": given["self"], "shape": given["size"]} if own_view else given
        made = call(s, called, replace(named, lambda v: v.node)), "shared"
    elif own is not None:
        made = own(s, target, given)
    elif is_pointwise(target):
        made = pointwise(s, target, given)
    node, where = made if made is not None else mapped(s, target, given)
    return Value(node, where, one)


# -- any operator ----------------------------------------------------------------------------------


def mapped(s: Stacker, target: Any, given: Arguments) -> tuple[fx.Node, Where]:
    """vmap of the operator."""
    axes, args, names = _mapped_arguments(s, target, given)
    return s.emit(operators.map_members, target, axes, names, *args), "front"


def _mapped_arguments(
    s: Stacker, target: Any, given: Arguments
) -> tuple[list[Any], list[Any], list[str]]:
    tensors = values_in(given)
    if tensors and all(value.shared for value in tensors):  # a random operator: each its own
        given = replace(given, lambda v: v._replace(node=s.stacked(v), where="front"))
    nodes = replace(given, s.front)
    named = [a.name for a in schema_of(target).arguments if a.kwarg_only and a.name in given]
    order = [*(name for name in given if name not in named), *named]
    return [_axis(given[name]) for name in order], [nodes[name] for name in order], named


def _axis(argument: Any) -> Any:
    """0 where it has the member axis, None where it has none; a list for a list of tensors."""
    if isinstance(argument, Value):
        return 0 if argument.is_tensor and not argument.shared else None
    if isinstance(argument, (list, tuple)):
        inner = [_axis(value) for value in argument]
        return inner if any(value is not None for value in inner) else None
    return None


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(s: Stacker, target: Any, given: Arguments) -> Made:
    """One member after the other: vmap has no rule for them."""
    axes, args, _ = _mapped_arguments(s, target, given)
    return s.emit(operators.loop_members, target, axes, s.members, *args), "front"


def pointwise(s: Stacker, target: Any, given: Arguments) -> Made:
    """The same operator, where members that have fewer axes get axes of length 1 behind M."""
    tensors = values_in(given)
    if any(v.where == "channels" for v in tensors) and (nodes := _in_channels(s, given)):
        return call(s, target, nodes), "channels"
    rank = max(v.rank for v in tensors)
    return call(s, target, replace(given, lambda v: _ranked(s, v, rank))), "front"


def _ranked(s: Stacker, value: Value, rank: int) -> fx.Node:
    return s.ranked(value, rank) if value.is_tensor else value.node


def _in_channels(s: Stacker, given: Arguments) -> Arguments | None:
    """All arguments with the members in their channels, or None where that is not possible."""
    first = next(v for v in values_in(given) if v.where == "channels")
    rank, channels = first.rank, first.one.shape[1]

    def fits(v: Value) -> bool:
        if not v.is_tensor or (v.rank == 0 and v.shared):
            return True
        shape = v.one.shape
        if v.where == "channels" or (v.rank == rank and not v.shared):
            return v.rank == rank and _is(shape[1], channels)
        return not v.shared and v.rank == rank - 1 and _is(shape[0], channels)

    def change(v: Value) -> fx.Node:
        if not v.is_tensor or v.rank == 0:
            return v.node
        if v.rank == rank:
            return s.channels(v)
        return s.emit(torch.flatten, v.node, 0, 1)  # [M, C, ...] -> [M C, ...]

    everything = _all_values(given)
    return replace(given, change) if all(map(fits, everything)) else None


def _all_values(arguments: Any) -> list[Value]:
    found: list[Value] = []
    replace(arguments, found.append)
    return found


def _is(size: Any, other: Any) -> bool:
    """Whether two lengths are the same number, known now."""
    return isinstance(size, int) and isinstance(other, int) and size == other


# -- layers ----------------------------------------------------------------------------------------


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


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(s: Stacker, target: Any, given: Arguments) -> Made:
    x, weight, bias = given["input"], given["weight"], given["bias"]
    if x.rank != weight.rank:  # one example without a batch axis
        return None
    rest = {n: given[n] for n in given if n not in ("input", "weight", "bias", "groups")}
    if weight.shared and (bias is None or bias.shared):
        own = {"weight": weight.node, "bias": bias and bias.node, "groups": given["groups"]}
        return s.emit(operators.with_batch, target, s.front(x), {**own, **rest}), "front"
    kernels, biases = s.stacked(weight), bias and s.stacked(bias)
    if _steps_by_its_size(x, weight, given):
        return s.emit(operators.patches, s.stacked(x), kernels, biases), "front"
    if _of_single_positions(weight, given):
        steps = [int(k) for k in given["stride"]] * (1 if len(given["stride"]) > 1 else x.rank - 2)
        return s.emit(operators.pointwise, s.stacked(x), kernels, biases, steps), "front"
    transposed = "transpose" in target.name()
    groups: int | fx.Node
    if x.shared and given["groups"] == 1 and not transposed:  # one launch without groups
        values, groups = x.node, 1
    else:
        values = s.channels(x)
        groups = s.emit(_times, s.members, given["groups"])
    made = s.emit(operators.convolve, target, values, kernels, biases, groups, rest)
    return made, "channels"


def _times(a: int, b: int) -> int:
    return a * b


def _steps_by_its_size(x: Value, weight: Value, given: Arguments) -> bool:
    """Whether a convolution of images cuts them into patches, and x has its members in front."""
    kernel = list(weight.one.shape[2:])
    plain = given["groups"] == 1 and "output_padding" not in given and x.where != "channels"
    if len(kernel) != 2 or kernel == [1, 1] or not plain or isinstance(given["padding"], str):
        return False
    sizes = x.one.shape[2:]
    known = all(isinstance(size, int) for size in sizes)
    return (
        known
        and _both(given["stride"]) == kernel
        and _both(given["padding"]) == [0, 0]
        and _both(given["dilation"]) == [1, 1]
        and all(size % k == 0 for size, k in zip(sizes, kernel, strict=True))
    )


def _of_single_positions(weight: Value, given: Arguments) -> bool:
    plain = given["groups"] == 1 and "output_padding" not in given
    if not plain or isinstance(given["padding"], str) or any(k != 0 for k in given["padding"]):
        return False
    return all(_is(k, 1) for k in weight.one.shape[2:])


def _both(numbers: Any) -> list[int]:
    return [int(k) for k in numbers] * (2 if len(numbers) == 1 else 1)


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


POOLS = [f"{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)]
POOLS += [f"adaptive_{kind}" for kind in POOLS]


@rule(*POOLS, "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def by_example(s: Stacker, target: Any, given: Arguments) -> Made:
    """Operators of [B, C, *positions] that have no parameters; pooling leaves channels alone."""
    (name, x), *rest = given.items()
    wanted = int(target.name()[-2]) + 2 if target.name()[-1] == "d" else 4
    if x.rank != wanted or len(values_in(given)) != 1:
        return None
    if x.where == "channels" and "pool" in target.name():
        return call(s, target, {**given, name: x.node}), "channels"
    return s.emit(operators.with_batch, target, s.front(x), dict(rest)), "front"


@rule("stochens::noise_mask", "stochens::noise_normal")
def draw_noise(s: Stacker, target: Any, given: Arguments) -> Made:
    draw = noise.draw_mask if "mask" in target.name() else noise.draw_normal
    made = s.emit(draw, *replace(given, lambda v: v.node).values())
    return made, "shared" if s.alone else "front"


# -- shapes ----------------------------------------------------------------------------------------

REDUCTIONS = [
    *("sum", "mean", "amax", "amin", "var", "std", "prod", "logsumexp", "any", "all"),
    *("linalg_vector_norm", "norm", "max", "min", "argmax", "argmin"),
]
# The arguments that number axes of the first tensor, by operator
AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys([*REDUCTIONS, "softmax", "log_softmax", "_softmax", "_log_softmax"], ("dim",)),
    **dict.fromkeys(["cumsum", "cumprod", "sort", "topk", "glu", "squeeze", "unsqueeze"], ("dim",)),
    **dict.fromkeys(["select", "slice", "narrow", "unflatten", "unbind"], ("dim",)),
    **dict.fromkeys(["split", "split_with_sizes", "chunk", "tensor_split"], ("dim",)),
    **dict.fromkeys(["flip", "roll"], ("dims",)),
    "transpose": ("dim0", "dim1"),
    "movedim": ("source", "destination"),
    "flatten": ("start_dim", "end_dim"),
    "unfold": ("dimension",),
}


@rule(*AXES)
def along_axes(s: Stacker, target: Any, given: Arguments) -> Made:
    """The same operator with axes counted behind M; those from the end stay as they are."""
    x = next(iter(given.values()))
    kind = target.name().removeprefix("aten::").split(".")[0]
    axes = {n: given.get(n) for n in AXES[kind]}
    if len(values_in(given)) != 1 or x.rank == 0 or any(_missing(a) for a in axes.values()):
        return None
    if x.where == "channels" and kind in REDUCTIONS and _over_positions(axes["dim"], x.rank):
        return call(s, target, {**replace(given, lambda v: v.node)}), "channels"
    shifted = {n: _shifted(a) for n, a in axes.items()}
    rest = replace(given, lambda v: s.front(v) if v.is_tensor else v.node)
    return call(s, target, {**rest, **shifted}), "front"


def _missing(axes: Any) -> bool:
    """Whether there are none, so that the operator means all of the tensor, or a name."""
    return axes is None or axes == [] or isinstance(axes, str)


def _shifted(axes: Any) -> Any:
    if isinstance(axes, (list, tuple)):
        return [_shifted(a) for a in axes]
    return axes + 1 if axes >= 0 else axes


def _over_positions(axes: Any, rank: int) -> bool:
    every = axes if isinstance(axes, (list, tuple)) else [axes]
    return all(a % rank >= 2 for a in every)


@rule("permute")
def permute(s: Stacker, target: Any, given: Arguments) -> Made:
    x = given["self"]
    dims = [0, *(d % x.rank + 1 for d in given["dims"])]
    return s.emit(torch.permute, s.front(x), dims), "front"


@rule("view", "reshape", "_unsafe_view")
def view(s: Stacker, target: Any, given: Arguments) -> Made:
    if "size" not in given and "shape" not in given:  # view of another type
        return None
    size = replace(given.get("size", given.get("shape")), lambda v: v.node)
    return s.emit(torch.reshape, s.front(given["self"]), [s.members, *size]), "front"


@rule("expand")
def expand(s: Stacker, target: Any, given: Arguments) -> Made:
    size = replace(given["size"], lambda v: v.node)
    x = s.ranked(given["self"], len(size))
    return s.emit(torch.ops.aten.expand.default, x, [-1, *size]), "front"


@rule("repeat")
def repeat(s: Stacker, target: Any, given: Arguments) -> Made:
    times = replace(given["repeats"], lambda v: v.node)
    x = s.ranked(given["self"], len(times))
    return s.emit(torch.ops.aten.repeat.default, x, [1, *times]), "front"


@rule("cat", "concat", "stack")
def cat(s: Stacker, target: Any, given: Arguments) -> Made:
    values = given["tensors"]
    if len({v.one.dtype for v in values}) == 1:
        # torch leaves out tensors [0], whatever the rank of the others: an empty cache, for example
        values = [v for v in values if tuple(v.one.shape) != (0,)] or values
    return s.emit(target, [s.stacked(v) for v in values], _shifted(given["dim"])), "front"


@rule("slice_scatter", "select_scatter")
def write_part(s: Stacker, target: Any, given: Arguments) -> Made:
    """What a change in place of a part becomes."""
    own = replace(given, lambda v: s.stacked(v) if v.is_tensor else v.node)
    return call(s, target, {**own, "dim": _shifted(given["dim"])}), "front"


@rule("fill")
def fill(s: Stacker, target: Any, given: Arguments) -> Made:
    x, value = given["self"], given["value"]
    if not isinstance(value, Value) or not value.is_tensor:
        return pointwise(s, target, given)
    return s.emit(operators.fill, s.stacked(x), s.ranked(value, x.rank)), "front"


@rule("constant_pad_nd", "pad", "tril", "triu", "to", "_to_copy", "type_as", "zeros_like")
def as_is(s: Stacker, target: Any, given: Arguments) -> Made:
    """Operators of the last axes, or of each number: the same, with M in front."""
    if target.name().startswith("aten::pad") and given["mode"] != "constant":
        return None
    x = values_in(given)[0]
    if x.where == "channels" and target.name().startswith(("aten::to", "aten::_to_copy")):
        return call(s, target, replace(given, lambda v: v.node)), "channels"
    return call(s, target, replace(given, s.front)), "front"


@rule("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh")
def same_numbers(s: Stacker, target: Any, given: Arguments) -> Made:
    """A copy that changes nothing in place is no copy; but detach has no gradient."""
    x = values_in(given)[0]
    if target.name().startswith("aten::detach"):
        return s.emit(torch.detach, x.node), x.where
    return x.node, x.where


@rule("new_zeros", "new_ones", "new_full", "new_empty")
def new(s: Stacker, target: Any, given: Arguments) -> Made:
    """Of a shape and type alone: the same for all members."""
    return call(s, target, replace(given, lambda v: v.node)), "shared"


@rule("sym_size")
def sym_size(s: Stacker, target: Any, given: Arguments) -> Made:
    return s.emit(target, s.front(given["self"]), _shifted(given["dim"])), "shared"


@rule("rand", "randn", "randint")
def draw(s: Stacker, target: Any, given: Arguments) -> Made:
    """Each member its own numbers, from torch's generator."""
    size = [s.members, *replace(given["size"], lambda v: v.node)]
    return call(s, target, {**given, "size": size}), "front"
