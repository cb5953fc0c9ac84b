"""A stochastic layer as a torch module: its modes, and what it lends from the layer inside."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stochens.methods import DropConnect, Dropout, Gaussian, NPDropout, stochastic
from stochens.methods.np_dropout import SECOND, set_distance
from stochens.randomness.seeds import seeded


def wrapped() -> Any:
    net: Any = stochastic(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), [Dropout(0.3)])
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
    kind: Any = type(wrapped())
    empty = kind.__new__(kind)
    assert not hasattr(empty, "in_features")


class Scaled(nn.Linear):
    """A layer with a buffer that is saved and one that is not."""

    scale: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("cache", torch.tensor(3.0), persistent=False)

    def forward(self, x):
        return self.scale * self.cache * super().forward(x)


def test_buffers_are_the_layers_own_and_saved_as_there():
    plain = Scaled()
    net: Any = stochastic(nn.Sequential(plain, nn.Linear(3, 2)), [Dropout(0.3)])
    layer = net[0]
    assert dict(layer.named_buffers()) == dict(layer.inner.named_buffers())
    assert set(layer.state_dict()) == set(plain.state_dict()) == {"weight", "bias", "scale"}
    x = torch.ones(4, 2)
    torch.testing.assert_close(layer.run_inner(layer.omega(), (x,), {}), plain(x))
    layer.double()
    assert layer.cache.dtype == layer.inner.cache.dtype == torch.float64


def norm(size: int, _: int) -> nn.Module:
    return nn.LayerNorm(size)


@pytest.mark.parametrize(
    ("rule", "plain"),
    [
        *((rule, nn.Linear) for rule in (Dropout(0.5), DropConnect(0.5))),
        *((rule, kind) for rule in (NPDropout(), Gaussian(0.5)) for kind in (nn.Linear, norm)),
    ],
)
def test_a_layer_knows_whether_a_batch_shares_its_draw(rule, plain):
    """Equal rows come out equal, apart from rounding, if and only if it says so. Gaussian noise on
    a LayerNorm, which is not linear in its parameters, is that of weights drawn once."""
    net: Any = stochastic(nn.Sequential(plain(40, 40), nn.Linear(40, 2)), [rule])
    layer = net[0]
    with torch.no_grad(), seeded(0):  # by chance two rows have the same mask once in 2^40
        y = layer(torch.arange(80.0).remainder(40).view(2, 40))
    same = torch.allclose(y[0], y[1], rtol=1e-5, atol=1e-6)
    assert layer.shared_by_batch() is same


def test_the_distance_of_two_sets_against_a_loop():
    """sum_n |a_n - b_n| / sum_n |a_n| over the nodes of all layers, the mean over members."""
    net = stochastic(
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), [NPDropout(output=True)], output="1"
    )
    generator = torch.Generator().manual_seed(0)
    params = {
        name: torch.randn(4, *p.shape, generator=generator, dtype=torch.float64)
        for name, p in net.named_parameters()
    }
    ratios = []
    for k in range(4):
        apart = size = 0.0
        for layer in ("0", "1"):
            one, two = params[f"{layer}.weight"][k], params[f"{layer}.weight{SECOND}"][k]
            for a, b in zip(one, two, strict=True):  # a node's incoming weights
                apart += float((a - b).square().sum().sqrt())
                size += float(a.square().sum().sqrt())
        ratios.append(apart / size)
    assert set_distance(params) == pytest.approx(sum(ratios) / 4, rel=1e-12)


class Shift(nn.Module):
    """Parameters of its own, in no layer that torch knows, and buffers as above."""

    scale: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("cache", torch.tensor(3.0), persistent=False)

    def forward(self, x):
        return self.scale * self.cache * (x + self.by)


def test_buffers_beside_a_modules_own_parameters_are_saved_as_there():
    plain = Shift()
    net: Any = stochastic(nn.Sequential(plain, nn.Linear(2, 2)), [Gaussian(0.1)])
    layer = net[0]
    assert set(layer.state_dict()) == set(plain.state_dict()) == {"by", "scale"}
    assert dict(layer.named_buffers()).keys() == {"scale", "cache"}
