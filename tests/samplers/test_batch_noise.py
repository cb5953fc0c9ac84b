"""The noise of mini-batches: its estimate, and what is injected in its place, by closed forms."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.samplers.test_sgmcmc import check_moments
from torch import nn

import stochens
from stochens.samplers import batch_noise
from stochens.samplers.batch_noise import Noise, cooled, kick_variance, noise_share, step_share
from stochens.samplers.gradients import random_rows
from stochens.samplers.problem import SamplerRequest, prepare
from stochens.samplers.sgmcmc_plan import Cycle
from stochens.samplers.sgmcmc_steps import keys

COVARIANCE = torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 0.9], [0.0, 0.9, 1.0]], dtype=torch.float64)


def looked(count: int, *, s: float = 1.0, chains: int = 3) -> Noise:
    """After gradients of mean (5, -3, 100) and COVARIANCE."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(chains, 3, generator=generator, dtype=torch.float64)
    noise, root = batch_noise.unknown(v), torch.linalg.cholesky(COVARIANCE)
    for k in range(count + 1):
        g = torch.randn(chains, 3, generator=generator, dtype=torch.float64) @ root.T
        g = g + torch.tensor([5.0, -3.0, 100.0])
        noise = batch_noise.seen(noise, g, s * (g - noise.last) / math.sqrt(2), k)
    return noise


def test_the_variance_of_gradients_is_found_whatever_their_mean():
    """Of (g' - g)^2 / 2 the variance is 3 sigma^4 with neighbours that share a gradient, so that
    the mean of n has a standard error of sigma^2 sqrt(3 / n)."""
    n = 3000
    noise = looked(n)
    error = COVARIANCE.diagonal() * math.sqrt(3 / n)
    assert bool(((noise.square / n - COVARIANCE.diagonal()).abs() < 5 * error).all())


def test_the_largest_direction_is_found_and_its_variance():
    """Eigenvalues 4, 1.9 and 0.1. Ten differences count, so v is within 0.5 of the axis, and the
    variance along it, of ten squares, within five errors of 4 sqrt(2 / 10)."""
    noise = looked(400, chains=40)
    assert float(noise.v[:, 0].abs().mean()) > 0.9
    torch.testing.assert_close(noise.v.norm(dim=1), torch.ones(40, dtype=torch.float64))
    assert abs(float(noise.along.mean()) - 4) < 5 * 4 * math.sqrt(2 / 10 / 40) + 0.4


def test_the_scale_of_steps_enters_the_variance_along_v_alone():
    one, half = looked(50), looked(50, s=0.5)
    torch.testing.assert_close(one.square, half.square)
    torch.testing.assert_close(one.v, half.v)
    torch.testing.assert_close(0.25 * one.along, half.along)


def test_gradients_that_do_not_change_leave_everything_as_it_is():
    v = torch.tensor([[3.0, 4.0]])
    noise, g = batch_noise.unknown(v), torch.ones(1, 2)
    for k in range(3):
        noise = batch_noise.seen(noise, g, (g - noise.last) / math.sqrt(2), k)
    torch.testing.assert_close(noise.v, v / 5)
    assert float(noise.along) == 0
    assert not noise.square.any()


def test_what_is_injected_makes_up_the_sum():
    """2 (1 - beta) T - s^2 n, and nothing where the noise is more than that already."""
    noise = looked(1)._replace(square=torch.tensor([[2.0, 8.0, 40.0]]))
    s = torch.tensor([[0.5, 0.5, 0.5]])
    variance = kick_variance(noise, 4, s, 0.6)
    torch.testing.assert_close(variance, torch.tensor([[0.475, 0.1, 0.0]]))
    assert kick_variance(noise, 0, s, 0.6) == 0.6  # nothing is known yet


def test_lr_comes_down_to_what_is_allowed_and_never_goes_up():
    along = torch.tensor([0.0, 0.01, 0.05, 0.1, 0.2, 5.0, math.inf, math.nan], dtype=torch.float64)
    noise = looked(1, chains=8)._replace(along=along)
    share = noise_share(noise, 0.2)  # 1 where along / 0.2 = NOISY
    assert float(share[2]) == pytest.approx(1.0)
    rate = cooled(noise, share).rate
    assert rate[:3].tolist() == [1.0, 1.0, 1.0]
    assert rate[3:6].tolist() == pytest.approx([0.5, 0.25, 2**-6.75])  # on a grid of 2^(1/4)
    assert bool((rate[3:6] * share[3:6] <= 1).all())
    assert rate[6:].tolist() == [0.0, 1.0]  # such a chain has diverged, and is told of
    again = cooled(cooled(noise, share), share).rate
    torch.testing.assert_close(again, rate.square())  # two looks add up


def test_the_share_of_full_batch_steps_is_that_of_the_closed_form():
    """The variance of draws is T / (a (1 - x / (2 (1 + beta)))), x = s^2 a; a step changes s g by
    x p, and half the square of that is x^2 T / (1 + beta)."""
    x, beta, T = 0.3, 0.9, 0.7
    along = torch.tensor([x * x * T / (1 + beta)], dtype=torch.float64)
    share = step_share(looked(1, chains=1)._replace(along=along), beta, T)
    assert float(share) == pytest.approx(x / (2 * (1 + beta)) / batch_noise.COARSE)


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_uniform_and_independent_from_step_to_step():
    """Counts of 30 rows in 500 batches of 40, whose standard error is sqrt(666)."""
    data = (torch.randn(30, 2), torch.arange(30) % 2)
    problem = prepare(SamplerRequest(net=nn.Linear(2, 2), data=data, members=3))
    rows = torch.stack([random_rows(problem, keys(problem), 40, step) for step in range(500)])
    assert rows.shape == (500, 3, 40)
    for chain in range(3):
        counts = rows[:, chain].flatten().bincount(minlength=30)
        assert len(counts) == 30
        assert float((counts - 20_000 / 30).abs().max()) < 5 * math.sqrt(20_000 / 30)
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0, 0], rows[0, 1])
    again = random_rows(problem, keys(problem), 40, 7)
    assert torch.equal(again, rows[7])


