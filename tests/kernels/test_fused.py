"""Which networks the kernel takes, and that it computes what vmap computes."""

import pytest
import torch
from tests.tolerance import close, trained
from torch import nn

import stochens
from stochens import MLP, DropConnect, Dropout, Gaussian, Heteroscedastic, Homoscedastic, NPDropout
from stochens.kernels import mlp
from stochens.likelihoods import Categorical
from stochens.members import builder, forward_each, init
from stochens.program.fusions import fused_nll, fused_outputs
from stochens.program.graph import graph_of
from stochens.program.mlp_fusion import chain
from stochens.program.program import Noise

needs_compiler = pytest.mark.skipif(not mlp.available(), reason="no C++ compiler here")


def nll_by_kernel(*on):
    found = fused_nll(*on)
    assert found is not None
    return found[1]


def taken(net) -> bool:
    return chain(graph_of(net)) is not None


def test_chains_of_linear_layers_are_taken():
    assert taken(MLP(2, 10, 10, 2))
    assert taken(nn.Linear(2, 2))
    assert taken(nn.Sequential(nn.Flatten(), MLP(4, 3, 2, activation=nn.SiLU)))
    assert taken(nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 1)))
    for method in (Dropout(0.2), DropConnect(0.2), NPDropout(), Gaussian(0.1)):
        assert taken(stochens.stochastic(MLP(2, 4, 2), method))
        if method != Gaussian(0.1):
            assert taken(stochens.stochastic(MLP(2, 4, 2), [method, Gaussian(0.1, learn=True)]))


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def test_everything_else_is_left_to_vmap():
    hooked = MLP(2, 4, 2)
    hooked[0].register_forward_hook(lambda *_: None)
    bare = nn.Linear(2, 2)
    bare.register_forward_hook(lambda *_: None)
    for net in (
        bare,
        Residual(nn.Linear(2, 2)),
        nn.Sequential(nn.ReLU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 2)),
        MLP(2, 1000, 2),
        hooked,
        stochens.stochastic(hooked, Dropout(0.2)),  # the hook is on the layer inside now
    ):
        assert not taken(net)


def test_parts_that_stand_twice_are_called_twice():
    relu, square = nn.ReLU(), nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(2, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    assert [layer.activation for layer in chain(graph_of(net)).layers] == [
        "relu",
        "relu",
        "identity",
    ]
    assert not taken(nn.Sequential(square, relu, square))
    tied = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert not taken(tied)


@needs_compiler
def test_a_shared_activation_trains_as_by_vmap(float64, xor):
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(2, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 2))
    data, options = (xor[0].double(), xor[1]), {"method": "regular", "members": 2, "epochs": 20}
    one, two = (
        stochens.fit(
            net, data, lr=0.01, run=stochens.Run(engine=engine), device="cpu", **options
        ).history.loss
        for engine in ("fused", "vmap")
    )
    torch.testing.assert_close(one, two, **trained(torch.float64, steps=20, rows=60))


class Smoothed(Categorical):
    """Beside the label, every class has a share."""

    def nll(self, outputs, y, weights=None):
        everything = outputs.log_softmax(-1).mean((-2, -1))
        return 0.9 * super().nll(outputs, y, weights) - 0.1 * everything


def test_likelihoods_of_ones_own_are_left_to_vmap():
    assert Categorical().kernel() == "categorical"
    assert Smoothed().kernel() is None


@needs_compiler
@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [(Categorical(), 3), (Homoscedastic(0.4), 2), (Heteroscedastic(), 4)],
)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.SiLU])
def test_fused_equals_vmap(float64, likelihood, outputs, activation):
    def make() -> nn.Module:
        return MLP(5, 7, 6, outputs, activation=activation)

    net = make()
    params = init(builder(make), members=range(4), seed=0)
    x = torch.randn(30, 5)
    y = torch.randint(0, 3, (30,)) if outputs == 3 else torch.randn(30, 2)
    rows = torch.randint(0, 30, (4, 11))
    fused = nll_by_kernel(net, likelihood, x, y, range(4), 0)
    gradients = []
    for nll in (
        lambda p: fused(p, rows, 0),
        lambda p: likelihood.nll(forward_each(net, p, x[rows]), y[rows]),
    ):
        own = {name: p.clone().requires_grad_() for name, p in params.items()}
        loss = nll(own)
        (loss * torch.arange(1.0, 5.0)).sum().backward()
        gradients.append([loss.detach(), *(p.grad for p in own.values())])
    for one, two in zip(*gradients, strict=True):
        # forwards and backwards through three layers, sums over 11 rows
        torch.testing.assert_close(one, two, **close(torch.float64, terms=11, depth=6, scale=10.0))


