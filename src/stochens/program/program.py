"""A network as one program for all members: traced once, stacked by rules, run or compiled.

    program = build(net, x)
    outputs = program(params, x)  # [M, B, C]

It is differentiable, and torch.compile takes it whole: one flat function of plain operators.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn

from stochens.errors import InputError
from stochens.members import Params, copy_network, size
from stochens.program import rules
from stochens.program.drops import fuse_drops
from stochens.program.stacker import Stacker, Value, arguments_of, item
from stochens.program.trace import Traced, Untraceable, is_operator, trace
from stochens.trees import Input, leaves_by_name, leaves_of, like_leaves, with_dtype

RECURRENT = ("lstm", "gru", "rnn_")
CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "_assert_async")


class Noise(NamedTuple):
    """Whose noise it is: numbers of members [M] and the seed of the pass [1], int64; or two seeds
    [2], that of each example's own noise and that of noise which all examples share."""

    members: Tensor
    seed: Tensor


class Program:
    """Outputs of all members of a network. Inputs x are one tensor or an InputTree."""

    def __init__(
        self, net: nn.Module, x: Input, traced: Traced, dtype: torch.dtype | None = None
    ) -> None:
        self.names, self.dtype, self.noisy = traced.names, dtype, traced.noisy
        # Floating-point operations of the average convolution, of one example; 0 without any.
        self.mean_convolution = _mean_convolution(traced.graph.nodes)
        self.recurrent = any(map(_is_recurrent, traced.graph.nodes))
        # Of a layer whose weights all members share, the examples of all members are one batch, in
        # one launch. So these are of layers with weights of each member's own:
        own = _with_own_weights(traced)
        self.own_convolution = _mean_convolution(own)
        self.grouped = any(_is_grouped(n) for n in own)  # as a depthwise convolution is
        self.own_recurrent = any(map(_is_recurrent, own))
        self._net = copy_network(net)  # in the mode that it is in now
        self._like = like_leaves(x, [t.new_empty(0) for t in leaves_of(x)])
        self._graphs = [graphs_of(traced)]
        self._refused: list[Forms] = []  # for which there is no trace

    def __call__(self, params: Params, x: Input, noise: Noise | None = None) -> Tensor:
        """params [M, ...], x [B, ...] of all members -> [M, B, C]. noise: None draws a seed."""
        return self._run("shared", params, x, noise)

    def each(self, params: Params, x: Input, noise: Noise | None = None) -> Tensor:
        """Likewise where each member has inputs of its own, x [M, B, ...]."""
        return self._run("own", params, x, noise)

    def one(self, params: Params, x: Input, noise: Noise | None = None) -> Tensor:
        """One member alone: params without M, x [B, ...] -> [B, C]; noise.members is [] then."""
        if noise is None and self.noisy:
            noise = fresh_noise(1, x.device)
            noise = Noise(noise.members[0], noise.seed)
        return self._run("alone", params, x, noise)

    def _run(self, kind: "Kind", params: Params, x: Input, noise: Noise | None) -> Tensor:
        own = [params[name] for name in self.names]
        dtype = own[0].dtype
        if self.dtype is not None:
            own = [cast(p, self.dtype) for p in own]
        leaves = leaves_by_name(with_dtype(x, self.dtype), self._like)
        graphs = self.graphs(forms_of(leaves, 1 if kind == "own" else 0))
        if noise is None:
            noise = fresh_noise(size(params), x.device) if self.noisy else Noise(own[0], own[0])
        elif len(noise.seed) == 1:  # the same for noise of each example and for what they share
            noise = Noise(noise.members, noise.seed.expand(2))
        graph: fx.GraphModule = getattr(graphs, kind)
        outputs: Tensor = graph(*leaves, *own, *noise)
        return outputs if self.dtype is None else outputs.to(dtype)

    def graphs(self, forms: "Forms") -> "Graphs":
        """For tensors [B, ...] of these shapes and types. A trace is for examples of one shape and,
        where the network fixes it, one number of them; for another it is made again: call this
        before torch.compile sees such a batch."""
        if (held := self._held(forms)) is not None:
            return held
        device = leaves_of(self._like)[0].device
        made = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in forms]
        x = like_leaves(self._like, made)
        self._graphs.append(graphs_of(trace(self._net, x, dtype=self.dtype)))
        return self._graphs[-1]

    def ready_for(self, x: Input, most: int) -> bool:
        """Whether there is a trace for x [B, ...]. It is made where there are fewer than `most`,
        and the network lets itself be traced for such an x."""
        forms = forms_of(leaves_by_name(with_dtype(x, self.dtype), self._like))
        if self._held(forms) is not None:
            return True
        if len(self._graphs) >= most or forms in self._refused:
            return False
        try:
            self.graphs(forms)
        except Untraceable:
            self._refused.append(forms)
        return forms not in self._refused

    def _held(self, forms: "Forms") -> "Graphs | None":
        batch = forms[0][0][0]
        examples = [([*shape[1:]], dtype) for shape, dtype in forms]
        for held in self._graphs:
            if held.least <= batch <= held.most and held.examples == examples:
                return held
        return None


