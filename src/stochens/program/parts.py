"""The two parts of a network that is cut: graphs of their own, as modules."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import is_symbolic

from stochens.members import Params
from stochens.methods.base import register
from stochens.program.program import placeholders
from stochens.program.trace import Traced, Untraceable
from stochens.randomness.noise import bernoulli, normal
from stochens.trees import Input, InputTree

Batch = set[Any]  # the symbols that stand for the number of examples


class Part(nn.Module):
    """A graph of (*tensors of the input, *parameters, *constants), which are its own under the
    names given. It gives one tensor, or several as an InputTree."""

    def __init__(self, graph: fx.Graph, params: Params, constants: list[Tensor]) -> None:
        super().__init__()
        self._graph = (fx.GraphModule(nn.Module(), graph),)  # torch need not see it: it has nothing
        self._names, self._held = list(params), len(constants)
        for name, p in params.items():
            register(self, name, p)  # type: ignore[arg-type]
        for k, constant in enumerate(constants):
            self.register_buffer(f"constant_{k}", constant, persistent=False)

    def forward(self, x: Input) -> Input:
        given = x.leaves if isinstance(x, InputTree) else [x]  # a stand-in of graph.py is no Tensor
        own = [attrgetter(name)(self) for name in self._names]
        held = [getattr(self, f"constant_{k}") for k in range(self._held)]
        # `forward`, since FlopCounterMode cannot hook into a module that is called with views
        outputs: tuple[Tensor, ...] = self._graph[0].forward(*given, *own, *held)
        return outputs[0] if len(outputs) == 1 else InputTree(outputs)


def _ancestors(ends: Iterable[fx.Node], stop: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """All that they need, themselves included; of what `stop` says, no more."""
    found: set[fx.Node] = set()
    left = list(ends)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += [] if stop(node) else _needs(node)
    return found


NOISE = (torch.ops.stochens.noise_mask.default, torch.ops.stochens.noise_normal.default)


def _needs(node: fx.Node) -> list[fx.Node]:
    """What the parts need for it: noise does not ask there whose it is."""
    if node.target not in NOISE:
        return list(node.all_input_nodes)
    return [length for length in node.args[3] if isinstance(length, fx.Node)]  # type: ignore[union-attr]


def prefix_of(traced: Traced, values: list[fx.Node]) -> nn.Module:
    wanted = _ancestors(values, lambda node: False)
    graph, made = fx.Graph(), {}
    for k, x in enumerate(placeholders(traced)[: traced.inputs]):
        made[x] = graph.placeholder(f"x_{k}")
    held = _hold(traced, wanted, graph, made)
    for node in traced.graph.nodes:
        if node in wanted and node not in made:
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[value] for value in values))
    return Part(graph, {}, held)


def rest_of(
    net: nn.Module, traced: Traced, values: list[fx.Node], batch: Batch
) -> tuple[nn.Module, list[str]]:
    """The network of features, and the names of the nodes that it has of the whole."""
    given = placeholders(traced)[:-2]
    inputs, own = given[: traced.inputs], given[traced.inputs :]
    (end,) = next(node for node in traced.graph.nodes if node.op == "output").args[0]
    cut = set(values)
    wanted = _ancestors([end], lambda node: node in cut or is_batch(node, batch))
    if any(x in wanted and x not in cut for x in inputs):
        raise Untraceable("it needs x beside its features")
    graph, made = fx.Graph(), {}
    for k, value in enumerate(values):
        made[value] = graph.placeholder(f"features_{k}")
    for node in own:
        made[node] = graph.placeholder(node.name)
    held = _hold(traced, wanted - cut, graph, made)
    typical = _typical(values, own[0])
    like, dtype = made[typical], typical.meta["val"].dtype
    names = []
    for node in traced.graph.nodes:
        if node not in wanted or node in made or node.op == "output":
            continue
        if is_batch(node, batch):
            made[node] = graph.call_function(length, (like,))
        elif node.target in NOISE:
            made[node] = _draw(graph, node, like, made, dtype)
        elif node.kwargs.get("dtype") == dtype and not _takes_tensors(node):
            made[node] = _make(graph, node, like, made)
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
        names.append(node.name)
    graph.output((made[end],))
    params = dict(zip(traced.names, (net.get_parameter(n) for n in traced.names), strict=True))
    return Part(graph, params, held), names  # type: ignore[arg-type]


def _hold(
    traced: Traced, wanted: set[fx.Node], graph: fx.Graph, made: dict[fx.Node, fx.Node]
) -> list[Tensor]:
    """A placeholder for each constant that is wanted, and their values."""
    held = []
    for node in traced.graph.nodes:
        if node.op == "placeholder" and node in wanted and node.name in traced.constants:
            made[node] = graph.placeholder(node.name)
            held.append(traced.constants[node.name])
    return held


# The rest may run in another precision than it was traced in: noise and constants that are made in
# a pass have the type of the features, where they had it in the trace.


def _typical(values: list[fx.Node], param: fx.Node) -> fx.Node:
    """The features that are of the parameters' type: a mask beside them may be of another."""
    wanted = param.meta["val"].dtype

    def fits(value: fx.Node) -> tuple[bool, bool]:
        dtype = value.meta["val"].dtype
        return dtype == wanted, dtype.is_floating_point

    return max(values, key=fits)


