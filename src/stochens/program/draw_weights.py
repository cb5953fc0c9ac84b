"""Noise on weights, drawn before a kernel that knows nothing of it runs."""

from collections.abc import Sequence

from torch import nn

from stochens.members import Params
from stochens.methods import StochasticLayer
from stochens.program.nodes import Node
from stochens.randomness.noise import over_members


def draw_weights(layer: nn.Module | None, omega: Params) -> Params:
    """Every member's theta of one pass, [M, ...], from the layer's own omega [M, ...]."""
    if not isinstance(layer, StochasticLayer) or not layer.noise_on_weights:
        return omega
    theta: Params = over_members(layer.draw, (0,))(omega)
    return theta


def draw_all_weights(nodes: Sequence[Node], params: Params) -> Params:
    """The same for all nodes with noise, in the order in which the network draws it; the result has
    the names of the plain network's parameters."""
    theta = dict(params)
    for node in nodes:
        assert node.layer is not None
        omega = {name: theta.pop(node.prefix + name) for name in node.layer.names}
        drawn = draw_weights(node.layer, omega)
        theta |= {node.prefix + name: value for name, value in drawn.items()}
    return theta
