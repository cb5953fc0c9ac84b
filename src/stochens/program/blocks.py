"""Blocks of a traced network that are graphs of their own, put into the graph around them: those
without gradients (`with torch.no_grad()`) and those without autocast, as rotary places have them.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn

NO_GRADIENTS, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


def inline_blocks(graph: fx.Graph, root: nn.Module) -> None:
    """In place. root: whose attributes the blocks are. Other blocks stay: branches, loops, and
    those with autocast."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        name, args = getattr(node.target, "__name__", ""), list(node.args)
        if name == NO_GRADIENTS:
            _inline(graph, root, node, args[1], args[2:], gradients=bool(args[0]))
        elif name == AUTOCAST and not args[2]:
            _inline(graph, root, node, args[4], args[5:], gradients=True)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _inline(
    graph: fx.Graph, root: nn.Module, node: fx.Node, block: Any, given: Any, *, gradients: bool
) -> None:
    module = root.get_submodule(str(block.target))
    inner: Any = module.graph
    inline_blocks(inner, module)
    if any(n.op == "get_attr" for n in inner.nodes):
        return
    wanted = [n for n in inner.nodes if n.op == "placeholder"]
    made: dict[fx.Node, Any] = dict(zip(wanted, given, strict=True))
    with graph.inserting_before(node):
        for own in inner.nodes:
            if own.op == "call_function":
                made[own] = graph.node_copy(own, made.__getitem__)
        (outputs,) = next(n for n in inner.nodes if n.op == "output").args
        several = [outputs] if isinstance(outputs, fx.Node) else list(outputs)
        ends = [made[n] if gradients else _detached(graph, made[n]) for n in several]
    if isinstance(outputs, fx.Node):
        node.replace_all_uses_with(ends[0])
    for user in list(node.users):  # item k of the tuple
        user.replace_all_uses_with(ends[int(user.args[1])])  # type: ignore[arg-type]
        graph.erase_node(user)
    graph.erase_node(node)


def _detached(graph: fx.Graph, node: Any) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return node
    made = graph.call_function(torch.ops.aten.detach.default, (node,))
    made.meta["val"] = value
    return made
