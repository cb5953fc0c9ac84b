"""The trials of `mclmc(target_accept=...)`: the rule of acceptance, and that it leaves no bias."""

import math

import pytest
import torch
from tests.samplers.density import Density
from tests.samplers.going_on import quiet, same
from tests.samplers.mclmc_density import keys, sample
from tests.samplers.test_mclmc import turned
from torch import nn

import stochens
from stochens.samplers import mclmc_steps
from stochens.samplers.mclmc_run import plain_mover, plain_trier
from stochens.samplers.mclmc_trials import SMALL, Chance, drawn, first_trial, try_step

SD = torch.tensor([0.1, 1.0, 1.0], dtype=torch.float64)  # one direction is stiff


def gaussian() -> Density:
    return Density(lambda q: 0.5 * (q / SD).square().sum(1))


def members(count: int, **fields: float) -> mclmc_steps.State:
    """Exact draws, with steps of this size and so on."""
    generator = torch.Generator().manual_seed(0)
    z, n = (torch.randn(count, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    at = mclmc_steps.initial(z * SD, n, 1.0, gaussian())
    return at._replace(**{name: at.size * 0 + value for name, value in fields.items()})


def test_a_trial_is_accepted_by_the_errors_of_its_steps():
    """W of two steps, by the equations in cosh and sinh; one trial is taken, and one is not."""
    h = 0.15
    at = members(2, size=h, length=1.0)
    trial = first_trial(at)
    trial = trial._replace(left=trial.left + 1)
    W = []
    for m in range(2):
        q, u, total = at.q[m].tolist(), at.u[m].tolist(), 0.0
        sd = SD.tolist()
        for _ in range(2):
            for part in range(3):
                time = (1 - 2 * mclmc_steps.TURN if part == 1 else mclmc_steps.TURN) * h
                u, change = turned(u, [x / s**2 for x, s in zip(q, sd, strict=True)], time)
                total += change
                if part < 2:
                    before = sum(x * x / s**2 for x, s in zip(q, sd, strict=True)) / 2
                    q = [x + 0.5 * h * v for x, v in zip(q, u, strict=True)]
                    total += sum(x * x / s**2 for x, s in zip(q, sd, strict=True)) / 2 - before
        W.append(total)
    accept = [min(1.0, math.exp(-w)) for w in W]
    n = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # just below the one, and just above the other
    chance = torch.tensor([accept[0] * (1 - 1e-6), accept[1] * (1 + 1e-6)], dtype=torch.float64)
    half = torch.full_like(chance, 0.5)
    share = torch.tensor([0.9, 0.1], dtype=torch.float64)  # the second's next has shorter steps
    middle, trial, over = try_step(at, trial, n, Chance(chance, half, share), gaussian())
    assert not bool(over.any())
    assert torch.equal(trial.q, at.q)
    after, trial, over = try_step(middle, trial, n, Chance(chance, half, share), gaussian())
    assert bool(over.all())
    assert trial.accept.tolist() == pytest.approx(accept, rel=1e-9)
    assert not torch.equal(trial.q[0], at.q[0])
    assert torch.equal(trial.q[1], at.q[1])
    assert torch.equal(after.q, trial.q)
    assert after.u.tolist() == mclmc_steps.unit(n).tolist()
    assert trial.left.tolist() == [math.ceil(1.0 / h)] * 2  # 2 r L / h, r = 1 / 2
    assert trial.error.tolist() == [0.0, 0.0]
    assert trial.share.tolist() == [1.0, SMALL]
    last, _, _ = try_step(after, trial, n, Chance(chance, half, share), gaussian())
    gone = (last.q - after.q).norm(dim=1).tolist()
    assert gone[0] > 0.5 * h
    assert gone[1] == pytest.approx(SMALL * h, rel=0.2)  # it turns a little on its way
    assert last.size.tolist() == [h, h]


def test_a_step_that_fails_ends_in_no_acceptance():
    at = members(1, size=0.15, length=1.0)
    trial = first_trial(at)
    half = torch.full_like(at.energy, 0.5)
    broken = Density(lambda q: torch.nan * q.sum(1))
    after, trial, over = try_step(at, trial, at.u, Chance(half, half, half), broken)
    assert bool(over)
    assert float(trial.accept) == 0
    assert torch.equal(after.q, at.q)


def test_trials_leave_exact_draws_exact():
    """10,000 exact draws of a stiff Gaussian: 40 steps that are too long for it leave variances
    within five standard errors, sqrt(2 / M) each, where steps without trials are far from it."""
    M, steps = 10_000, 40
    at = members(M, size=0.4, length=0.8)
    key = keys(M)
    unadjusted = plain_mover(key, gaussian())(at, 0, steps, None, False)
    state, trial = plain_trier(key, gaussian())(at, first_trial(at), 0, steps, None)
    q = drawn(state, trial).q / SD
    error = math.sqrt(2 / M)
    assert float((q.square().mean(0) - 1).abs().max()) < 5 * error
    assert float(q.mean(0).abs().max()) < 5 / math.sqrt(M)
    assert 0.3 < float(trial.accept.mean()) < 0.97  # some are refused, or it would say nothing
    biased = (unadjusted.q / SD).square().mean(0)
    assert float((biased - 1).abs().max()) > 20 * error


def test_the_share_that_is_accepted_is_the_wanted_one():
    """10 members, of whose 40 draws each has the acceptance of a trial; 0.05 are three of the
    standard errors of tuning, which has some 30 trials."""
    sd = torch.logspace(-0.5, 0.5, 10, dtype=torch.float64)
    density = Density(lambda q: 0.5 * (q / sd).square().sum(1))
    start = torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = {"precondition": True, "warmup": 400, "samples": 40, "target_accept": 0.9}
    draws, stats = sample(density, start, **options)
    assert float(stats["accept"].mean()) == pytest.approx(0.9, abs=0.05)
    # tuned by trials before the draws and by none of theirs, which would bias them
    assert torch.equal(stats["step"], stats["step"][:, :1].expand(10, 40))
    found = (draws / sd).square().mean((0, 1)).sqrt()
    # 400 draws in 10 directions, of which a third or more are independent: 1.9 %
    assert float(found.mean()) == pytest.approx(1, abs=0.05)


@quiet
def test_more_draws_are_those_of_one_long_run():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    data, net = (x, (x[:, 0] > 0).long()), nn.Linear(2, 2)
    options = {"members": 3, "warmup": 120, "training": 5, "thin": 3, "target_accept": 0.9}
    whole = stochens.mclmc(net, data, draws_per_member=8, **options)
    part = stochens.mclmc(net, data, draws_per_member=5, **options)
    same(stochens.mclmc(net, data, draws_per_member=8, resume=part, **options), whole)
    assert "acceptance" in str(stochens.diagnose(whole, x))
    assert "energy variance is" not in str(stochens.diagnose(whole, x))
