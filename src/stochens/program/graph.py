"""What a network computes, as a graph of a few known operations, in a fraction of a millisecond.

The network's own forward pass runs once on a stand-in for x that notes what is done to it: a
linear layer, a convolution, FRN, an activation, a sum, a mean over positions. Whatever else happens
(a branch on a value or on the number of rows, another operation, a tensor that is no parameter)
ends the look, and so do hooks, buffers, random numbers and state that the network keeps. So a graph
is all that the network does, or there is none. fusions.py has what is made of it.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stochens.methods import StochasticLayer
from stochens.networks import FRN
from stochens.private_names import called_around, parts_of, with_parts
from stochens.program.nodes import Graph, Node, Unknown, refuse

TRIES = 3  # random numbers that are drawn meanwhile may be another thread's


def graph_of(net: nn.Module) -> Graph | None:
    """The graph of a network in the mode that it is in, or None where it does anything else.

    >>> graph = graph_of(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    >>> [node.kind for node in graph.nodes]
    ['input', 'linear', 'tanh', 'linear']
    >>> graph_of(nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))) is None
    True
    """
    try:
        return certain_graph(net)
    except Disturbed:
        return None


class Disturbed(Exception):
    """Random numbers were drawn each time, by the network or by another thread."""


def certain_graph(net: nn.Module) -> Graph | None:
    """Likewise, where the answer is the same whenever one asks; else `Disturbed`."""
    for _ in range(TRIES):
        drawn = _generators()
        try:
            graph = _graph_of(net)
        except (Unknown, Exception):  # of the network's own code, on what is no tensor
            return None
        if _generators() == drawn:
            return graph
    raise Disturbed


def changed(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` of this one object, change what a call of it computes.

    A stochastic layer calls the one inside it, which torch does not see and whose hooks stay.
    """
    own = called_around(module) or "forward" in vars(module)
    return bool(own) or (isinstance(module, StochasticLayer) and changed(module.inner))


def _graph_of(net: nn.Module) -> Graph:
    if next(net.buffers(), None) is not None or any(changed(m) for m in net.modules()):
        refuse()
    named = dict(net.named_parameters())
    notes = _Notes(named)
    twins: dict[nn.Module, nn.Module] = {}
    twin = _twin(net, "", notes, twins)
    before = [(vars(t), dict(vars(t))) for t in twins.values()]
    output = twin(notes.add("input"))
    if type(output) is not Symbol:
        refuse()
    if any(_differ(now, then) for now, then in before):
        refuse()  # it keeps something, and may do another thing at the next call
    shapes = {name: p.shape for name, p in named.items()}
    dtypes = {p.dtype for p in named.values()}
    graph = Graph(tuple(notes.nodes), output.node, shapes, dtypes)
    _check(graph, notes, named)
    return graph


def _check(graph: Graph, notes: "_Notes", named: dict[str, nn.Parameter]) -> None:
    used = Counter(name for node in graph.nodes for name in node.owned)
    if used != Counter(named.keys()) or not all(p.requires_grad for p in named.values()):
        refuse()  # tied, frozen or never used
    for node in graph.nodes:
        if len(graph.uses(node)) == 0 and node is not graph.output:
            refuse()
    for node in notes.overwritten:  # its value is gone: nobody else may have wanted it
        if len(graph.uses(node)) != 1 or node.kind in ("input", "flatten"):
            refuse()


