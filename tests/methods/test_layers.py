"""A stochastic layer as a torch module: its modes, and what it lends from the layer inside."""

import torch
from torch import nn

from stochens.methods import Dropout, stochastic


def wrapped() -> nn.Module:
    net = stochastic(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), [Dropout(0.3)])
    return net[0]


def test_modes_reach_the_layer_inside_and_train_is_the_default():
    layer = wrapped()
    for call, mode in ((layer.eval, False), (layer.train, True)):
        call()
        assert layer.training is mode
        assert layer.inner.training is mode


def test_what_is_read_off_the_layer_inside():
    layer = wrapped()
    assert layer.in_features == 2
    assert not hasattr(layer, "no_such_thing")
    # Special names belong to the layer that has them: Python would call them on the wrong one.
    layer.inner.__special__ = 1
    assert not hasattr(layer, "__special__")


def test_a_layer_that_is_not_built_yet_has_no_attributes():
    """As copy and pickle make it, before its state is there."""
    empty = type(wrapped()).__new__(type(wrapped()))
    assert not hasattr(empty, "in_features")


class Scaled(nn.Linear):
    """A layer with a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("cache", torch.tensor(3.0), persistent=False)

    def forward(self, x):
        return self.scale * self.cache * super().forward(x)


def test_buffers_are_the_layers_own_and_saved_as_there():
    plain = Scaled()
    layer = stochastic(nn.Sequential(plain, nn.Linear(3, 2)), [Dropout(0.3)])[0]
    assert dict(layer.named_buffers()) == dict(layer.inner.named_buffers())
    assert set(layer.state_dict()) == set(plain.state_dict()) == {"weight", "bias", "scale"}
    x = torch.ones(4, 2)
    torch.testing.assert_close(layer.run_inner(layer.omega(), (x,), {}), plain(x))
    layer.double()
    assert layer.cache.dtype == layer.inner.cache.dtype == torch.float64
