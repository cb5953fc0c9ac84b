"""Noise on weights, drawn before a kernel that knows nothing of it runs."""

from torch import nn

from stochens.members import Params
from stochens.methods import StochasticLayer, stochastic_layers
from stochens.randomness.noise import over_members


def draw_weights(layer: nn.Module, omega: Params) -> Params:
    """Every member's theta of one pass, [M, ...], from the layer's own omega [M, ...]."""
    if not isinstance(layer, StochasticLayer) or not layer.noise_on_weights:
        return omega
    theta: Params = over_members(layer.draw, (0,))(omega)
    return theta


def draw_all_weights(net: nn.Module, params: Params) -> Params:
    """The same for the whole network, whose plain parameters' names the result has."""
    theta = dict(params)
    for path, layer in stochastic_layers(net).items():
        prefix = f"{path}." if path else ""
        omega = {name: theta.pop(prefix + name) for name in layer.names}
        theta |= {prefix + name: value for name, value in draw_weights(layer, omega).items()}
    return theta