def _takes_tensors(node: fx.Node) -> bool:
    return any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes)


def _make(graph: fx.Graph, node: fx.Node, like: fx.Node, made: dict[fx.Node, fx.Node]) -> fx.Node:
    given: Any = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
    args, kwargs = given[0], {name: v for name, v in given[1].items() if name != "dtype"}
    target: Any = node.target
    return graph.call_function(make, (like, target, *args), kwargs)


def _draw(
    graph: fx.Graph,
    node: fx.Node,
    like: fx.Node,
    made: dict[fx.Node, fx.Node],
    dtype: torch.dtype,
) -> fx.Node:
    """Noise as layers ask for it. What is fresh for each example has their number in its shape."""
    *_, shape, last = node.args
    fresh = any(isinstance(n, fx.Node) for n in shape)  # type: ignore[union-attr]
    lengths = fx.map_arg(shape, made.__getitem__)
    if node.target is NOISE[0]:
        keep = (last + 2**31) / 2**32  # type: ignore[operator]
        return graph.call_function(mask, (like, lengths, keep, fresh))
    wanted = None if last == dtype else last
    return graph.call_function(normal_numbers, (like, lengths, wanted, fresh))


# What the graphs call.


def length(features: Tensor) -> int:
    return features.shape[0]


def mask(like: Tensor, shape: Sequence[int], keep: float, fresh: bool) -> Tensor:
    return bernoulli(keep, tuple(shape), like, fresh=fresh)


def normal_numbers(
    like: Tensor, shape: Sequence[int], dtype: torch.dtype | None, fresh: bool
) -> Tensor:
    empty = torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)
    return normal(empty, fresh=fresh)


def make(like: Tensor, target: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return target(*args, dtype=like.dtype, **kwargs)


# Lengths.


def batch_of(traced: Traced) -> Batch:
    """The number of examples. Inputs that the network never puts together have a symbol each."""
    lengths = [x.meta["val"].shape[0] for x in placeholders(traced)[: traced.inputs]]
    return {length.node.expr for length in lengths if is_symbolic(length)}


def is_of_batch(length: Any, batch: Batch) -> bool:
    return bool(is_symbolic(length) and length.node.expr in batch)


def is_batch(node: fx.Node, batch: Batch) -> bool:
    """Whether it is the number of examples, of whatever tensor."""
    return node.target is torch.ops.aten.sym_size.int and is_of_batch(node.meta["val"], batch)
