"""The table of rules, and the rules for any operator: vmap of it, or the operator itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from stochens.private_names import schema_of
from stochens.program import operators
from stochens.program.stacker import Arguments, Stacker, Value, Where, call, replace, values_in

Rule = Callable[[Stacker, Any, Arguments], tuple[fx.Node, Where] | None]
Made = tuple[fx.Node, Where] | None
RULES: dict[str, Rule] = {}  # by the operator's name, "aten::linear"


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(made: Rule) -> Rule:
        RULES.update({name if "::" in name else f"aten::{name}": made for name in names})
        return made

    return add


def mapped(s: Stacker, target: Any, given: Arguments) -> tuple[fx.Node, Where]:
    """vmap of the operator."""
    axes, args, names = mapped_arguments(s, target, given)
    return s.emit(operators.map_members, target, axes, names, *args), "front"


def mapped_arguments(
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
            return v.rank == rank and is_same(shape[1], channels)
        return not v.shared and v.rank == rank - 1 and is_same(shape[0], channels)

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


def is_same(size: Any, other: Any) -> bool:
    """Whether two lengths are the same number, known now."""
    return isinstance(size, int) and isinstance(other, int) and size == other
