"""One example at a time, as a server asks for it: what is settled once must be settled anew when
the posterior is another."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stochens
from stochens.likelihoods import Predicted
from stochens.posterior.posterior import Posterior

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


def fitted(net: nn.Module, method: str = "regular") -> Posterior:
    return stochens.fit(
        net, (X, Y), method=method, members=4, epochs=2, progress=False, device="cpu"
    )


@pytest.fixture(params=["kernel", "vmap"])
def posterior(request: pytest.FixtureRequest) -> Posterior:
    activation = nn.ReLU() if request.param == "kernel" else nn.GELU()
    return fitted(nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 3)), "dropout")


def same(a: Predicted, b: Predicted) -> bool:
    return all(torch.equal(a.summaries()[name], t) for name, t in b.summaries().items())


def fresh(posterior: Posterior) -> Posterior:
    """The same posterior, of which nothing is known yet."""
    net = copy.deepcopy(posterior.net)
    params = {name: p.clone() for name, p in posterior.params.items()}
    return dataclasses.replace(posterior, net=net, params=params)


def test_again_is_the_same(posterior):
    first = posterior.predict(X[:1])
    assert same(first, posterior.predict(X[:1]))
    assert same(first, fresh(posterior).predict(X[:1]))
    assert not same(first, posterior.predict(X[:1], seed=1))
    assert not same(first, posterior.predict(X[1:2]))


def test_other_parameters(posterior):
    before = posterior.predict(X[:1])
    for p in posterior.params.values():  # in place: the same tensors
        p.mul_(1.5)
    after = posterior.predict(X[:1])
    assert same(after, fresh(posterior).predict(X[:1]))
    assert not same(after, before)
    other = {name: 2 * p for name, p in posterior.params.items()}
    replaced = dataclasses.replace(posterior, params=other)
    assert same(replaced.predict(X[:1]), fresh(replaced).predict(X[:1]))


def test_other_precision(posterior):
    posterior.predict(X[:1])
    params = {name: p.double() for name, p in posterior.params.items()}
    double = dataclasses.replace(posterior, net=posterior.net.double(), params=params)
    got = double.predict(X[:1].double())
    assert got.mean.dtype == torch.float64
    assert same(got, fresh(double).predict(X[:1].double()))


def test_other_mode(posterior):
    before = posterior.predict(X[:1])
    posterior.net.train()
    assert same(posterior.predict(X[:1]), before)
    assert not posterior.net.training


def test_another_layer(posterior):
    before = posterior.predict(X[:1])
    posterior.net[1] = nn.Tanh()
    after = posterior.predict(X[:1])
    assert same(after, fresh(posterior).predict(X[:1]))
    assert not same(after, before)


def test_another_shape_of_the_input():
    posterior = fitted(nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    flat = posterior.predict(X[:1])
    assert same(posterior.predict(X[:1].view(1, 2, 3)), flat)
    assert same(posterior.predict(X[:1]), flat)


def test_inside_of_inference_mode_and_after_it(posterior):
    with torch.inference_mode():
        inside = posterior.predict(X[:1], seed=7)
    outside = posterior.predict(X[:1], seed=7)
    assert same(inside, outside)
    weight = torch.ones(3, requires_grad=True)
    (outside.mean * weight).sum().backward()  # what is returned may be part of a loss
    assert weight.grad is not None


def test_draws_are_tensors_of_their_own():
    """Whatever the likelihood makes them of: here of the network's outputs themselves."""
    y = torch.randn(20, 1, generator=torch.Generator().manual_seed(1))
    posterior = stochens.fit(
        nn.Linear(6, 1),
        (X, y),
        likelihood="gaussian",
        method="regular",
        members=3,
        epochs=1,
        progress=False,
        device="cpu",
    )
    p = posterior.predict(X[:1])
    for draws in p.by_draw().values():
        assert draws.untyped_storage().nbytes() == draws.numel() * draws.element_size()
        draws.zero_()
    again = posterior.predict(X[:1])
    assert torch.equal(p.mean, again.mean)
    assert all(t.any() for t in again.by_draw().values())


def test_what_waits_until_it_is_asked_for_is_what_it_would_have_been(posterior):
    """The mean entropy of kept draws: in copies, through pickle, and without the draws."""
    light = posterior.predict(X[:3], keep_draws=False)  # where nothing waits
    ways: dict[str, Callable[[Any], Any]] = {
        "asked": lambda p: p,
        "pickled": lambda p: pickle.loads(pickle.dumps(p)),
        "copied": copy.deepcopy,
        "replaced": dataclasses.replace,
        "light": lambda p: p.light(),
        "joined": lambda p: type(p).joined([p, p]).of_draws(slice(None)),
    }
    for name, way in ways.items():
        got = way(posterior.predict(X[:3])).aleatoric[:3]
        if name == "joined":  # by means of float32
            torch.testing.assert_close(got, light.aleatoric)
        else:
            assert torch.equal(got, light.aleatoric), name
    with pytest.raises(AttributeError, match="'Predictive' object has no attribute 'aleatory'"):
        posterior.predict(X[:3]).aleatory  # noqa: B018