def _generators() -> tuple[Any, ...]:
    """Where random numbers of Python, numpy and torch stand."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that a network may use
    return (
        random.getstate(),
        numpy_state["state"]["pos"],
        numpy_state["state"]["key"][:4].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )


def _differ(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() != two.keys() or any(one[k] is not two[k] for k in two)


# The network with stand-ins for layers ------------------------------------------------------------


def _twin(
    module: nn.Module, path: str, notes: "_Notes", twins: dict[nn.Module, nn.Module]
) -> nn.Module:
    """The same module with twins for its parts: torch.fx would change nn.Module itself for that
    time, under the feet of other threads."""
    if module not in twins:
        prefix = f"{path}." if path else ""
        alone = LAYERS.get(type(module))
        if isinstance(module, StochasticLayer) or (alone is not None and alone.opaque):
            twins[module] = _Whole(module, prefix, notes)
        else:
            parts = {
                name: None if part is None else _twin(part, prefix + name, notes, twins)
                for name, part in parts_of(module).items()
            }
            twins[module] = with_parts(module, parts)
    return twins[module]


class _Whole(nn.Module):
    """A layer that is looked at as a whole."""

    def __init__(self, layer: nn.Module, prefix: str, notes: "_Notes") -> None:
        super().__init__()
        self._original = (layer, prefix, notes)  # a tuple, so that torch does not see it

    def forward(self, input: "Symbol") -> "Symbol":
        layer, prefix, notes = self._original
        noise = layer if isinstance(layer, StochasticLayer) else None
        plain = layer if noise is None else noise.plain
        known = LAYERS.get(type(plain))
        if known is None or (noise is not None and not _says_all(noise)):
            refuse()
        own, options = dict(plain.named_parameters()), known.options(plain)
        names = tuple(prefix + part if part in own else None for part in known.parts)
        about: dict[str, Any] = {"names": names, "options": options, "prefix": prefix}
        return notes.add(known.kind, input, layer=noise, **about)

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            raise AttributeError(name)
        return getattr(self._original[0], name)


def _says_all(layer: StochasticLayer) -> bool:
    """Whether the layer's class itself says that a kernel can apply its noise: what inherits that
    may have noise of its own."""
    own, inner = "fusable" in vars(type(layer)), layer.inner
    return own and layer.fusable and (not isinstance(inner, StochasticLayer) or _says_all(inner))


# What is done to x --------------------------------------------------------------------------------


class _Notes:
    def __init__(self, named: dict[str, nn.Parameter]) -> None:
        self.names = {id(p): name for name, p in named.items()}
        self.nodes: list[Node] = []
        self.overwritten: list[Node] = []

    def add(self, kind: str, *inputs: Any, inplace: bool = False, **about: Any) -> "Symbol":
        if any(type(one) is not Symbol or one.notes is not self for one in inputs):
            refuse()
        node = Node(kind, tuple(one.node for one in inputs), **about)
        self.nodes.append(node)
        if inplace:
            self.overwritten.append(node.inputs[0])
        return Symbol(node, self)

    def name(self, p: Any) -> str | None:
        if p is not None and id(p) not in self.names:
            refuse()
        return None if p is None else self.names[id(p)]


class _NotKnown:
    """What has no value yet, so that nothing can depend on it."""

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        refuse()

    __bool__ = __len__ = __iter__ = __int__ = __float__ = __index__ = __contains__ = _unknown
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __neg__ = __pow__ = _unknown
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __floordiv__ = _unknown
    __rfloordiv__ = __mod__ = __matmul__ = __rmatmul__ = __getitem__ = __setitem__ = _unknown
    __itruediv__ = __invert__ = __and__ = __or__ = __xor__ = __abs__ = __array__ = _unknown
    __str__ = __repr__ = __format__ = __reduce_ex__ = _unknown
    __hash__ = _unknown


class _Rows(_NotKnown):
    """The number of rows of x."""


class _Shape(_NotKnown):
    def __getitem__(self, axis: Any) -> _Rows:  # type: ignore[override]
        return ROWS if axis == 0 else refuse()


ROWS = _Rows()


class Symbol(_NotKnown):
    """Stands for a tensor, and says so to who asks for its class."""

    def __init__(self, node: Node, notes: _Notes) -> None:
        self.node, self.notes = node, notes

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return Tensor

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _rule(FUNCTIONS, function)(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name == "shape":
            return _Shape()
        rule = _rule(METHODS, name)
        return lambda *args, **kwargs: rule(self, *args, **kwargs)

    def __add__(self, other: Any) -> "Symbol":  # type: ignore[override]
        return _add(self, other)

    def __iadd__(self, other: Any) -> "Symbol":  # type: ignore[override]
        return _add(self, other, inplace=True)


Rule = Callable[..., Any]


def _rule(table: dict[Any, Rule], name: Any) -> Rule:
    found = table.get(name)
    return refuse() if found is None else found


def _linear(input: Symbol, weight: Tensor, bias: Tensor | None = None) -> Symbol:
    notes = _notes_of(input)
    return notes.add("linear", input, names=(notes.name(weight), notes.name(bias)))


def _conv(
    input: Symbol,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Symbol:
    notes, options = _notes_of(input), _geometry(stride, padding, dilation, groups)
    return notes.add("conv", input, names=(notes.name(weight), notes.name(bias)), options=options)


def _geometry(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    """(stride, padding) where they are the same both ways, without dilation and groups."""
    if isinstance(padding, str) or groups != 1:
        refuse()
    each = [
        {int(n) for n in (pair if isinstance(pair, (tuple, list)) else (pair,))}
        for pair in (stride, padding, dilation)
    ]
    if any(len(found) != 1 for found in each) or each[2] != {1}:
        refuse()
    return each[0].pop(), each[1].pop()


def _activation(kind: str, *, inplace: bool = False) -> Rule:
    always = inplace

    def rule(input: Symbol, inplace: bool = False) -> Symbol:
        return _notes_of(input).add(kind, input, inplace=inplace or always)

    return rule


def _add(input: Any, other: Any, *, alpha: Any = 1, inplace: bool = False) -> Symbol:
    if type(alpha) is not int or alpha != 1:
        refuse()
    return _notes_of(input).add("add", input, other, inplace=inplace)


def _flatten(input: Symbol, start_dim: int = 0, end_dim: int = -1) -> Symbol:
    """[B, ...] -> [B, n], and no other."""
    if (start_dim, end_dim) != (1, -1):
        refuse()
    return _notes_of(input).add("flatten", input, options=(None,))


def _reshape(input: Symbol, *shape: Any) -> Symbol:
    """(rows, -1), (rows, n) and (-1, n); n is in the options, since the rows of (-1, n) are those
    of x only where an example has n numbers."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    if len(shape) != 2 or type(shape[1]) is not int:
        refuse()
    rows, n = shape
    if rows is not ROWS and not (type(rows) is int and rows == -1 and n > 0):
        refuse()
    return _notes_of(input).add("flatten", input, options=(None if n == -1 else n,))