Forms = list[tuple[torch.Size, torch.dtype]]  # of each tensor of x [B, ...]


def forms_of(leaves: Iterable[Tensor], first: int = 0) -> Forms:
    """Shapes, from the axis `first` on, and types."""
    return [(t.shape[first:], t.dtype) for t in leaves]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = p.dtype
        return p.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype, memory_format=torch.contiguous_format), None


def cast(p: Tensor, dtype: torch.dtype) -> Tensor:
    """p in another precision, with a gradient that lies as p does. Products give that of a weight
    transposed, and to bring it into order with the cast saves a copy of all parameters."""
    made: Tensor = _Cast.apply(p, dtype)  # type: ignore[no-untyped-call]
    return made


def build(net: nn.Module, x: Input, *, dtype: torch.dtype | None = None) -> Program:
    """The program of a network for inputs like x [B, ...], on its device and in the network's mode.

    dtype: what it computes in, e.g. torch.bfloat16 for parameters in float32. Raises `Untraceable`
    where torch.export or the rules cannot do it: vmap serves then.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> program = build(net, torch.zeros(4, 3))
    >>> params = {name: torch.stack([p, p + 1]) for name, p in net.named_parameters()}
    >>> program(params, torch.zeros(7, 3)).shape
    torch.Size([2, 7, 2])
    """
    traced = trace(net, x, dtype=dtype)
    if not traced.names:
        raise InputError("the network has no trainable parameters")
    return Program(net, x, traced, dtype)


def _with_own_weights(traced: Traced) -> list[fx.Node]:
    """Convolutions and recurrent layers whose weights depend on the member: on its parameters, or
    on its noise."""
    own = set(placeholders(traced)[traced.inputs :])  # parameters, member, seeds
    found = []
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        if any(source in own for source in node.all_input_nodes):
            own.add(node)
        if _name(node.target).startswith(("conv", *RECURRENT)):
            found += [node] if any(weight in own for weight in _weights(node)) else []
    return found


def _weights(node: fx.Node) -> list[Any]:
    """Of a convolution without its bias, which is added; of a recurrent layer all."""
    given = arguments_of(node.target, node.args, node.kwargs)
    if "weight" in given:
        return [given["weight"]]
    values = [v for name, v in given.items() if name not in ("input", "data", "hx")]
    return [one for v in values for one in (v if isinstance(v, (list, tuple)) else [v])]


def _mean_convolution(nodes: Iterable[fx.Node]) -> float:
    """2 outputs kernel, each convolution weighted by itself, so that small ones count little."""
    found = []
    for node in nodes:
        if node.op == "call_function" and _name(node.target).startswith("conv"):
            weight: Any = node.args[1]
            kernel = math.prod(weight.meta["val"].shape[1:])
            found.append(2.0 * math.prod(node.meta["val"].shape[1:]) * kernel)
    return sum(f * f for f in found) / sum(found) if found else 0.0


