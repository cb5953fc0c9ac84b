"""The warm-up of NUTS: step size and mass against plain floats, and what they are learned from."""

import math

import numpy as np
import pytest
import torch
from tests.samplers import density
from tests.samplers.density import Density
from tests.samplers.nuts_reference import GROWTH, TARGETS, Recursive, assert_same, gaussian
from tests.tolerance import close, rounding

from stochens.randomness.hashed import MOMENTUM
from stochens.samplers.driver import reasonable_step
from stochens.samplers.engines import PlainRunner


@pytest.mark.parametrize(
    ("name", "warmup"),
    [("3-d Gaussian", 1), ("3-d Gaussian", 60), ("1-d Gaussian", 60), ("funnel", 30)],
)
def test_the_warm_up_is_that_of_plain_floats(name, warmup):
    """Dual averaging and windows in the loop round the recursive NUTS. Of 60 transitions of warm-up
    the first 9 and the last 21 are fast, and the one window closes between (adaptation.windows); of
    30 all are.

    Every transition begins where the chain was: the funnel's warm-up makes a last bit grow to 1e-6
    in 30 transitions, and which last bit that is depends on the CPU. The averages of the warm-up
    are the plain loop's own from beginning to end."""
    D, (energy, slope, torch_energy), step, _ = TARGETS[name]
    start = np.random.default_rng(8).normal(size=(2, D))
    transitions, wanted = warmup + 8, 0.7
    rules = density.rules_for(warmup, target_accept=wanted)
    seen, stats = density.visits(
        Density(torch_energy), torch.tensor(start), rules, transitions=transitions, step=step
    )
    first, end = (9, 39) if warmup == 60 else (0, 0)
    for chain, key in enumerate(density.keys(2).tolist()):
        reference = Recursive(energy, slope, start[chain], key, step=step)
        centre, shortfall, mean, updates = math.log(10 * step), 0.0, math.log(step), 0
        window = []
        for t in range(transitions):
            # dual averaging multiplies errors of the acceptance, of 30 leapfrogs each, by
            # sqrt(updates) / 0.05 < 200; a window divides by its variances
            learned = close(torch.float64, depth=30, condition=200 * GROWTH)
            torch.testing.assert_close(
                seen.inverse_mass[chain, t], torch.tensor(reference.inverse_mass), **learned
            )
            assert float(seen.step[chain, t]) == pytest.approx(reference.step, rel=learned["rtol"])
            reference.q, reference.step = seen.q[chain, t].numpy(), float(seen.step[chain, t])
            reference.inverse_mass = seen.inverse_mass[chain, t].numpy()
            row = reference.draw()
            assert_same(chain, seen, stats, t, reference, row)
            if t >= warmup:
                continue
            updates += 1
            shortfall += (wanted - row[1] - shortfall) / (updates + 10)
            log_step = centre - math.sqrt(updates) / 0.05 * shortfall
            mean += updates**-0.75 * (log_step - mean)
            if first <= t < end:
                window.append(reference.q)
            if t == end - 1:
                n = len(window)
                variance = np.var(np.array(window), axis=0, ddof=1)
                reference.inverse_mass = (n * variance + 5 * 1e-3) / (n + 5)
                log_step, centre, shortfall, updates = mean, mean + math.log(10), 0.0, 0
            reference.step = math.exp(mean if t == warmup - 1 else log_step)


@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0, 40.0])
def test_the_first_step_size_by_a_plain_loop(scale):
    """From 0.1, doubled or halved until the acceptance of one leapfrog step crosses 0.8."""
    energy, slope, torch_energy = gaussian(3, 1)
    start = scale * np.random.default_rng(6).normal(size=(4, 3))
    target = Density(lambda q: torch_energy(q / scale))
    key = density.keys(4)
    q = torch.tensor(start)
    got = reasonable_step(q, *target(q), target, key).exp()
    for chain in range(4):
        p = np.array(density.normal(int(key[chain]), -1, MOMENTUM, 3))
        q, step = start[chain], 0.1
        goods: list[bool] = []
        while len(set(goods)) < 2:
            half = p - 0.5 * step * slope(q / scale) / scale
            there = q + step * half
            end = half - 0.5 * step * slope(there / scale) / scale
            error = energy(there / scale) + 0.5 * end @ end - energy(q / scale) - 0.5 * p @ p
            goods.append(-error > math.log(0.8))
            if len(set(goods)) < 2:
                step *= 2.0 if goods[-1] else 0.5
        # the exponential of a logarithm of at most some tens
        within = rounding(torch.float64, condition=50.0)
        assert float(got[chain]) == pytest.approx(step, rel=within)


def test_energies_are_kept_apart():
    """The prior's half of the energy comes from `precision`, and its slope with it."""
    start = torch.tensor(np.random.default_rng(9).normal(size=(4, 3)))
    _, _, energy = gaussian(3, 1)
    apart = Density(energy, precision=2.0)
    together = Density(lambda q: energy(q) + q.square().sum(-1))
    a, stats = density.sample(apart, start, samples=20, warmup=20)
    b, others = density.sample(together, start, samples=20, warmup=20)
    # the same draws but for rounding, which 40 transitions of a Gaussian make grow
    within = close(torch.float64, terms=3, depth=40 * 7, condition=1e4)
    torch.testing.assert_close(a, b, **within)
    torch.testing.assert_close(stats["prior"][:, 20:], a.square().sum(-1))
    torch.testing.assert_close(stats["likelihood"][:, 20:], energy(a.flatten(0, 1)).view(4, 20))
    torch.testing.assert_close(stats["energy"], others["energy"])
    kinetic = stats["energy"] - stats["likelihood"] - stats["prior"]
    assert float(kinetic.min()) > 0


def test_the_mass_is_found():
    """From unit mass, whose variances are wrong by factors of 100 and 1/9. One window of 30 draws
    that are not independent finds them within a factor of 10 (its logarithm has a standard
    deviation of 0.5), and of 2 in the mean over chains."""
    scale = torch.tensor([0.1, 0.3, 1.0, 3.0], dtype=torch.float64)
    target = Density(lambda q: 0.5 * (q / scale).square().sum(-1))
    rules = density.rules_for(60, max_depth=7)
    start = scale * torch.randn(24, 4, generator=torch.Generator().manual_seed(0)).double()
    record = density.empty(start, rules, 1)
    runner = PlainRunner(density.begin(target, start, rules), target, rules, record)
    while bool((runner.state().transition < 61).any()):
        runner.advance(10)
    ratio = runner.state().adaptation.inverse_mass / scale.square()  # [24, 4]
    assert bool((ratio.log().abs() < math.log(10)).all())
    assert bool((ratio.log().mean(0).abs() < math.log(2)).all())
    # a unit Gaussian in 4 dimensions is stepped through at about 1
    assert bool((runner.state().adaptation.log_step.abs() < 1).all())
