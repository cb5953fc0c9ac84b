"""Natural gradients with other methods, engines, priors and exports."""

import copy
import math
from typing import Any

import pytest
import torch
from tests.long import crossed, long_but
from tests.tolerance import close, trained
from tests.training.natural_line import NOISE, hold, noisy_line
from torch import Tensor, nn

import stochens
from stochens import DropConnect, Dropout, Natural, NPDropout, Prior
from stochens.kernels import mlp
from stochens.posterior.export_program import OLDEST_TORCH

pytestmark = pytest.mark.filterwarnings("ignore:natural gradients have not arrived")

WITH = ["regular", "dropout", "dropconnect", "np-dropout"]
PRIORS = ["a number", "layers and fan-in", "a mean", "the start"]
P = 0.15
FACTORS = {  # on all of the layer: of (X^T X, its diagonal, X^T y, the L2) in the expected loss
    # the output is kept with 1 - p and divided by it
    "dropout": (Dropout(P, layers="*"), 1 / (1 - P), 0.0, 1.0, 1 - P),
    # so is each weight: the squares of one, and the products of two
    "dropconnect": (DropConnect(P, layers="*"), 1.0, P / (1 - P), 1.0, 1 - P),
    # one of two sets, each in half of the loss
    "np-dropout": (NPDropout(output=True), 0.5, 0.0, 0.5, 0.5),
}


@pytest.mark.parametrize("name", long_but({"np-dropout"}, FACTORS))
def test_the_fixed_point_with_another_method(float64, name):
    """The expected square over masks is a square again, so that the best Gaussian is known."""
    method, square, diagonal, right, left = FACTORS[name]
    x, y = noisy_line()
    posterior = stochens.fit(
        nn.Sequential(nn.Linear(2, 1)),
        (x, y),
        method=method,
        optimizer=Natural(memory=400.0),  # a mask that a batch shares makes curvatures noisy
        likelihood=stochens.Homoscedastic(NOISE),
        prior=2.0,
        members=32,
        epochs=1600,
        batch_size=None,
    )
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    products = rows.T @ rows / NOISE**2
    total = square * products + diagonal * products.diagonal().diag() + 2.0 * left * torch.eye(3)
    mean = torch.linalg.solve(total, right * (rows.T @ y[:, 0]) / NOISE**2)
    sets = len(posterior.params) // 2
    for part in (posterior.params, posterior.low_rank.variance):
        assert len(part) == 2 * sets
    for k in range(sets):
        names = list(posterior.params)[2 * k : 2 * k + 2]
        m, v = (
            torch.cat([given[n].flatten(1) for n in names], 1)
            for given in (posterior.params, posterior.low_rank.variance)
        )
        hold(m, v.sqrt(), mean, total)


@pytest.mark.parametrize("method", [NPDropout(output=True), DropConnect(0.5, layers="*")], ids=repr)
def test_what_the_first_mask_drops_begins_no_wider(float64, method):
    """Of a set that the first mask had dropped no curvature was seen: its sigma began at 1 / sqrt(N
    0.1), here 5 times too wide, and 4 of 24 members ended beyond 1e30, untold."""
    posterior = stochens.fit(
        nn.Sequential(nn.Linear(2, 1)),
        noisy_line(),
        method=method,
        optimizer=Natural(memory=1e15),  # sigma stays where it begins
        likelihood=stochens.Homoscedastic(NOISE),
        members=24,
        epochs=1,
        lr=1e-300,
    )
    for name in {"0.weight", "0.weight_2"} & set(posterior.params):
        v = posterior.low_rank.variance[name].flatten(1).amax(1)
        seen = v < 0.99 / (60 * 0.1 + 1.0)  # which it is without a curvature
        assert seen.sum() >= 23, name  # eight masks drop a tensor with 2^-8 at most


def test_a_member_that_ran_away_is_told(float64):
    """At 1e60 no step along the slope is of any use, and differences of slopes are 0."""
    x, y = noisy_line()
    start = {"weight": torch.randn(3, 1, 2), "bias": torch.zeros(3, 1)}
    start["weight"][1] = 1e60
    with pytest.warns(stochens.errors.TrainingAdvice, match=r"arrived: .* 1 of 3 members \(1\)"):
        stochens.fit(
            nn.Linear(2, 1),
            (x, y),
            method="regular",
            optimizer=Natural(sigma=0.05),
            likelihood=stochens.Homoscedastic(NOISE),
            start=start,
            members=3,
            epochs=400,
        )


