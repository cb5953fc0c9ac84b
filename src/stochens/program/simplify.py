"""Rewrites of one member's graph that change no number, so that its rules copy less.

nn.MultiheadAttention works on [T, B, W], merges batch and heads on the way, [T, B H, D], and merges
T and B for its last layer. With the member axis in front each merge would be a copy. Split apart,
they are all views of the same memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.reshape.default)


def simplify(graph: fx.Graph) -> None:
    """In place."""
    for node in list(graph.nodes):
        if node.target in VIEWS:
            _split_heads(graph, node)
    for node in list(graph.nodes):
        if node.target is aten.linear.default:
            _keep_rows_apart(graph, node)
    graph.eliminate_dead_code()


def _split_heads(graph: fx.Graph, last: Any) -> None:
    """[T, B, H D] -> view [T, B H, D] -> transpose -> view [B, H, T, D]: view, permute."""
    swap = last.args[0]
    if not _is(swap, aten.transpose.int) or {d % 3 for d in swap.args[1:3]} != {0, 1}:
        return
    first: Any = swap.args[0]
    if not (isinstance(first, fx.Node) and first.target in VIEWS):
        return
    z: Any = first.args[0]
    b_h_t_d = _shape(last)
    if len(b_h_t_d) != 4 or len(_shape(first)) != 3 or len(_shape(z)) != 3:
        return
    b, h, t, d = b_h_t_d
    if not _same(_shape(z), (t, b, h * d)) or not _same(_shape(first)[2:], (d,)):
        return
    sizes = last.args[1]
    with graph.inserting_before(last):
        apart = _call(graph, aten.view.default, z, [sizes[2], sizes[0], sizes[1], sizes[3]])
        apart.meta["val"] = z.meta["val"].view(t, b, h, d)
        made = _call(graph, aten.permute.default, apart, [1, 2, 0, 3])
    made.meta["val"] = apart.meta["val"].permute(1, 2, 0, 3)
    last.replace_all_uses_with(made)


def _keep_rows_apart(graph: fx.Graph, node: Any) -> None:
    """[T, B, ...] -> view [T B, W] -> linear -> view [T, B, O]: linear of [T, B, W]."""
    flat = node.args[0]
    if not (isinstance(flat, fx.Node) and flat.target in VIEWS and len(node.users) == 1):
        return
    (last,) = node.users
    z: Any = flat.args[0]
    if last.target not in VIEWS or len(_shape(flat)) != 2 or len(_shape(last)) != 3:
        return
    t, b, _ = _shape(last)
    width = _shape(flat)[1]
    if len(_shape(z)) < 3 or not _same(_shape(z)[:2], (t, b)):
        return
    sizes = last.args[1]
    with graph.inserting_before(node):
        rows = _call(graph, aten.reshape.default, z, [sizes[0], sizes[1], width])
        rows.meta["val"] = z.meta["val"].reshape(t, b, width)
        made = _call(graph, aten.linear.default, rows, *node.args[1:])
    made.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(made)


def _call(graph: fx.Graph, target: Any, *args: Any) -> Any:
    return graph.call_function(target, args)


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _shape(node: Any) -> Sequence[Any]:
    shape: Sequence[Any] = node.meta["val"].shape
    return shape


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether lengths are the same, those that depend on the batch as formulas."""
    return len(some) == len(others) and all(
        str(a) == str(b) for a, b in zip(some, others, strict=True)
    )
