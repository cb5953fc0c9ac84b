"""Dropout in a stacked graph: y z / keep as one operation.

Where gradients are asked for it is what it was. Predictions divide y by (keep where z, else
infinity), which gives the same numbers to the last bit in one pass over memory in place of four.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from stochens.kernels.noise import divisors
from stochens.program.noise import draw_mask
from stochens.program.operators import into_channels
from stochens.randomness.noise import below

aten = torch.ops.aten


def fuse_drops(graph: fx.Graph) -> None:
    """In place: div(mul(y, mask), keep), where nothing else takes the product or the mask."""
    for node in list(graph.nodes):
        if node.target is not aten.div.Tensor or len(node.args) != 2:
            continue
        product, keep = node.args
        if not isinstance(keep, float) or not _for_it_alone(product, aten.mul.Tensor):
            continue
        for y, mask in (product.args, product.args[::-1]):
            as_channels = _for_it_alone(mask, into_channels)
            mask = mask.args[0] if as_channels else mask
            if not _for_it_alone(mask, draw_mask) or mask.args[4] != below(keep):
                continue
            with graph.inserting_before(node):
                made = graph.call_function(dropped, (y, *mask.args[:4], keep, as_channels))
            node.replace_all_uses_with(made)
            break
    graph.eliminate_dead_code()


def _for_it_alone(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target and len(node.users) == 1


def dropped(
    y: Tensor,
    members: Tensor,
    seed: Tensor,
    site: int,
    shape: Sequence[int],
    keep: float,
    as_channels: bool = False,
) -> Tensor:
    """y z / keep,  z ~ Bernoulli(keep) of (member, seed, site). y [M, *shape], or as channels
    [B, M C, ...].

    >>> y, ids, seed = torch.randn(2, 5, 3), torch.tensor([3, 8]), torch.tensor([5])
    >>> known = y * draw_mask(ids, seed, 0, [5, 3], below(0.7)) / 0.7
    >>> with torch.no_grad():
    ...     torch.equal(dropped(y, ids, seed, 0, [5, 3], 0.7), known)
    True
    """
    if not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        own = members.reshape(-1).contiguous()
        found = divisors(own, seed, site, tuple(shape), keep, y.dtype)
        if found is not None:
            found = found.view((*members.shape, *shape))
            return y / (into_channels(found) if as_channels else found)
    mask = draw_mask(members, seed, site, shape, below(keep))
    return y * (into_channels(mask) if as_channels else mask) / keep
