"""One member's network as a graph of ATen operators, by torch.export.

Layers such as linear, conv2d, layer_norm and attention stay whole: one node each. The graph's
inputs are x, or each tensor of a tree, the member's parameters, the member's number and the seeds
of its noise; buffers and frozen parameters, which all members share, are constants of it.
"""

import contextlib
import copy
import io
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import is_symbolic

from stochens.members import places_of, plain_attention, trainable
from stochens.private_names import schema_of
from stochens.program.blocks import inline_blocks
from stochens.program.noise import TracedNoise
from stochens.program.simplify import simplify
from stochens.randomness.noise import noise_from
from stochens.trees import Input, leaves_of, like_leaves, with_dtype

MOST = 2**31  # examples

# torch.export changes modules' classes while it traces, warnings and stderr are the process's: a
# second thread would end the first one's trace
_one_at_a_time = threading.RLock()


class Untraceable(Exception):
    """torch.export cannot make a graph of this network; the message says why."""


class Traced(NamedTuple):
    """The graph's placeholders, in order: constants, x, each member's own, what members share. Of
    `trace` these are x, parameters and the member [], seeds [2]."""

    graph: fx.Graph
    inputs: int  # how many tensors x has
    names: list[str]  # of the parameters, as in `named_parameters()`
    constants: dict[str, Tensor]  # by the name of their placeholder, those that are used
    least: int  # the numbers of examples that it is for
    most: int
    last_shared: int  # how many placeholders after each member's own

    @property
    def noisy(self) -> bool:
        """Whether layers draw noise of each member's own."""
        drawn = (torch.ops.stochens.noise_mask.default, torch.ops.stochens.noise_normal.default)
        return any(node.target in drawn for node in self.graph.nodes)


class _OneMember(nn.Module):
    def __init__(self, net: nn.Module, names: Sequence[str], like: Input) -> None:
        super().__init__()
        self.net, self._names, self._like = net, names, like
        self._places = places_of(net)

    def forward(
        self, leaves: list[Tensor], params: list[Tensor], member: Tensor, seeds: Tensor
    ) -> Tensor:
        own = dict(zip(self._names, params, strict=True))
        everywhere = {place: own[name] for place, name in self._places.items() if name in own}
        x = like_leaves(self._like, leaves)
        with noise_from(TracedNoise(member, seeds)), plain_attention():
            outputs: Tensor = functional_call(self.net, everywhere, (x,), tie_weights=False)
        return outputs


def trace(
    net: nn.Module, x: Input, *, dtype: torch.dtype | None = None, copied: bool = True
) -> Traced:
    """The graph of one member for inputs like x [B, ...], in the mode that the network is in.

    The batch is free where the network allows it, else bounded or fixed. dtype: that of
    parameters, of buffers and of x, where they are real numbers; None: as they are. copied: whether
    constants are copies; else they are the network's own tensors, which has to be where x is.
    """
    try:
        own = copy.deepcopy(net).to(x.device, dtype) if copied else net
        leaves = leaves_of(with_dtype(x, dtype))
        names = list(trainable(own))
        params = [p.detach() for p in trainable(own).values()]
        numbers = torch.zeros(3, dtype=torch.int64, device=x.device)
        inputs = (leaves, params, numbers[0], numbers[1:])
        exported = _export(_OneMember(own, names, x), inputs)
    except Exception as error:  # torch.export raises many kinds
        raise Untraceable(_first_line(error)) from error
    return read(exported, names, inputs=len(leaves), last_shared=1)


def _export(one: nn.Module, inputs: tuple[Any, ...]) -> Any:
    leaves, params, *_ = inputs
    free = ([{0: torch.export.Dim.AUTO}] * len(leaves), [None] * len(params), None, None)
    with _one_at_a_time, _without_words():
        export = torch.export.export
        shapes = free if len(leaves[0]) > 1 else None  # torch takes a length of 1 for always 1
        exported = export(one, inputs, strict=False, dynamic_shapes=shapes)
        if any(_mutates(node) for node in exported.graph.nodes):
            exported = exported.run_decompositions({})  # the same without changes in place
    return exported


@contextlib.contextmanager
def _without_words() -> Iterator[None]:
    """torch warns of what it does inside, and prints the graph of a network that it cannot trace:
    we say it in one line."""
    speaker = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = speaker.level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        speaker.setLevel(logging.ERROR)
        try:
            yield
        finally:
            speaker.setLevel(level)


def is_operator(target: Any) -> bool:
    """Whether it is an overload of an operator, aten.linear.default, and no function of Python."""
    return hasattr(target, "overloadpacket")


def _mutates(node: fx.Node) -> bool:
    return is_operator(node.target) and bool(schema_of(node.target).is_mutable)


def read(exported: Any, names: list[str], *, inputs: int, last_shared: int) -> Traced:
    """What torch.export made of one member. Its graph is changed, for it is the program's now."""
    signature = exported.graph_signature
    if len(signature.output_specs) != 1:
        raise Untraceable("the network returns more than one tensor, or changes a buffer")
    graph = exported.graph
    inline_blocks(graph, exported.graph_module)
    given = [node for node in graph.nodes if node.op == "placeholder"]
    constants: dict[str, Tensor] = {}
    for node, spec in zip(given, signature.input_specs, strict=True):
        if spec.kind.name == "USER_INPUT":
            continue
        if not node.users:
            graph.erase_node(node)
            continue
        held = exported.constants if spec.target in exported.constants else exported.state_dict
        constants[node.name] = held[spec.target].detach()
    for node in graph.nodes:
        if node.op == "get_attr" or (node.op == "call_function" and not _known(node.target)):
            raise Untraceable(f"{node.target} holds a graph of its own")
    simplify(graph)
    found = [node for node in graph.nodes if node.op == "placeholder"][len(constants) :]
    each = [_batches(exported, node.meta["val"].shape[0]) for node in found[:inputs]]
    least, most = max(a for a, _ in each), min(b for _, b in each)
    return Traced(graph, inputs, names, constants, least, most, last_shared)


def _batches(exported: Any, size: Any) -> tuple[int, int]:
    """The least and the most examples that a trace holds for, where a tensor has `size` of them: a
    number, or a symbol with a range. Of a formula (2 s) the trace's own number alone."""
    bounds = exported.range_constraints.get(size.node.expr) if is_symbolic(size) else None
    if bounds is None:
        return int(size), int(size)
    most = MOST if bounds.upper > MOST else int(bounds.upper)
    return max(2, int(bounds.lower)), most  # 1 is always another case for torch


def _known(target: Any) -> bool:
    """An operator, or Python's own arithmetic of lengths; no branch or loop."""
    plain = getattr(target, "__module__", "") in ("_operator", "math", "builtins", "torch")
    return is_operator(target) or plain


def _first_line(error: Exception) -> str:
    said = str(error).strip().split("\n")[0].split(". ")[0]
    return said or type(error).__name__
