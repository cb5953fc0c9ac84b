"""Which parameters belong to which output node of a layer.

The paper's families are products over nodes n, and theta_n is all the weights and the bias that
lead into node n. Here a layer's parameters are cut into groups of the same nodes: one group for a
Linear or a convolution, several for attention and recurrent layers.
"""

import math

import torch
from torch import Tensor, nn

from stochens.private_names import TransposedConvolution, TransposedLinear

Group = dict[str, int]  # parameter name -> its axis of nodes


def groups(layer: nn.Module) -> list[Group]:
    """The layer's parameters, grouped by the nodes that they lead into.

    >>> groups(nn.Linear(3, 2))
    [{'weight': 0, 'bias': 0}]
    """
    names = [name for name, _ in layer.named_parameters()]
    if isinstance(layer, nn.Embedding):
        return [{"weight": 1}]
    if isinstance(layer, (TransposedConvolution, TransposedLinear)):
        return [{name: 1 if name == "weight" else 0 for name in names}]
    if isinstance(layer, nn.MultiheadAttention):
        return _attention(names)
    if isinstance(layer, nn.RNNBase):
        return _recurrent(names)
    shapes = {name: p.shape for name, p in layer.named_parameters()}
    if len({shape[0] if shape else 1 for shape in shapes.values()}) == 1:
        return [dict.fromkeys(names, 0)]
    return [{name: 0} for name in names]  # an unknown layer: every parameter by itself


def _attention(names: list[str]) -> list[Group]:
    found: dict[str, Group] = {}
    one_matrix = "in_proj_weight" in names  # else q, k and v are apart, and their bias as well
    for name in names:  # out_proj, which makes the outputs, comes last
        block = name.partition("_proj")[0] if one_matrix or name.startswith("out") else name
        found.setdefault(block, {})[name] = 2 if name in ("bias_k", "bias_v") else 0  # [1, 1, E]
    return list(found.values())


def _recurrent(names: list[str]) -> list[Group]:
    found: dict[str, Group] = {}
    for name in names:  # weight_ih_l0_reverse -> the rows of layer "l0_reverse"
        kind, _, layer = name.rpartition("_l")
        found.setdefault("projection" + layer if kind == "weight_hr" else layer, {})[name] = 0
    return list(found.values())


def count(layer: nn.Module, group: Group) -> int:
    """How many nodes a group has."""
    name, axis = next(iter(group.items()))
    p = layer.get_parameter(name)
    if isinstance(layer, TransposedConvolution) and name == "weight":
        return layer.out_channels
    return p.shape[axis] if p.dim() else 1


def spread(layer: nn.Module, name: str, axis: int, per_node: Tensor) -> Tensor:
    """A value per node [N], shaped so that it broadcasts over the parameter `name`."""
    p = layer.get_parameter(name)
    if isinstance(layer, TransposedConvolution) and name == "weight":
        n_in, n_out = p.shape[:2]  # [in, out / groups, ...]; output channel = (group, out)
        per_group = per_node.view(layer.groups, 1, n_out).expand(-1, n_in // layer.groups, -1)
        return per_group.reshape(n_in, n_out, *[1] * (p.dim() - 2))
    return per_node.view([-1 if a == axis else 1 for a in range(p.dim())])


def by_node(layer: nn.Module, values: dict[str, Tensor]) -> list[Tensor]:
    """Stacked parameter values as blocks [M, N, D], one for each group that is present."""
    blocks = []
    for group in groups(layer):
        present = [
            _rows(layer, name, axis, values[name]) for name, axis in group.items() if name in values
        ]
        if present:
            blocks.append(torch.cat(present, dim=-1))
    return blocks


def _rows(layer: nn.Module, name: str, axis: int, p: Tensor) -> Tensor:
    """One stacked parameter [M, ...] as [M, N, D]."""
    if isinstance(layer, TransposedConvolution) and name == "weight":
        m, n_in, n_out = p.shape[:3]
        split = p.view(m, layer.groups, n_in // layer.groups, n_out, math.prod(p.shape[3:]))
        return split.transpose(2, 3).reshape(m, layer.groups * n_out, -1)
    if p.dim() == 1:  # a scalar parameter
        return p.view(-1, 1, 1)
    moved = p.movedim(axis + 1, 1)
    return moved.reshape(*moved.shape[:2], -1)