@needs_compiler
def test_fused_dropout_has_the_right_mean(float64):
    """A linear output is unbiased under dropout: its mean over draws is the noise-free one."""
    net = stochens.stochastic(MLP(3, 5, 1), Dropout(0.4))
    params = init(builder(MLP(3, 5, 1)), members=[0], seed=0)
    x, y = torch.randn(1, 3), torch.zeros(1, 1)
    fused = nll_by_kernel(net, Homoscedastic(1.0), x, y, [0], 0)
    plain = MLP(3, 5, 1)
    plain.load_state_dict({name: p[0] for name, p in params.items()})
    hidden = plain[0](x).relu() * plain[2].weight  # [1, 5], the terms that dropout drops
    mean, variance = plain(x), hidden.square().sum() * 0.4 / 0.6
    # E[(f - 0)^2] / 2 + log(2 pi) / 2 under dropout
    expected = 0.5 * (mean.square() + variance) + 0.9189385332046727
    draws = torch.stack([fused(params, None, step) for step in range(4000)])
    error = 5 * draws.std() / 4000**0.5
    assert abs(draws.mean() - expected.item()) < error


@needs_compiler
@pytest.mark.parametrize("learn", [False, True])
def test_fused_gaussian_noise_has_the_variance_of_its_weights(float64, learn):
    """y = w x + b with noise sigma on both: E[y^2] = (w x + b)^2 + sigma^2 (|x|^2 + 1)."""
    make = lambda: nn.Sequential(nn.Linear(3, 1))  # noqa: E731
    net = stochens.stochastic(make(), Gaussian(0.7, learn=learn))
    plain = init(builder(make), members=range(2), seed=0)
    params = stochens.methods.start(net, plain, {})
    x, y = torch.randn(1, 3), torch.zeros(1, 1)
    fused = nll_by_kernel(net, Homoscedastic(1.0), x, y, range(2), 0)
    mean = x @ plain["0.weight"][:, 0].T + plain["0.bias"][:, 0]  # [1, M]
    expected = 0.5 * (mean[0].square() + 0.49 * (x.square().sum() + 1)) + 0.9189385332046727
    draws = torch.stack([fused(params, None, step) for step in range(4000)])  # [4000, M]
    assert bool(((draws.mean(0) - expected).abs() < 5 * draws.std(0) / 4000**0.5).all())
    outputs = fused_outputs(net, params, x)
    assert outputs is not None
    p = torch.stack(
        [outputs(params, x, Noise(torch.arange(2), torch.tensor([seed]))) for seed in range(4000)]
    )
    variance = 0.49 * (x.square().sum() + 1)
    # the standard error of a normal's sample variance
    assert bool(((p.var(0) - variance).abs() < 5 * variance * (2 / 4000) ** 0.5).all())


@needs_compiler
@pytest.mark.parametrize("method", [Dropout(0.3), DropConnect(0.3), NPDropout()])
def test_fused_composition_learns_as_vmap_does(xor, method):
    """The same family by both engines: losses agree within the noise of their draws."""
    options = {"method": [method, Gaussian(0.2, learn=True)], "members": 40, "epochs": 40}
    losses = [
        stochens.fit(
            MLP(2, 8, 2), xor, run=stochens.Run(engine=engine), lr=0.01, device="cpu", **options
        ).history.loss
        for engine in ("fused", "vmap")
    ]
    one, two = (loss[-5:].mean(0) for loss in losses)  # [M]
    error = ((one.var() + two.var()) / 40) ** 0.5
    assert abs(one.mean() - two.mean()) < 5 * error
