"""Hugging Face's Conv1D is a Linear with its weight transposed, for every method."""

from typing import Any

import pytest
import torch
from tests.long import long_but
from torch import Tensor, nn

import stochens
from stochens import DropConnect, Dropout, Gaussian, NPDropout
from stochens.members import forward, trainable
from stochens.methods import stochastic, stochastic_layers
from stochens.methods.partial import without_noise
from stochens.objective import kl
from stochens.program.choice import Workload, distance_to_members
from stochens.program.program import build
from stochens.randomness.seeds import seeded

IN, OUT, MEMBERS, DRAWS = 5, 4, 3, 4000


def stand_in() -> type[nn.Module]:
    """The same function under the same name, where transformers is not installed."""

    class Conv1D(nn.Module):
        def __init__(self, nf: int, nx: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(nx, nf))
            self.bias = nn.Parameter(torch.randn(nf))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(
                *x.shape[:-1], -1
            )

    Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"
    return Conv1D


@pytest.fixture(params=["stand-in", "transformers"])
def conv1d(request: pytest.FixtureRequest) -> Any:
    if request.param == "stand-in":
        return stand_in()
    reason = "needs transformers: pip install 'stochens[pretrained]'"
    return pytest.importorskip("transformers.pytorch_utils", reason=reason).Conv1D


METHODS: list[Any] = [Dropout(0.3), DropConnect(0.3), NPDropout(), Gaussian(0.2)]
METHODS += [Gaussian(0.2, learn=True), [NPDropout(), Gaussian(0.2)]]


def pair(conv1d: Any, method: Any) -> tuple[nn.Module, nn.Module, Any, Any]:
    """Both networks with noise, and the same parameters [M, ...] for each of them."""
    kinds = (nn.Linear(IN, OUT), conv1d(OUT, IN))
    linear, conv = (stochastic(layer, method, output="(none)") for layer in kinds)
    with seeded(0):
        own = {n: torch.randn(MEMBERS, *p.shape) / 3 for n, p in trainable(linear).items()}
    turned = {n: p.transpose(1, 2).contiguous() if p.dim() > 2 else p for n, p in own.items()}
    assert list(turned) == list(trainable(conv))
    return linear, conv, own, turned


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_kl_is_that_of_a_linear_layer(conv1d: Any, method: Any) -> None:
    linear, conv, own, turned = pair(conv1d, method)
    one, two = kl(linear, own, 2.0), kl(conv, turned, 2.0)
    for found, known in zip(two, one, strict=True):
        torch.testing.assert_close(found, known)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", [m for m in METHODS if m != DropConnect(0.3)], ids=repr)
def test_draws_are_those_of_a_linear_layer(conv1d: Any, method: Any) -> None:
    """Noise on nodes and outputs has the same shape in both; that of DropConnect is transposed."""
    linear, conv, own, turned = pair(conv1d, method)
    x = torch.randn(7, IN)
    with seeded(1):
        one = forward(linear, own, x)
    with seeded(1):
        two = forward(conv, turned, x)
    torch.testing.assert_close(two, one)


@pytest.mark.usefixtures("float64")
def test_dropconnect_has_its_variance(conv1d: Any) -> None:
    """var(y_j) = p / (1 - p) (sum_i (x_i W_ij)^2 + b_j^2)."""
    _, conv, _, turned = pair(conv1d, DropConnect(0.3))
    x = torch.randn(2, IN)
    same = {n: p[:1].expand(DRAWS, *p.shape[1:]) for n, p in turned.items()}
    with seeded(0):
        found = forward(conv, same, x).var(0)
    w, b = turned["weight"][0], turned["bias"][0]
    known = 0.3 / 0.7 * (x.square() @ w.square() + b.square())
    # a sum of few coins: its fourth moment is below 5 var^2, so the standard error is 2 / sqrt(S)
    torch.testing.assert_close(found, known, rtol=5 * 2 / DRAWS**0.5, atol=0)


@pytest.mark.parametrize("method", long_but(METHODS[1::2], METHODS), ids=repr)
def test_it_goes_all_the_way(conv1d: Any, method: Any, tmp_path: Any, xor: Any) -> None:
    def make() -> nn.Module:
        return nn.Sequential(conv1d(6, 2), nn.Tanh(), conv1d(6, 6), nn.Tanh(), nn.Linear(6, 2))

    posterior = stochens.fit(make, xor, method=method, members=2, epochs=2)
    assert {"0", "2"} <= set(stochastic_layers(posterior.net))
    rules = posterior.recipe.methods
    left = without_noise(posterior.net, rules, xor[0][:4], output="4")
    assert not any(left.values())
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", make)
    assert torch.equal(again.predict(xor[0]).probs, posterior.predict(xor[0]).probs)
    net = posterior.net.double().train()
    few = xor[0][:4].double()
    off = distance_to_members(build(net, few), net, few, Workload(4, 1.0, own_rows=True))
    assert off < 1e-12  # sums of six terms in float64
