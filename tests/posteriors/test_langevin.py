"""The Langevin ensemble: exact where the posterior is known, and each member its own."""

import math

import pytest
import torch
from torch import nn

import stochens
from stochens import Failed, InputError
from stochens.posteriors.langevin import Plan, _kept

pytestmark = pytest.mark.filterwarnings("ignore:.*leave the prior behind")


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


@pytest.mark.parametrize("precision", [1.0, 4.0])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_gaussian_posterior_is_met(float64, batch_size, precision):
    x, y = line()
    M = 2000
    posterior = stochens.langevin(
        nn.Linear(1, 1),
        (x, y),
        members=M,
        steps=400 if batch_size is None else 1500,
        step_size=0.05 / math.sqrt(precision),
        batch_size=batch_size,
        prior_precision=precision,
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


def test_a_member_is_the_same_in_any_company(xor):
    few, many = (
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=m, steps=30, batch_size=20)
        for m in (2, 5)
    )
    for name, p in few.params.items():
        assert torch.equal(p, many.params[name][:2])
    other = stochens.langevin(stochens.MLP(2, 4, 2), xor, members=2, steps=30, seed=1)
    assert not torch.equal(other.params["0.weight"], few.params["0.weight"])


def test_engines_agree(float64, xor):
    data = xor[0].double(), xor[1]
    runs = [
        stochens.langevin(stochens.MLP(2, 4, 2), data, members=3, steps=20, engine=engine)
        for engine in ("fused", "vmap", "loop")
    ]
    for run in runs[1:]:
        for name, p in runs[0].params.items():
            torch.testing.assert_close(run.params[name], p, rtol=1e-9, atol=1e-11)


def test_the_likelihood_is_let_in_and_steps_shrink():
    plan = Plan(steps=100, step_size=0.1, friction=1.0, anneal=0.5, last_step=0.1)
    assert [plan.weight(k) for k in (0, 25, 50, 99)] == [0, 0.25, 1, 1]
    assert plan.size(0) == plan.size(50) == 0.1
    assert plan.size(75) == pytest.approx(0.1 * (0.1 + 0.9 * 0.5))
    assert plan.size(100) == pytest.approx(0.01)
    assert Plan(10, 0.1, 1.0, 0.0, 1.0).weight(0) == 1


def test_saved_and_loaded(xor, tmp_path):
    net = stochens.MLP(2, 4, 2)
    posterior = stochens.langevin(net, xor, members=3, steps=5)
    posterior.save(tmp_path / "run")
    back = stochens.load(tmp_path / "run", net)
    assert torch.equal(back.predict(xor[0]).probs, posterior.predict(xor[0]).probs)


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
        stochens.langevin(stochens.MLP(2, 4, 2), xor, **{"members": 2, "steps": 3} | options)


@pytest.mark.filterwarnings("ignore:.* units of time")
def test_no_member_left_is_no_bad_input(xor):
    with pytest.raises(Failed, match=r"all 2 members diverged: step_size = 50 .* try 25"):
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=2, steps=200, step_size=50.0)


def test_members_that_diverge_are_left_out_and_named():
    q = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    plan = Plan(100, 0.1, 1.0, 0.5, 1.0)
    assert len(_kept(q, plan, 1.0, tuple(range(len(q))))) == 20
    q[3, 2], q[7] = math.nan, 1e6  # one is no number, one has exploded and is finite
    with pytest.warns(UserWarning, match=r"2 of 20 members diverged .* \(members \[3, 7\]\)"):
        kept = _kept(q, plan, 1.0, tuple(range(len(q))))
    assert kept.tolist() == [k for k in range(20) if k not in (3, 7)]


def test_too_few_steps_are_said_to_be(xor):
    with pytest.warns(UserWarning, match="need about 5 to leave the prior behind"):
        stochens.langevin(stochens.MLP(2, 4, 2), xor, members=2, steps=10)


def test_a_stochastic_network_is_refused(xor):
    with pytest.raises(InputError, match="stochastic"):
        stochens.langevin(stochens.stochastic(stochens.MLP(2, 4, 2), "dropout"), xor)
