"""Operators of shapes and of axes: the same, counted behind the members."""

from typing import Any

import torch

from stochens.program import operators
from stochens.program.rules.table import Made, pointwise, rule
from stochens.program.stacker import Arguments, Stacker, Value, call, replace, values_in

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
