"""The Langevin ensemble: exact where the posterior is known, and each member its own."""

import math

import pytest
import torch
from tests.long import crossed
from tests.running import gather
from torch import nn

import stochens
from stochens import Failed, InputError
from stochens.samplers import langevin_steps
from stochens.samplers.diagnostics import SamplingWarning
from stochens.samplers.langevin_steps import State, StepRule

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*to leave the prior behind", "ignore:these members are not draws"
)


def line(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, generator=generator).double()
    return x, 0.7 * x[:, 0] - 0.3 + 0.5 * torch.randn(n, generator=generator).double()


def exact(x: torch.Tensor, y: torch.Tensor, noise: float, precision: float):
    """Mean and covariance of (weight, bias): Bayesian linear regression in closed form."""
    design = torch.cat([x, torch.ones_like(x)], 1)
    inverse = design.T @ design / noise**2 + precision * torch.eye(2).double()
    covariance = torch.linalg.inv(inverse)
    return covariance @ design.T @ y / noise**2, covariance


@pytest.mark.parametrize(("batch_size", "precision"), crossed([None, 20], [1.0, 4.0], each=1))
def test_a_gaussian_posterior_is_met(float64, batch_size, precision):
    x, y = line()
    M = 800
    posterior = stochens.langevin(
        nn.Linear(1, 1),
        (x, y),
        members=M,
        steps=400 if batch_size is None else 1500,
        step_size=0.05 / math.sqrt(precision),
        batch_size=batch_size,
        prior=precision,
        likelihood=stochens.Homoscedastic(noise=0.5),
    )
    draws = torch.cat([posterior.params[n].flatten(1) for n in ("weight", "bias")], 1)  # [M, 2]
    mean, covariance = exact(x, y, 0.5, precision)
    sd = covariance.diagonal().sqrt()
    # 5 standard errors of a mean and of a variance over independent members; mini-batches heat the
    # chain a little, which small last steps make small
    slack = 0.0 if batch_size is None else 0.1
    assert ((draws.mean(0) - mean).abs() < 5 * sd / math.sqrt(M) + slack * sd).all()
    ratio = draws.var(0) / covariance.diagonal()
    assert ((ratio - 1).abs() < 5 * math.sqrt(2 / M) + slack).all()
    correlation = torch.corrcoef(draws.T)[0, 1]
    expected = covariance[0, 1] / sd.prod()
    assert abs(correlation - expected) < 5 / math.sqrt(M) + slack


def test_engines_agree(float64, xor):
    data = xor[0].double(), xor[1]
    runs = [
        stochens.langevin(
            stochens.MLP(2, 4, 2), data, members=3, steps=20, run=stochens.Run(engine=engine)
        )
        for engine in ("fused", "vmap", "loop")
    ]
    for run in runs[1:]:
        for name, p in runs[0].params.items():
            torch.testing.assert_close(run.params[name], p, rtol=1e-9, atol=1e-11)


PLAN = StepRule(
    steps=100, step_size=0.1, fixed=False, friction=1.0, anneal=0.5, last_step=0.1, precision=1.0
)


def test_the_likelihood_is_let_in_and_steps_shrink():
    u = torch.tensor([0, 0.25, 0.5, 0.75, 1]).double()
    assert PLAN.weight(u).tolist() == [0, 0.25, 1, 1, 1]
    assert PLAN._replace(anneal=0.0).weight(u).tolist() == [1] * 5
    assert PLAN.share(u).tolist() == pytest.approx([1, 1, 1, 0.1 + 0.9 * 0.5, 0.1])
    fine = torch.linspace(0, 1, 100_001).double()
    assert PLAN.mean_share == pytest.approx(float(PLAN.share(fine).mean()), rel=1e-4)


def resting(curvature: list[float], u: float = 1.0) -> State:
    """Members of one parameter each, along whose direction the likelihood is so curved."""
    a = torch.tensor(curvature).double()
    zero = torch.zeros(len(a), 1).double()
    at = langevin_steps.initial(zero, zero, torch.ones_like(zero))
    return at._replace(curvature=a, u=torch.full_like(a, u))


def test_a_stiff_member_takes_smaller_steps():
    """h omega <= 0.75, omega^2 = 1 + beta a / lambda."""
    plan = PLAN._replace(precision=4.0)
    at = resting([0.0, 4 * (20.0**2 - 1)])
    assert plan.size(at).tolist() == pytest.approx([0.1, 0.75 / 20])
    half = at._replace(u=torch.full_like(at.u, 0.25))  # beta = 1/4
    assert plan.size(half)[1] == pytest.approx(0.75 / math.sqrt(1 + 399 / 4))
    assert plan._replace(fixed=True).size(at).tolist() == [0.1, 0.1]