def test_when_the_noise_is_looked_at():
    """In the second eighth of a burn-in and in its third quarter. After either lr is chosen, and
    after the second the noise is corrected for."""
    plan = Cycle(0.1, 0.9, 1.0, None, burn_in=40, thin=1, samples=4, cycles=2, cools=True)
    for first in (0, plan.length):

        def where(is_so: Callable[[int], bool], first: int = first) -> list[int]:
            return [k for k in range(plan.length) if is_so(first + k)]

        assert where(lambda k: plan.at(k).looks) == [*range(5, 10), *range(20, 30)]
        assert where(plan.begins_to_look) == [5, 20]
        assert where(plan.ends_looking) == [10, 30]
        assert where(plan.half_way) == [7, 8, 9, *range(25, 30)]
        assert [plan.measured(first + k) for k in (10, 30)] == [3, 5]
        assert where(lambda k: plan.at(k).corrects) == [*range(30, 42)]
        assert where(plan.ends_burn_in) == [40]
    assert not any(map(plan._replace(cools=False).ends_looking, range(plan.steps)))
    assert plan.kick == pytest.approx(0.2)


# -- a chain ---------------------------------------------------------------------------------------

N, NOISE = 400, 1.0


def draws_on_batches(*, kind: str, lr: float | None, batch_size: int, preconditioner: str | None):
    """Of the mean of N numbers of variance 1, and the exact mean and variance of its posterior."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(N, generator=generator, dtype=torch.float64)
    y = (y - y.mean()) / y.std(correction=0) + 2
    x = torch.ones(N, 1, dtype=torch.float64)
    posterior = stochens.sgmcmc(
        nn.Linear(1, 1, bias=False),
        (x, y),
        kind=kind,
        chains=800,
        samples=3,
        burn_in=600,
        thin=100,
        lr=lr,
        batch_size=batch_size,
        preconditioner=preconditioner,
        likelihood=stochens.Homoscedastic(NOISE),
        device="cpu",
        run=stochens.Run(precision="float64"),
    )
    precision = N / NOISE**2 + 1
    draws = posterior.params["weight"].view(800, 3, 1)
    return posterior, draws, y.sum().reshape(1) / precision, torch.tensor([1 / precision])


@pytest.mark.filterwarnings("ignore:3 draws of each chain")
@pytest.mark.parametrize(
    ("kind", "lr", "preconditioner"),
    [
        ("sghmc", 0.008, None),
        ("sgld", 0.05, None),
        pytest.param("sghmc", 0.002, "rmsprop", marks=pytest.mark.long),
        pytest.param("sghmc", None, None, marks=pytest.mark.long),
    ],
)
def test_batches_do_not_heat_a_gaussian(kind, lr, preconditioner):
    """The noise of a batch of 20 is 0.8 of what sghmc injects at lr = 0.008, and would make the
    variance 1.8 times too large. The estimate from 150 differences is off by sqrt(3 / 150) a chain,
    so that variances differ from chain to chain by 0.11 and are right on average; the step's own
    share is 0.002, or 0.025 for sgld."""
    _, draws, mean, variance = draws_on_batches(
        kind=kind, lr=lr, batch_size=20, preconditioner=preconditioner
    )
    check_moments(draws, mean, variance, bias=0.03)


@pytest.mark.filterwarnings("ignore:3 draws of each chain")
def test_lr_is_lowered_where_batches_are_noisier_than_the_kick():
    """At 0.01, the default, the noise of a batch of 5 is 4 times what is injected."""
    posterior, draws, mean, variance = draws_on_batches(
        kind="sghmc", lr=None, batch_size=5, preconditioner=None
    )
    lr = posterior.chains.stats["step"]  # [chains, draws]
    assert float(lr.max()) < 0.01
    assert 0.01 / 40 < float(lr.median()) < 0.01 / 8  # 16, to the spread of ten differences
    assert torch.equal(lr[:, 0], lr[:, -1])
    # the burn-in's half has no time to lose all of the heat before: most of it is gone
    spread = ((draws - mean) / variance.sqrt()).flatten()
    assert float(spread.square().mean()) < 2.0


@pytest.mark.filterwarnings("ignore")
def test_the_lr_of_cycles_is_theirs(xor):
    """It falls by itself; a noise that lowered it once would lower it in every cycle."""
    posterior = stochens.sgmcmc(
        nn.Linear(2, 2), xor, kind="csghmc", cycles=2, samples=8, burn_in=40, batch_size=2, chains=2
    )
    lr = posterior.chains.stats["step"]
    assert torch.equal(lr[:, :4], lr[:, 4:])
    plan = Cycle(0.01, 0.9, 1.0, None, 40, 10, 8, 2, cools=False)
    assert lr[0, 0].item() == pytest.approx(plan.at(49).lr)