def _mean(input: Symbol, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Symbol:
    """Over the positions of [B, C, H, W]; whether it is [B, C, 1, 1] then is in the options."""
    axes = sorted(axis % 4 for axis in dim) if isinstance(dim, (tuple, list)) else []
    if axes != [2, 3] or not all(-4 <= axis < 4 for axis in dim) or dtype is not None:
        refuse()
    return _notes_of(input).add("pool", input, options=(bool(keepdim),))


def _pool(input: Symbol, output_size: Any) -> Symbol:
    if output_size not in (1, (1, 1), [1, 1]):
        refuse()
    return _notes_of(input).add("pool", input, options=(True,))


def _size(input: Symbol, dim: Any = None) -> _Rows:
    return ROWS if type(dim) is int and dim == 0 else refuse()


def _notes_of(x: Any) -> _Notes:
    found: _Notes = x.notes if type(x) is Symbol else refuse()
    return found


FUNCTIONS: dict[Any, Rule] = {
    F.linear: _linear,
    F.conv2d: _conv,
    F.adaptive_avg_pool2d: _pool,
    F.relu: _activation("relu"),
    torch.relu: _activation("relu"),
    F.relu_: _activation("relu", inplace=True),
    torch.tanh: _activation("tanh"),
    torch.tanh_: _activation("tanh", inplace=True),
    F.silu: _activation("silu"),
    torch.add: _add,
    torch.flatten: _flatten,
    torch.reshape: _reshape,
    torch.mean: _mean,
}
METHODS: dict[str, Rule] = {
    "relu": _activation("relu"),
    "relu_": _activation("relu", inplace=True),
    "tanh": _activation("tanh"),
    "tanh_": _activation("tanh", inplace=True),
    "add": _add,
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "mean": _mean,
    "size": _size,
}


# The rule table -----------------------------------------------------------------------------------
# What is known of a layer by its class, exactly, and not by what it does: where noise is around it,
# and where it is made of more operations than the kernels see as one. Nobody else asks for a class.


class Layer(NamedTuple):
    kind: str  # of its node
    parts: tuple[str, ...]  # the names of its parameters
    options: Callable[[Any], tuple[Any, ...]]  # of the node
    opaque: bool = False  # whether it is one node without noise around it too


def _conv_options(layer: nn.Conv2d) -> tuple[Any, ...]:
    if layer.padding_mode != "zeros":
        refuse()
    return _geometry(layer.stride, layer.padding, layer.dilation, layer.groups)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: Layer("linear", ("weight", "bias"), lambda _: ()),
    nn.Conv2d: Layer("conv", ("weight", "bias"), _conv_options),
    FRN: Layer("frn", ("weight", "bias", "tau"), lambda frn: (frn.eps,), opaque=True),
}