def test_the_time_needed_follows_the_excess_of_the_stiffest_direction():
    """4 omega exp(-friction t) = 0.02, and friction above 2 brakes nothing sooner."""
    at = resting([10.0**2 - 1])
    for friction, brake in ((1.0, 1.0), (2.0, 2.0), (3.0, 2.0)):
        time = float(PLAN._replace(friction=friction).time_needed(at.curvature))
        assert 4 * 10 * math.exp(-brake * time) == pytest.approx(0.02)


def test_mini_batches_with_few_steps_are_called_too_short():
    """With a quarter of the usual time the sd was 1.18 times the exact one, without a word."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = x.sum(1) + 8 * torch.randn(60, generator=generator)
    like = stochens.Homoscedastic(8.0)
    with pytest.warns(SamplingWarning, match="too short a time"):
        stochens.langevin(
            nn.Linear(4, 1), (x, y), members=10, batch_size=12, steps=200, likelihood=like
        )


def test_more_friction_takes_more_time():
    """A soft direction moves at omega^2 / friction, so that time / friction must not fall.

    With friction 100 and 20 members, a linear regression of 60 rows had 1.5 times the sd, and in 3
    of 6 runs nothing was said."""
    at = resting([0.0, 10.0**2 - 1])
    for friction in (10.0, 30.0, 300.0):
        free = PLAN._replace(steps=None, friction=friction)
        h = free.size(at)
        time = h * free.mean_share / free.pace(at, h)
        assert (time / friction).tolist() == pytest.approx([1.25, 1.25])
        assert bool((free.time_needed(at.curvature) < time).all())
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    with pytest.warns(SamplingWarning, match="5 of 5 members moved for too short a time"):
        stochens.langevin(nn.Linear(2, 2), data, members=5, steps=500, friction=100.0)


def test_the_pace_is_that_of_the_steps_or_of_the_time():
    at = resting([0.0, 20.0**2 - 1])
    assert PLAN.pace(at, PLAN.size(at)).tolist() == [0.01, 0.01]
    free = PLAN._replace(steps=None)
    h = free.size(at)
    taken = 1 / free.pace(at, h)  # steps, whose mean size is mean_share h
    assert (taken * h * PLAN.mean_share).tolist() == pytest.approx([12.5, 12.5])
    stiff = resting([1e12])
    assert 1 / free.pace(stiff, h[:1]) * h[0] * PLAN.mean_share > 18  # log(4e6 / 0.02) / 1


def test_the_power_method_finds_the_stiffest_direction():
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator).double())[0]
    a = turn @ torch.diag(torch.tensor([900.0, 30, 10, 5, 1, 0]).double()) @ turn.T

    def slope(q):
        return (q - 0.3) @ a

    q, p, v = (torch.randn(2, 6, generator=generator).double() for _ in range(3))
    at = langevin_steps.initial(q, p, v)._replace(s=slope(q))
    for _ in range(10):
        at = langevin_steps.measure_curvature(PLAN, at, slope)
    # on a grid of 2^(1/4), rounded up
    assert ((at.curvature >= 900 * (1 - 1e-9)) & (at.curvature <= 900 * 2**0.25)).all()
    assert ((at.v @ turn[:, 0]).abs() > 0.999).all()
    done = at._replace(u=torch.ones_like(at.u))
    assert torch.equal(
        langevin_steps.measure_curvature(PLAN, done, lambda q: 1e9 * q).curvature, at.curvature
    )


def test_a_step_is_baoab():
    """Against the five lines of the equation, written with plain floats."""
    plan = PLAN._replace(fixed=True, precision=4.0, steps=10, anneal=0.5)
    a, q, p, n, u = 3.0, 0.4, -0.2, 0.7, 0.3

    def slope(q):
        return a * (q - 1)

    one = torch.ones(1, 1).double()
    at = langevin_steps.initial(q * one, p * one, one)
    at = at._replace(s=slope(q * one), u=torch.full_like(at.u, u))
    made = langevin_steps.move_members(plan, at, n * one, slope)
    h, sigma, beta = 0.1, 0.5, (u / 0.5) ** 2
    c = math.exp(-h)
    p -= h / 2 * sigma * (beta * slope(q) + 4 * q)
    q += h / 2 * sigma * p
    p = c * p + math.sqrt(1 - c * c) * n
    q += h / 2 * sigma * p
    p -= h / 2 * sigma * (((u + 0.1) / 0.5) ** 2 * slope(q) + 4 * q)
    # ten operations in float64 on numbers below 5
    assert float(made.q) == pytest.approx(q, abs=1e-14)
    assert float(made.p) == pytest.approx(p, abs=1e-14)
    assert float(made.u) == pytest.approx(0.4)
    assert float(made.time) == 0.1


def test_a_member_that_is_done_stays():
    at = resting([0.0, 0.0])._replace(u=torch.tensor([1.0, 0.5]).double())
    made = langevin_steps.move_members(PLAN, at, torch.ones(2, 1).double(), lambda q: q)
    assert made.q[0] == 0
    assert made.q[1] != 0
    assert made.time.tolist() == [0.0, 0.1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, "members must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"anneal": 2.0}, "anneal must be a share"),
        ({"step_size": -1.0}, "step_size must be a positive number"),
        ({"engine": "fast"}, "engine must be"),
    ],
)
def test_bad_options_are_refused(xor, options, message):
    with pytest.raises(InputError, match=message):
        stochens.langevin(
            stochens.MLP(2, 4, 2), xor, **gather(**{"members": 2, "steps": 3} | options)
        )


def test_no_member_left_is_no_bad_input(xor):
    with pytest.raises(Failed, match=r"all 2 members diverged: step_size = 50 .* try 25"):
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=2, steps=200, step_size=50.0)


def test_members_that_diverge_are_left_out_and_named():
    x, y = line()
    start = {"weight": torch.zeros(8, 1, 1), "bias": torch.zeros(8, 1)}
    start["weight"][3] = 1e6  # so far out that it stays
    options = {"members": 8, "steps": 300, "start": start, "step_size": 0.01}
    like = stochens.Homoscedastic(noise=0.5)
    with pytest.warns(SamplingWarning, match=r"1 of 8 members diverged .* \(members \[3\]\)"):
        posterior = stochens.langevin(
            nn.Linear(1, 1), (x.float(), y.float()), likelihood=like, **gather(**options)
        )
    assert posterior.members == (0, 1, 2, 4, 5, 6, 7)
    start["weight"][:5] = 1e6
    with pytest.raises(Failed, match="5 of 8 members diverged"):
        stochens.langevin(
            nn.Linear(1, 1), (x.float(), y.float()), likelihood=like, **gather(**options)
        )


def test_too_few_steps_are_said_to_be(xor):
    """Once: that such members are not draws follows from it."""
    with pytest.warns(SamplingWarning, match=r"too short a time .* try steps=\d+") as said:
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=5, steps=10)
    assert sum(issubclass(w.category, SamplingWarning) for w in said) == 1


def test_a_member_that_does_not_end_is_said_to(xor, monkeypatch):
    monkeypatch.setattr(stochens.samplers.langevin, "MOST_STEPS", 20)
    with pytest.warns(SamplingWarning, match="2 of 2 members had not ended after 20 steps"):
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=2)


def test_trained_members_may_be_the_start(float64):
    """From the mode, where the likelihood is let in at once: the posterior again."""
    x, y = line()
    like = stochens.Homoscedastic(noise=0.5)
    trained = stochens.fit(
        nn.Linear(1, 1),
        (x, y),
        method="regular",
        members=400,
        epochs=100,
        lr=0.1,
        batch_size=None,
        likelihood=like,
    )
    posterior = stochens.langevin(
        nn.Linear(1, 1), (x, y), members=400, start=trained, likelihood=like
    )
    draws = torch.cat([posterior.params[n].flatten(1) for n in ("weight", "bias")], 1)
    mean, covariance = exact(x, y, 0.5, 1.0)
    sd = covariance.diagonal().sqrt()
    # 5 standard errors over 400 independent members
    assert ((draws.mean(0) - mean).abs() < 5 * sd / 20).all()
    assert ((draws.var(0) / sd**2 - 1).abs() < 5 * math.sqrt(2 / 400)).all()


def test_a_prior_too_wide_for_the_network_is_named():
    """Log variances of a deep network at draws from N(0, 1): exp overflows."""
    net = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.LazyLinear(16), nn.ReLU())), nn.LazyLinear(2)
    )
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    net(x)
    options = {"members": 20, "likelihood": "heteroscedastic", "steps": 5}
    with pytest.raises(InputError, match=r"member \d+ cannot start: .* start=fit"):
        stochens.langevin(net, (x, x[:, :1]), **gather(**options))
    stochens.langevin(net, (x, x[:, :1]), start="reset", **gather(**options))


def test_a_stochastic_network_is_refused(xor):
    with pytest.raises(InputError, match="stochastic"):
        stochens.langevin(stochens.stochastic(stochens.MLP(2, 4, 2), "dropout"), xor)
