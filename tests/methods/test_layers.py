"""A stochastic layer as a torch module: its modes, and what it lends from the layer inside."""

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
