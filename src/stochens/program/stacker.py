"""From the graph of one member to the graph of all: where the members are in each value."""

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx

from stochens.private_names import schema_of
from stochens.program import operators

Where = Literal["shared", "front", "channels"]


class Value(NamedTuple):
    """A value of the stacked graph.

    shared: the same for all members, as in one member's graph. front: [M, ...]. channels:
    [B, M C, *positions] where one member has [B, C, *positions].
    """

    node: fx.Node
    where: Where
    one: Any  # one member's value, a tensor without numbers; or a tuple of them, or an int

    @property
    def rank(self) -> int:
        return int(self.one.dim())

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.one, Tensor)

    @property
    def shared(self) -> bool:
        return self.where == "shared"


Arguments = dict[str, Any]  # of an operator, by name, defaults filled in; with Values


class Stacker:
    """Holds the graph that is being made; rules add to it."""

    def __init__(self, *, alone: bool = False) -> None:
        self.graph = fx.Graph()
        self.alone = alone  # one member: all is shared
        self.members: fx.Node  # how many, M
        self._fronts: dict[fx.Node, fx.Node] = {}
        self._channels: dict[fx.Node, fx.Node] = {}

    def emit(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def front(self, value: Value) -> fx.Node:
        """[M, ...], or as it is where it is shared."""
        if value.where != "channels":
            return value.node
        if value.node not in self._fronts:
            made = self.emit(operators.out_of_channels, value.node, self.members)
            self._fronts[value.node] = made
        return self._fronts[value.node]

    def stacked(self, value: Value) -> fx.Node:
        """[M, ...] in any case."""
        if value.shared:
            return self.emit(operators.for_each, value.node, self.members)
        return self.front(value)

    def channels(self, value: Value) -> fx.Node:
        """[B, M C, *positions] of a value that one member has as [B, C, *positions]."""
        if value.where == "channels":
            return value.node
        if value.node not in self._channels:
            made = self.emit(operators.into_channels, self.stacked(value))
            self._channels[value.node] = made
        return self._channels[value.node]

    def ranked(self, value: Value, rank: int) -> fx.Node:
        """Of so many axes after M, where it is stacked, so that it broadcasts."""
        node = self.front(value)
        if value.shared or value.rank == rank:
            return node
        return self.emit(operators.with_rank, node, rank)


def arguments_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """All arguments of an operator by name, with its defaults."""
    found: Arguments = {}
    for k, argument in enumerate(schema_of(target).arguments):
        if k < len(args):
            found[argument.name] = args[k]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def values_in(arguments: Any) -> list[Value]:
    """The tensors among arguments, in lists too."""
    if isinstance(arguments, Value):
        return [arguments] if arguments.is_tensor else []
    if isinstance(arguments, dict):
        return [v for value in arguments.values() for v in values_in(value)]
    if isinstance(arguments, (list, tuple)):
        return [v for value in arguments for v in values_in(value)]
    return []


def replace(arguments: Any, change: Callable[[Value], Any]) -> Any:
    """The same with something else in place of each Value."""
    if isinstance(arguments, Value):
        return change(arguments)
    if isinstance(arguments, dict):
        return {name: replace(value, change) for name, value in arguments.items()}
    if isinstance(arguments, (list, tuple)):
        return [replace(value, change) for value in arguments]
    return arguments


def call(s: Stacker, target: Any, arguments: Arguments) -> fx.Node:
    """The operator with these arguments, nodes in place of Values."""
    own = schema_of(target).arguments
    plain = [arguments[a.name] for a in own if not a.kwarg_only and a.name in arguments]
    named = {a.name: arguments[a.name] for a in own if a.kwarg_only and a.name in arguments}
    return s.emit(target, *plain, **named)


def item(s: Stacker, value: Value, k: int, one: Any) -> Value:
    """value[k] of what an operator returns several of."""
    return Value(s.emit(operator.getitem, value.node, k), value.where, one)


def is_pointwise(target: Any) -> bool:
    return torch.Tag.pointwise in target.tags


def is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags
