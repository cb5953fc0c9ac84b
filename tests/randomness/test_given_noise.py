"""Noise that is given, recorded and shared."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import nn

import stochens
from stochens import DropConnect, Dropout, Gaussian, InputError, NPDropout
from stochens.members import forward
from stochens.networks import SmallResNetFRN
from stochens.posterior.shared_noise import noise_of_draw, noise_requests
from stochens.randomness.noise import bernoulli, draw_noise, record_noise, replay_noise

METHODS = [
    "regular",
    Dropout(0.3),
    Dropout(0.3, node="channel"),
    DropConnect(0.3),
    NPDropout(),
    NPDropout(node="channel"),
    Gaussian(0.1),
    Gaussian(0.1, learn=True),
    [Dropout(0.2), Gaussian(0.1)],
]


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 1, 8, 8, generator=generator)
    return x, torch.arange(12) % 3


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_shared_noise_makes_one_function_of_each_draw(float64, images, method):
    x, y = images[0].double(), images[1]
    posterior = stochens.fit(SmallResNetFRN(classes=3), (x, y), method=method, members=3, epochs=1)
    p = posterior.predict(x, draws=2, noise="shared", seed=1)
    order = torch.randperm(12)
    other = posterior.predict(x[order], draws=2, noise="shared", seed=1, batch_size=5)
    # 20 layers of at most 9 * 64 terms, over batches of another size
    within = close(torch.float64, terms=600, depth=20)
    torch.testing.assert_close(p.probs[:, order], other.probs, **within)
    if method != "regular":
        assert (p.probs[:3] - p.probs[3:]).abs().max() > 1e-4, "the second draw is another"
        again = posterior.predict(x, draws=2, noise="shared", seed=2)
        assert (p.probs - again.probs).abs().max() > 1e-4


def test_shared_noise_has_the_law_of_fresh_noise(images):
    """The mean of many draws at one input is the same, to within its standard error."""
    x, y = images
    net = stochens.MLP(64, 16, 3)
    posterior = stochens.fit(net, (x.flatten(1), y), method=Dropout(0.5), members=1, epochs=50)
    one, n = x.flatten(1)[:1], 1000
    fresh, shared = (posterior.predict(one, draws=n, noise=kind) for kind in ("fresh", "shared"))
    error = (fresh.probs.var(0) + shared.probs.var(0)).div(n).sqrt()
    assert ((fresh.mean - shared.mean).abs() < 4 * error).all()  # 4 sigma, three numbers


def test_the_loop_and_vmap_take_the_same_noise(float64, images):
    x, y = images[0].double(), images[1]
    posterior = stochens.fit(SmallResNetFRN(classes=3), (x, y), members=3, epochs=1, device="cpu")
    net, params = posterior.net, posterior.params
    noise = noise_of_draw(noise_requests(net, x[:1]), 3, 0, seed=0)
    vmap, loop = (forward(net, params, x, engine=e, noise=noise) for e in ("vmap", "loop"))
    torch.testing.assert_close(vmap, loop)  # float64: no rounding of any CPU's convolutions shows


def test_noise_by_hand():
    """Dropout with a mask that is written down."""
    layer: Any = stochens.stochastic(nn.Linear(2, 2), Dropout(0.5, rates={"*": 0.5}))
    x = torch.randn(5, 2)
    with replay_noise([torch.tensor([[0.2, 0.7]])]):
        got = layer(x)
    torch.testing.assert_close(got, layer.plain(x) * torch.tensor([2.0, 0.0]))


def test_requests_are_drawn_by_their_kind():
    with record_noise() as asked:
        bernoulli(0.5, (1, 1000), torch.zeros(1))
    (u,) = draw_noise(asked, 3, seed=0)
    assert u.shape == (3, 1, 1000)
    assert u.min() >= 0
    assert u.max() < 1
    assert 0.45 < u.mean() < 0.55  # standard error 0.005


class Merged(nn.Module):
    """Merges the batch with another axis, as some networks of patches do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.inner(x.reshape(-1, 4)).reshape(len(x), 8))


def test_what_cannot_be_shared_is_refused():
    x, y = torch.randn(9, 8), torch.arange(9) % 3
    posterior = stochens.fit(Merged, (x, y), members=2, epochs=1)
    with pytest.raises(InputError, match="merges the batch"):
        posterior.predict(x, noise="shared")
    own = stochens.keep_dropout(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3)))
    posterior = stochens.fit(own, (x, y), method="regular", members=2, epochs=1)
    with pytest.raises(InputError, match="own dropout"):
        posterior.predict(x, noise="shared")
    with pytest.raises(InputError, match="noise must be 'fresh' or 'shared'"):
        posterior.predict(x, noise="none")
    with replay_noise([]), pytest.raises(InputError, match="more than 0 times"):
        bernoulli(0.5, (1,), torch.zeros(1))


def test_threads_do_not_see_each_other_s_noise():
    """A service predicts with one model in many threads."""
    x, y = torch.randn(30, 8), torch.arange(30) % 3
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    posterior = stochens.fit(net, (x, y), members=3, epochs=1)
    alone = posterior.predict(x, noise="shared").mean
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: posterior.predict(x, noise="shared").mean, range(40)))
    assert all(torch.equal(mean, alone) for mean in found)
