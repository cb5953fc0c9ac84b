"""HMC against a plain loop, a Gaussian whose moments are known, and its compiled twin."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.running import gather
from tests.samplers import density
from tests.samplers.density import Density
from tests.samplers.going_on import quiet, same
from tests.samplers.nuts_reference import gaussian
from tests.tolerance import close
from torch import nn

import stochens
from stochens import InputError
from stochens.kernels import mlp
from stochens.likelihoods import Homoscedastic
from stochens.randomness.hashed import LENGTH, MERGE, MOMENTUM
from stochens.samplers import fixed, trajectory

ALARM = 1e-4  # the chance that a right sampler fails one of these, on another machine


def plain_hmc(energy, slope, seen, key, *, step, warmup, length, jitter, wanted, window, cap):
    """One chain in numpy, which begins each transition where the chain in `seen` (of `visits`) did:
    q, step and inverse mass after every transition, and its (energy, accept, step, leapfrogs,
    diverged). `window`: the transitions whose variance becomes the inverse mass."""
    centre, shortfall, mean, updates = math.log(10 * step), 0.0, math.log(step), 0
    window_draws, ends, rows = [], [], []
    for t in range(len(seen.q) - 1):
        q, step, inverse_mass = seen.q[t].numpy(), float(seen.step[t]), seen.inverse_mass[t].numpy()
        noise = np.array(density.normal(key, t, MOMENTUM, len(q)))
        start = noise / np.sqrt(inverse_mass)
        u = density.uniform(key, t, LENGTH, 0)
        count = math.ceil(length * (1 + jitter * (2 * u - 1)) / step)
        count = min(max(count, 1), cap)
        x, p = q, start
        before = energy(q) + 0.5 * start @ (inverse_mass * start)
        total, taken, diverged = before, 0, False
        for _ in range(count):
            p = p - 0.5 * step * slope(x)
            x = x + step * inverse_mass * p
            p = p - 0.5 * step * slope(x)
            taken += 1
            after = energy(x) + 0.5 * p @ (inverse_mass * p)
            diverged = not after - before < 1000
            if diverged:
                break
        accept = 0.0 if diverged else min(1.0, math.exp(before - after))
        if density.uniform(key, t, MERGE, 0) < accept:
            q, total = x, after
        rows.append([total, accept, step, taken, float(diverged)])
        if t < warmup:
            updates += 1
            shortfall += (wanted - accept - shortfall) / (updates + 10)
            log_step = centre - math.sqrt(updates) / 0.05 * shortfall
            mean += updates**-0.75 * (log_step - mean)
            if t in window:
                window_draws.append(q)
            if len(window) and t == window[-1]:
                n = len(window_draws)
                inverse_mass = (n * np.var(np.array(window_draws), 0, ddof=1) + 5e-3) / (n + 5)
                log_step, centre, shortfall, updates = mean, mean + math.log(10), 0.0, 0
            step = math.exp(mean if t == warmup - 1 else log_step)
        ends.append((q, step, inverse_mass))
    return ends, rows


STIFF = gaussian(4, 5, spread=3.0)  # stable below steps of 0.377
CASES = {
    "Gaussian": (gaussian(3, 1), 3, {"warmup": 0, "length": 1.5, "jitter": 0.5, "step": 0.2}),
    "no jitter": (gaussian(3, 1), 3, {"warmup": 0, "length": 1.5, "jitter": 0.0, "step": 0.4}),
    "one step": (gaussian(2, 2), 2, {"warmup": 0, "length": 0.1, "jitter": 0.2, "step": 0.3}),
    "warm-up": (gaussian(3, 1), 3, {"warmup": 20, "length": 1.0, "jitter": 0.2, "step": 0.1}),
    "mass": (gaussian(3, 1), 3, {"warmup": 60, "length": 1.0, "jitter": 0.2, "step": 0.1}),
    "diverging": (STIFF, 4, {"warmup": 0, "length": 9.0, "jitter": 0.3, "step": 0.45}),
    "cut": (gaussian(3, 1), 3, {"warmup": 0, "length": 9.0, "jitter": 0.2, "step": 0.05}),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_are_those_of_a_plain_loop(name):
    (energy, slope, torch_energy), D, options = CASES[name]
    start = np.random.default_rng(5).normal(size=(3, D))
    rules = density.rules_for(
        options["warmup"],
        target_accept=0.7,
        mass=name == "mass",
        max_depth=1,
        length=options["length"],
        jitter=options["jitter"],
        max_leapfrogs=30,
    )
    seen, stats = density.visits(
        Density(torch_energy),
        torch.tensor(start),
        rules,
        transitions=options["warmup"] + 15,
        step=options["step"],
    )
    diverged = 0.0
    for chain, key in enumerate(density.keys(3).tolist()):
        window = range(9, 39) if name == "mass" else range(0)
        own = density.Visits(*(v[chain] for v in seen))
        ends, rows = plain_hmc(
            energy, slope, own, key, wanted=0.7, cap=30, window=window, **options
        )
        # At most 30 leapfrogs from the same point. Dual averaging multiplies an error of the
        # acceptance by sqrt(updates) / 0.05 < 200; a trajectory that diverges multiplies all
        # energies by at most 1000.
        within = close(torch.float64, terms=D, depth=30, condition=1000.0)
        for got, expected in zip(own, zip(*ends, strict=True), strict=True):
            torch.testing.assert_close(got[1:], torch.tensor(np.array(expected)), **within)
        names = ("energy", "accept", "step", "leapfrogs", "diverged")
        got = torch.stack([stats[n][chain] for n in names], -1)
        torch.testing.assert_close(got, torch.tensor(rows, dtype=torch.float64), **within)
        diverged += sum(row[4] for row in rows)
    assert diverged > 0 or name != "diverging"
    assert not bool(stats["depth"].any())


def test_a_correlated_gaussian():
    """20 dimensions, correlations 0.6^|i - j|, scales from 0.3 to 3, every chain from far away."""
    D, M = 20, 64
    R = 0.6 ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))
    P, s = torch.tensor(np.linalg.inv(R)), torch.tensor(np.geomspace(0.3, 3, D))
    start = 2 * s * torch.randn(M, D, generator=torch.Generator().manual_seed(0)).double()
    draws, stats = density.sample(
        Density(lambda q: 0.5 * ((q / s @ P) * (q / s)).sum(-1)),
        start,
        samples=60,
        warmup=60,
        length=math.pi / 2,
        jitter=0.2,
        max_depth=1,
    )
    z = draws / s
    assert density.false_alarm(z, 0.0) > ALARM
    assert density.false_alarm(z.square(), 1.0) > ALARM
    assert density.false_alarm(z[..., 1:] * z[..., :-1], 0.6) > ALARM
    assert density.efficiency(z[..., ::5]) > 0.1
    accept = float(stats["accept"][:, 60:].mean())
    assert 0.65 < accept < 0.95  # 0.8 is aimed at; the mean over late steps lies a little above
    assert len(stats["leapfrogs"][0, 60:].unique()) > 1  # the jitter


def test_jitter_ends_resonance():
    """A full period brings every draw back to where it came from; with jitter it does not. The
    leapfrog turns a unit Gaussian by 2 asin(step / 2) a step: 32 of these are a period."""
    target = Density(lambda q: 0.5 * q.square().sum(-1))
    start = torch.full((64, 1), 2.0, dtype=torch.float64)
    step = 2 * math.sin(math.pi / 32)
    options = {"samples": 40, "warmup": 0, "step": step, "length": 31.5 * step, "max_depth": 1}
    still, _ = density.sample(target, start, jitter=0.0, **options)
    assert float((still - 2).abs().max()) < 1e-9
    moving, _ = density.sample(target, start, jitter=0.4, **options)
    assert density.false_alarm(moving[:, 15:], 0.0) > ALARM
    assert density.false_alarm(moving[:, 15:].square(), 1.0) > ALARM


def test_a_chain_is_the_same_in_any_company():
    scale = torch.tensor([1.0, 0.05, 30.0, math.nan], dtype=torch.float64)
    start = torch.tensor(np.random.default_rng(2).normal(size=(4, 3)))

    def target(scales):
        return Density(lambda q: 0.5 * (q / scales.unsqueeze(1)).square().sum(-1))

    options = {"samples": 4, "warmup": 50, "step": 0.1, "length": 1.0, "jitter": 0.3}
    options |= {"max_depth": 1, "max_leapfrogs": 25}
    together, stats = density.sample(target(scale), start, **options)
    for k in range(4):
        one = slice(k, k + 1)
        alone, own = density.sample(
            target(scale[one]), start[one], key=density.keys(4)[one], **options
        )
        assert torch.equal(alone[0], together[k])
        assert torch.equal(own["leapfrogs"][0], stats["leapfrogs"][k])
    assert bool(stats["diverged"][3].all())
    assert torch.equal(together[3], start[3].expand(4, 3))


def test_masks_need_no_look():
    target = Density(lambda q: 2 * q.square().sum(-1))
    start = torch.tensor(np.random.default_rng(4).normal(size=(3, 3)))
    rules = density.rules_for(50, length=1.0, jitter=0.3, max_depth=1, max_leapfrogs=20)
    ends = []
    for guard in (trajectory.look, trajectory.always):
        state, record = density.begin(target, start, rules), density.empty(start, rules, 5)
        while bool((state.transition < 55).any()):
            state = fixed.arrive(state, trajectory.leapfrog(state, target), rules, record, guard)
        ends.append((record.draws, record.stats))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


# The compiled twin, and the front door ------------------------------------------------------------


@pytest.mark.skipif(not mlp.available(), reason="no compiler here")
@pytest.mark.parametrize(
    ("activation", "outputs", "likelihood", "chains", "n"),
    [
        (nn.ReLU, 2, "categorical", 5, 19),
        pytest.param(nn.Tanh, 1, Homoscedastic(noise=0.3), 1, 37, marks=pytest.mark.long),
        pytest.param(nn.SiLU, 2, "heteroscedastic", 2, 23, marks=pytest.mark.long),
    ],
)
def test_the_kernel_is_the_same_machine(activation, outputs, likelihood, chains, n):
    """Blocks of 2 iterations, through a warm-up with a mass (test_nuts_kernel.py says more)."""
    data = density.classes(n) if likelihood == "categorical" else density.curve(n)
    stats = density.lockstep(
        density.small_net(activation, outputs),
        data,
        density.rules_for(50, length=0.5, jitter=0.3, max_depth=1, max_leapfrogs=12),
        chains=chains,
        samples=3,
        block=2,
        likelihood=likelihood,
    )
    assert len(stats["leapfrogs"].unique()) > 3


@quiet
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_going_on_is_one_long_run(engine, tmp_path):
    options = {"chains": 2, "warmup": 20, "engine": engine, "max_leapfrogs": 8}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    whole = stochens.hmc(net, data, samples=6, **gather(**options))
    half = stochens.hmc(net, data, samples=3, **gather(**options))
    same(stochens.hmc(net, data, samples=6, resume=half, **gather(**options)), whole)
    folder = tmp_path / "run"
    stochens.hmc(net, data, samples=2, **gather(checkpoint=folder, **options))
    same(stochens.hmc(net, data, samples=6, **gather(checkpoint=folder, **options)), whole)
    for change in ({"trajectory": 1.0}, {"jitter": 0.1}, {"max_leapfrogs": 9}, {"seed": 1}):
        with pytest.raises(InputError, match=next(iter(change)).replace("trajectory", "length")):
            stochens.hmc(net, data, samples=6, **gather(checkpoint=folder, **{**options, **change}))
    with pytest.raises(InputError, match="sampler"):
        stochens.nuts(net, data, samples=6, warmup=20, chains=2, resume=whole)


@quiet
def test_the_trajectory_is_a_quarter_period_of_the_prior(xor):
    """pi / 2 of a standard deviation, lambda^-1/2, in steps of the size given."""
    posterior = stochens.hmc(
        nn.Linear(2, 2), xor, chains=1, samples=3, warmup=1, jitter=0.0, prior=4.0,
        step_size=1e-3,
    )  # fmt: skip
    step = posterior.chains.stats["step"]
    wanted = torch.ceil(math.pi / 4 / step)
    assert torch.equal(posterior.chains.stats["leapfrogs"], wanted)


@quiet
def test_the_mass_is_adapted_when_asked(xor):
    options = {"chains": 2, "samples": 1, "warmup": 50, "max_leapfrogs": 5}
    plain = stochens.hmc(nn.Linear(2, 2), xor, **gather(**options)).chains.state["inverse_mass"]
    assert torch.equal(plain, torch.ones_like(plain))
    own = stochens.hmc(nn.Linear(2, 2), xor, adapt_mass=True, **gather(**options))
    assert not bool((own.chains.state["inverse_mass"] == 1).any())


REFUSED: dict[str, dict[str, Any]] = {
    "jitter": {"jitter": 1.0},
    "jitter below 0": {"jitter": -0.1},
    "jitter nan": {"jitter": math.nan},
    "trajectory": {"trajectory": 0.0},
    "max_leapfrogs": {"max_leapfrogs": 0},
    "target_accept": {"target_accept": 1.5},
    "warmup": {"warmup": 0},
    "engine": {"engine": "graph"},
    "prior": {"prior": 0.0},
    "step_size": {"step_size": -1.0},
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_options_are_refused(what, xor):
    with pytest.raises(InputError, match=next(iter(REFUSED[what]))):
        stochens.hmc(nn.Linear(2, 2), xor, **gather(**{"samples": 2, "warmup": 2, **REFUSED[what]}))


def test_a_stochastic_network_is_refused(xor):
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.raises(InputError, match="stochastic"):
        stochens.hmc(net, xor, samples=2, warmup=2)


@pytest.mark.parametrize("net", [nn.Linear(2, 2), stochens.MLP(2, 5, 2)])
def test_the_defaults_are_enough_for_a_plain_problem(net):
    """4 x 200 draws of it were worth 172 independent ones, and 400 are wanted."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(stochens.hmc(net, stochens.toy_set("a", n=40), progress=False)) == 4000
