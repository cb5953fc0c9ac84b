"""The rule of each operator: how one member's node becomes a node for all members.

A rule gets the node's arguments by name, with Values in place of tensors, and returns a Value, or
None where it does not apply. What has no rule is vmap of that one operator. vmap is also what every
rule is tested against.
"""

from typing import Any

import torch

from stochens.program.rules import convolution, layers, shapes
from stochens.program.rules.table import RULES, Made, mapped, pointwise, rule
from stochens.program.stacker import (
    Stacker,
    Value,
    arguments_of,
    call,
    is_pointwise,
    is_random,
    replace,
    values_in,
)

__all__ = ["RULES", "apply", "convolution", "layers", "pointwise", "rule", "shapes"]


def apply(
    s: Stacker, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], one: Any
) -> Value:
    """The node's Value for all members; args and kwargs hold Values, `one` is one member's."""
    given = arguments_of(target, args, kwargs)
    own = RULES.get(target.name().split(".")[0])
    tensors = values_in(given)
    shared = all(value.shared for value in tensors)
    made: Made = None
    if shared and (s.alone or not is_random(target)) and own is not layers.draw_noise:
        own_view = (
            own is shapes.view and "size" in given
        )  # memory may lie otherwise than in the trace
        called = torch.ops.aten.reshape.default if own_view else target
        named = {"self": given["self"], "shape": given["size"]} if own_view else given
        made = call(s, called, replace(named, lambda v: v.node)), "shared"
    elif own is not None:
        made = own(s, target, given)
    elif is_pointwise(target):
        made = pointwise(s, target, given)
    node, where = made if made is not None else mapped(s, target, given)
    return Value(node, where, one)
