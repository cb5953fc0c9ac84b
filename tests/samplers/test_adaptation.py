"""Step size and mass against Stan's rules, written again, and closed forms."""

import itertools
import math

import pytest
import torch
from tests import tolerance

from stochens.samplers import adaptation
from stochens.samplers.adaptation import Adaptation, begin, close, observe, step_size, windows


def stan(warmup: int) -> tuple[list[int], list[int]]:
    """Transitions that count for the mass and those that close a window: Stan's class
    windowed_adaptation, counter and all (75, 25, 50)."""
    init, base, term = 75, 25, 50
    end = warmup - term
    size, next_close = base, init + base - 1
    slow, closes = [], []
    for counter in range(warmup):
        if init <= counter < end:
            slow.append(counter)
        if counter != next_close:
            continue
        closes.append(counter)
        if next_close == end - 1:
            continue
        size *= 2
        next_close = counter + size
        if next_close != end - 1 and next_close + 2 * size >= end:
            next_close = end - 1
    return slow, closes


@pytest.mark.parametrize("warmup", [150, 200, 201, 249, 250, 300, 349, 350, 500, 949, 1000, 2000])
def test_windows_are_those_of_stan(warmup):
    slow, closes = stan(warmup)
    got = windows(warmup)
    assert got.slow.nonzero().flatten().tolist() == slow
    assert got.closes.nonzero().flatten().tolist() == closes


@pytest.mark.parametrize("warmup", [150, 160, 174, 175, 199, 200, 300, 1000])
def test_windows_are_those_of_numpyro(warmup):
    """Where the last window would be shorter than the one before it (151 to 199), Stan closes two
    and NumPyro, as we do, one."""
    pytest.importorskip("numpyro")
    from numpyro.infer.hmc_util import build_adaptation_schedule

    schedule = [(int(w.start), int(w.end)) for w in build_adaptation_schedule(warmup)]
    inner = schedule[1:-1]
    got = windows(warmup)
    assert got.closes.nonzero().flatten().tolist() == [end for _, end in inner]
    assert got.slow.nonzero().flatten().tolist() == list(range(inner[0][0], inner[-1][1] + 1))


@pytest.mark.parametrize("warmup", [50, 51, 60, 99, 149])
def test_a_short_warm_up_has_one_window(warmup):
    """15 : 50 : 35, rounded so that the window gets the rest."""
    first, last = int(0.15 * warmup), int(0.35 * warmup)
    got = windows(warmup)
    expected = list(range(first, warmup - last))
    assert got.slow.nonzero().flatten().tolist() == expected
    assert got.closes.nonzero().flatten().tolist() == [expected[-1]]


@pytest.mark.parametrize("options", [{"warmup": 0}, {"warmup": 1}, {"warmup": 49}])
def test_a_shorter_one_has_none(options):
    got = windows(**options)
    assert not bool(got.slow.any())
    assert not bool(got.closes.any())
    assert len(got.slow) == len(got.closes) == options["warmup"] + 1


def test_no_mass_no_windows():
    assert not bool(windows(1000, mass=False).slow.any())
    assert not bool(windows(1000, mass=False).closes.any())


@pytest.mark.parametrize("warmup", range(50, 1200, 37))
def test_every_slow_transition_is_in_a_window_that_closes(warmup):
    got = windows(warmup)
    slow = got.slow.nonzero().flatten()
    assert slow.tolist() == list(range(int(slow[0]), int(slow[-1]) + 1))
    assert int(got.closes.nonzero()[-1]) == int(slow[-1])
    assert not bool(got.slow[-1])
    assert not bool(got.closes[-1])
    assert bool((got.slow | ~got.closes).all())
    edges = [int(slow[0]) - 1, *got.closes.nonzero().flatten().tolist()]
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    assert sizes == sorted(sizes)  # they grow
    assert warmup - 1 - int(slow[-1]) >= int(0.35 * 50)  # a fast end to learn a step size in


def _fresh(M: int = 3, D: int = 4, dtype: torch.dtype = torch.float64) -> Adaptation:
    log_step = torch.tensor([-2.0, 0.0, 1.5], dtype=torch.float64)[:M]
    return begin(torch.zeros(M, D, dtype=dtype), log_step)


def test_the_beginning():
    a = _fresh()
    assert torch.equal(a.inverse_mass, torch.ones(3, 4, dtype=torch.float64))
    torch.testing.assert_close(a.centre, a.log_step + math.log(10.0))
    assert torch.equal(a.log_step_mean, a.log_step)
    for name in ("mean", "scatter", "shortfall", "updates"):
        assert not bool(getattr(a, name).any()), name


