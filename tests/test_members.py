"""Stacked members: initialisation, forward pass, selection."""

import copy
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import nn

from stochens import FRN, MLP, InputError
from stochens.members import (
    builder,
    forward,
    forward_each,
    init,
    init_from_prior,
    join,
    size,
    take,
    trainable,
)


class Custom(nn.Module):
    """A parent whose own reset undoes its child's, as some authors write it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.inner.bias, 7.0)


def test_a_module_is_initialised_again_as_its_layers_say():
    params = init(builder(Custom()), members=range(200), seed=0)
    assert bool((params["inner.bias"] == 7).all())  # children first, then their parent
    assert bool((params["attention.in_proj_bias"] == 0).all())
    weights = params["attention.in_proj_weight"]  # Xavier uniform over [12, 4]
    bound = (6 / (12 + 4)) ** 0.5
    assert float(weights.abs().max()) <= bound
    # variance of a uniform on [-b, b] is b^2 / 3; 9600 draws leave about 1 % of noise
    torch.testing.assert_close(weights.var(), torch.tensor(bound**2 / 3), rtol=0.05, atol=0)


def test_a_function_and_a_module_give_the_same_distribution():
    by_function = init(builder(lambda: nn.Conv2d(3, 4, 3)), members=range(300), seed=0)
    by_module = init(builder(nn.Conv2d(3, 4, 3)), members=range(300), seed=1)
    for name, p in by_function.items():
        # 300 * 108 weights, 300 * 4 biases: 5 standard errors of a standard deviation
        error = 5 * p.std() / (2 * p.numel()) ** 0.5
        assert abs(p.std() - by_module[name].std()) < 2 * error


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_members_that_would_begin_alike_are_refused():
    """Old spectral norm keeps what is trained under another name, which no reset reaches."""
    with pytest.raises(InputError, match=r"'0\.weight_orig' stays what it was .* alike"):
        builder(nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 2)))()

    class Forgets(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.scale = nn.Parameter(torch.randn(2))

    with pytest.raises(InputError, match="'scale' stays what it was"):
        builder(Forgets())()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_network_that_cannot_be_copied_is_refused():
    net = nn.utils.weight_norm(nn.Linear(3, 2))
    net(torch.zeros(1, 3))
    with pytest.raises(InputError, match="cannot be copied"):
        builder(net)()


def test_the_network_given_is_left_alone():
    net = MLP(2, 5, 2)
    before = copy.deepcopy(net.state_dict())
    init(builder(net), members=range(3), seed=0)
    for name, p in net.state_dict().items():
        assert torch.equal(p, before[name])


def test_members_depend_on_seed_and_member_only():
    build = builder(lambda: MLP(2, 5, 2))
    many = init(build, members=range(6), seed=3)
    torch.manual_seed(99)
    few = init(build, members=[5, 1], seed=3)
    for name, p in few.items():
        assert torch.equal(p, many[name][[5, 1]])
    assert not torch.equal(many["0.weight"][0], many["0.weight"][1])
    assert not torch.equal(init(build, members=[0], seed=4)["0.weight"], many["0.weight"][:1])


def test_frozen_parameters_and_buffers_are_shared():
    def make() -> Any:
        net: Any = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        net[0].requires_grad_(False)
        nn.init.constant_(net[0].weight, 0.5)
        nn.init.zeros_(net[0].bias)
        net.register_buffer("offset", torch.ones(1))
        return net

    params = init(builder(make), members=range(3), seed=0)
    assert set(params) == {"1.weight", "1.bias"}
    module = make()
    rebuilt: Any = builder(module)()
    assert torch.equal(rebuilt[0].weight, module[0].weight)

    def random_features() -> nn.Module:
        net = nn.Linear(2, 2)
        net.register_buffer("features", torch.randn(3))
        return net

    with pytest.raises(InputError, match="'features' differs between two calls"):
        init(builder(random_features), members=range(2), seed=0)


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.embed(x))

    params = init(builder(Tied), members=range(2), seed=0)
    assert set(params) == {"embed.weight"}
    x = torch.tensor([0, 4])
    outputs = forward(Tied(), params, x)
    expected = torch.stack([w[x] @ w.T for w in params["embed.weight"]])
    torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (MLP(3, 5, 2), (4, 3)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), FRN(4), nn.Flatten(), nn.Linear(36, 2)), (4, 2, 5, 5)),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)), (4, 3)),
    ],
)
def test_vmap_equals_a_loop_over_plain_networks(float64, net, shape):
    net = net.double()
    params = init(builder(net), members=range(3), seed=0)
    x = torch.randn(3, *shape)
    for k in range(3):
        net.load_state_dict({name: p[k] for name, p in params.items()})
        one = net(x[k])
        for engine in ("vmap", "loop"):
            each = forward_each(net, params, x, engine=engine)[k]
            shared = forward(net, params, x[k], engine=engine)[k]
            # batched and single products sum in another order; a norm divides by no less than 0.1
            within = close(torch.float64, terms=36, depth=4, condition=10.0)
            torch.testing.assert_close(each, one, **within)
            torch.testing.assert_close(shared, one, **within)


def test_take_join_size_and_prior():
    params = init(builder(nn.Linear(2, 3)), members=range(4), seed=0)
    assert size(params) == 4
    again = join([take(params, slice(0, 1)), take(params, [1, 2, 3])])
    assert all(torch.equal(again[name], p) for name, p in params.items())
    prior = init_from_prior(params, members=[2], seed=0, sd=1.0)
    both = init_from_prior(params, members=[0, 2], seed=0, sd=2.0)
    assert torch.equal(2 * prior["weight"][0], both["weight"][1])
    assert set(trainable(nn.Linear(2, 3))) == set(params)