def _is_grouped(node: fx.Node) -> bool:
    if not _name(node.target).startswith("conv"):
        return False
    return int(arguments_of(node.target, node.args, node.kwargs).get("groups", 1)) > 1


def _is_recurrent(node: fx.Node) -> bool:
    return _name(node.target).startswith(RECURRENT)


def _name(target: Any) -> str:
    return target.name().removeprefix("aten::") if is_operator(target) else ""


def fresh_noise(members: int, device: torch.device) -> Noise:
    """Of a seed from torch's generator."""
    seed = torch.randint(2**62, (1,), device=device).expand(2)
    return Noise(torch.arange(members, device=device), seed)


def placeholders(traced: Traced) -> list[fx.Node]:
    """The tensors of x, the parameters, member and seeds."""
    nodes = [node for node in traced.graph.nodes if node.op == "placeholder"]
    return nodes[len(traced.constants) :]


Kind = Literal["shared", "own", "alone"]


class Graphs(NamedTuple):
    """(*x, *params, members, seeds) -> outputs, three times, for `least` to `most` examples."""

    shared: fx.GraphModule  # x [B, ...] of all members, params [M, ...] -> [M, B, C]
    own: fx.GraphModule  # x [M, B, ...]
    alone: fx.GraphModule  # one member: nothing has a member axis
    least: int
    most: int
    examples: list[tuple[list[int], torch.dtype]]  # of each tensor of x, the shape of one


def graphs_of(traced: Traced) -> Graphs:
    return Graphs(
        stack(traced, Stacker(), own_rows=False),
        stack(traced, Stacker(), own_rows=True),
        stack(traced, Stacker(alone=True), own_rows=False),
        traced.least,
        traced.most,
        [
            ([int(length) for length in t.shape[1:]], t.dtype)
            for t in (node.meta["val"] for node in placeholders(traced)[: traced.inputs])
        ],
    )


def stack(traced: Traced, s: Stacker, *, own_rows: bool) -> fx.GraphModule:
    """(*x, *params [M, ...], members [M], seeds [2]) -> outputs [M, B, C], from one member's graph.

    own_rows: whether x is [M, B, ...]."""
    found: dict[fx.Node, Value] = {}
    first_shared = len(inputs := placeholders(traced)) - traced.last_shared
    for k, node in enumerate(inputs):
        of_all = k < traced.inputs and not own_rows
        shared = of_all or k >= first_shared or s.alone
        held = s.graph.placeholder(node.name)
        found[node] = Value(held, "shared" if shared else "front", node.meta["val"])
    root = nn.Module()
    for node in traced.graph.nodes:
        if node.name in traced.constants and node.op == "placeholder":
            root.register_buffer(node.name, traced.constants[node.name])
            found[node] = Value(s.graph.get_attr(node.name), "shared", node.meta["val"])
    s.members = s.emit(torch.ops.aten.sym_size.int, found[inputs[traced.inputs]].node, 0)
    for node in traced.graph.nodes:
        if node.op == "call_function" and not is_check(node.target):
            found[node] = _stacked(s, node, found)
        elif node.op == "output":
            outputs = found[node.args[0][0]]
            s.graph.output(outputs.node if s.alone else s.stacked(outputs))
    fuse_drops(s.graph)
    return fx.GraphModule(root, s.graph, "Stacked")


def _stacked(s: Stacker, node: fx.Node, found: dict[fx.Node, Value]) -> Value:
    args: Any = fx.map_arg(node.args, found.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, found.__getitem__)
    target: Any = node.target
    one = node.meta.get("val")
    if target is operator.getitem:
        return item(s, args[0], args[1], one)
    if not is_operator(target):  # arithmetic of lengths
        own: Any = fx.map_arg((node.args, node.kwargs), lambda n: found[n].node)
        return Value(s.graph.call_function(target, own[0], own[1]), "shared", one)
    try:
        return rules.apply(s, target, args, kwargs, one)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise Untraceable(f"no rule fits {target}: {error}") from error


def is_check(target: Any) -> bool:
    """Whether it only looks at something, and raises."""
    return _name(target).startswith(CHECKS)