def test_dual_averaging_by_a_plain_loop():
    """Hoffman and Gelman 2014, algorithm 6, with gamma = 0.05, t0 = 10, kappa = 0.75."""
    accept = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)).double()
    a = _fresh()
    for row in accept:
        a = step_size(a, row, 0.65)
    for chain, log_start in enumerate([-2.0, 0.0, 1.5]):
        mu, H, log_bar = math.log(10) + log_start, 0.0, log_start
        for m in range(1, 41):
            H = (1 - 1 / (m + 10)) * H + (0.65 - float(accept[m - 1, chain])) / (m + 10)
            log_eps = mu - math.sqrt(m) / 0.05 * H
            log_bar = m**-0.75 * log_eps + (1 - m**-0.75) * log_bar
        # 40 steps; an error of H is multiplied by sqrt(40) / 0.05
        within = tolerance.rounding(torch.float64, terms=2, depth=40, condition=130.0)
        assert float(a.log_step[chain]) == pytest.approx(log_eps, rel=within, abs=within)
        assert float(a.log_step_mean[chain]) == pytest.approx(log_bar, rel=within, abs=within)
        assert float(a.shortfall[chain]) == pytest.approx(H, rel=within, abs=within)
        assert float(a.updates[chain]) == 40


def test_dual_averaging_finds_the_step_of_a_known_acceptance():
    """accept = exp(-eps): the step of 0.8 is -log 0.8, wherever it begins. After n updates the mean
    is off by about n^-1/2."""
    a = _fresh()
    for _ in range(2000):
        a = step_size(a, (-a.log_step.exp()).exp(), 0.8)
    wanted = torch.full((3,), math.log(-math.log(0.8)), dtype=torch.float64)
    torch.testing.assert_close(a.log_step_mean, wanted, atol=2 / math.sqrt(2000), rtol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 25, 100])
def test_the_mass_is_the_regularised_variance(n):
    """Stan: n / (n + 5) variance + 1e-3 * 5 / (n + 5)."""
    generator = torch.Generator().manual_seed(n)
    # a mean far from 0: a sum of squares would lose six digits, Welford's does not
    draws = 1e3 + torch.randn(n, 3, 4, generator=generator, dtype=torch.float64)
    a = _fresh()
    for q in draws:
        a = observe(a, q)
    assert a.seen.tolist() == [n] * 3
    torch.testing.assert_close(a.mean, draws.mean(0))
    variance = draws.var(0) if n > 1 else torch.zeros(3, 4, dtype=torch.float64)
    # deviations of size 1 from a mean of 1e3: their relative error is 1e3 eps
    within = tolerance.close(torch.float64, terms=n, condition=1e3)
    torch.testing.assert_close(a.scatter, variance * (n - 1), **within)
    closed = close(a)
    want = n / (n + 5) * variance + 5e-3 / (n + 5)
    torch.testing.assert_close(closed.inverse_mass, want, **within)


def test_a_window_that_closes_begins_afresh():
    a = _fresh()
    for accept in (0.3, 0.9, 0.5):
        a = observe(step_size(a, torch.full((3,), accept).double(), 0.8), torch.rand(3, 4).double())
    closed = close(a)
    for name in ("mean", "scatter", "seen", "shortfall", "updates"):
        assert not bool(getattr(closed, name).any()), name
    assert torch.equal(closed.log_step, a.log_step_mean)
    assert torch.equal(closed.log_step_mean, a.log_step_mean)
    torch.testing.assert_close(closed.centre, a.log_step_mean + math.log(10.0))


def test_float32_positions_keep_float64_steps():
    a = _fresh(dtype=torch.float32)
    accept = torch.full((3,), 0.4, dtype=torch.float64)
    a = close(observe(step_size(a, accept, 0.8), torch.rand(3, 4)))
    for name, t in a._asdict().items():
        wide = name not in ("inverse_mass", "mean", "scatter")
        assert t.dtype == (torch.float64 if wide else torch.float32), name


def test_masks_choose_chain_by_chain():
    a = _fresh()
    b = close(observe(step_size(a, torch.rand(3).double(), 0.8), torch.rand(3, 4).double()))
    got = adaptation.where(torch.tensor([True, False, True]), b, a)
    for name, t in got._asdict().items():
        assert torch.equal(t[1], getattr(a, name)[1]), name
        for chain in (0, 2):
            assert torch.equal(t[chain], getattr(b, name)[chain]), name