def prior_of(name: str, net: nn.Module) -> Any:
    means = {n: torch.full_like(p, 0.3).detach() for n, p in net.named_parameters()}
    return {
        "a number": 3.0,
        "layers and fan-in": Prior(2.0, scale="fan-in", layers={"2*": 0.5}),
        "a mean": Prior(2.0, mean=means),
        "the start": Prior(2.0, mean="start"),
    }[name]


@pytest.mark.parametrize(("method", "prior"), crossed(WITH, PRIORS, each=1))
def test_the_kl_of_training_is_that_of_the_posterior(float64, xor, method, prior):
    """A step that moves nothing leaves what its loss had: N NLL, and every term of the KL."""
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))
    posterior = stochens.fit(
        net,
        (xor[0].double(), xor[1]),
        method=method,
        optimizer=Natural(sigma=0.1, memory=1e15),
        lr=1e-300,
        prior=prior_of(prior, net),
        members=3,
        epochs=1,
        batch_size=None,
    )
    history, kl = posterior.history, posterior.kl()
    terms = (history.loss - 60 * history.nll)[0].mean()
    within = close(torch.float32, scale=200.0)  # a loss and 60 NLLs, each kept in float32
    there = torch.tensor(kl.constant + kl.l2 + kl.stochasticity).to(terms)
    torch.testing.assert_close(terms, there, **within)
    slopes = {n: v.flatten()[0] for n, v in posterior.low_rank.variance.items()}
    assert all(abs(math.sqrt(v) - 0.1) < 1e-12 for v in slopes.values())


@pytest.mark.skipif(not mlp.available(), reason="no C++ compiler here")
@pytest.mark.parametrize("method", long_but({"dropout"}, WITH))
def test_a_training_is_the_same_by_every_engine(float64, method):
    x, y = stochens.toy_set("a", n=40)
    found = [
        stochens.fit(
            stochens.MLP(2, 6, 2, activation=nn.Tanh),  # no kinks that rounding could cross
            (x.double(), y),
            method=method,
            optimizer="natural",
            members=3,
            epochs=4,
            batch_size=16,
            run=stochens.Run(engine=engine),
        )
        for engine in ("fused", "vmap", "loop")
    ]
    within = trained(torch.float64, steps=12, rows=16)
    for other in found[1:]:
        torch.testing.assert_close(other.history.loss, found[0].history.loss, **within)
        for name, v in found[0].low_rank.variance.items():
            torch.testing.assert_close(other.low_rank.variance[name], v, **within)
            torch.testing.assert_close(other.params[name], found[0].params[name], **within)


class Sentences(nn.Module):
    """Words [B, L] -> classes: an embedding, a convolution, a norm, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)
        self.twice = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.conv(self.words(x).transpose(1, 2)).transpose(1, 2)
        return self.head(self.twice(torch.tanh(self.twice(self.norm(seen)))).mean(1))


@pytest.mark.parametrize("method", long_but({"dropout"}, ["regular", "dropout", stochens.LoRA(2)]))
def test_any_network_a_member_alone_or_among_others(float64, method):
    """Every trainable parameter has its sigma, and a member is the same in any company."""
    torch.manual_seed(1)
    x = torch.randint(0, 7, (30, 5))
    y = (x[:, 0] > 3).long()
    net = Sentences()
    options = {"method": method, "optimizer": "natural", "epochs": 6, "batch_size": 10}
    three, one = (
        stochens.fit(copy.deepcopy(net), (x, y), members=ids, **options) for ids in ([0, 1, 2], [1])
    )
    assert set(three.low_rank.variance) == set(three.params)
    within = trained(torch.float64, steps=18, rows=10)
    for name, v in one.low_rank.variance.items():
        torch.testing.assert_close(three.low_rank.variance[name][1:2], v, **within)
        torch.testing.assert_close(three.params[name][1:2], one.params[name], **within)
        assert (v > 0).all()


@pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}")
def test_an_export_has_the_draws(xor, tmp_path):
    posterior = stochens.fit(
        stochens.MLP(2, 6, 2), xor, method=Dropout(0.2), optimizer="natural", members=2, epochs=20
    )
    noise = posterior.export(tmp_path / "model.pt2", draws=3, seed=2)
    function = torch.export.load(tmp_path / "model.pt2").module()
    p = posterior.predict(xor[0], draws=3, seed=2, noise="shared")
    probs = function(xor[0], noise)[0]
    torch.testing.assert_close(probs, p.mean, **close(torch.float32, terms=20, depth=4))
    assert p.mutual_information.max() > 1e-3
