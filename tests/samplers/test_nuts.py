"""NUTS against a recursive NUTS, densities whose moments are known, and its compiled twin.

Every seed is fixed, so a test that passes goes on passing on one machine. The false-alarm rates in
the comments are those for another machine, whose rounding makes other draws.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from tests.running import gather
from tests.samplers import density
from tests.samplers.density import Density
from tests.tolerance import close, rounding
from torch import Tensor, nn
from torch.nn import functional as F

import stochens
from stochens import InputError
from stochens.kernels import mlp
from stochens.likelihoods import Homoscedastic
from stochens.randomness.hashed import DIRECTION, LEAF, MERGE, MOMENTUM
from stochens.samplers import nuts as tree
from stochens.samplers import trajectory
from stochens.samplers.driver import reasonable_step
from stochens.samplers.engines import PlainRunner
from stochens.samplers.trajectory import STATS, Point

# The pieces ---------------------------------------------------------------------------------------


def test_bits_are_counted():
    n = torch.arange(2**16)
    assert tree._bits(n).tolist() == [bin(k).count("1") for k in range(2**16)]


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_checkpoints_are_the_left_edges_of_the_aligned_subtrees_that_close(depth, monkeypatch):
    """At leaf b the subtrees [a, b] of 2^j leaves with a a multiple of 2^j are tested, j = 1, 2 ...
    The momentum of leaf k is k + 1 here, so that every tensor says which leaves it has seen."""
    rules = density.rules_for(0, max_depth=depth + 1)
    target = Density(lambda q: q.square().sum(-1))
    state = density.begin(target, torch.zeros(1, 1, dtype=torch.float64), rules)
    slots = state.check_p.shape[1]
    active = torch.ones(1, dtype=torch.bool)
    total = 0.0
    for leaf in range(2**depth):
        p = torch.tensor([[leaf + 1.0]], dtype=torch.float64)
        total += leaf + 1.0
        state = state._replace(
            leaf=torch.tensor([leaf]), sub_rho=torch.full_like(state.sub_rho, total)
        )
        tested = {}
        for slot in range(slots):

            def only(left, right, rho, inverse_mass, slot=slot, p=p, tested=tested):
                assert right.flatten().tolist() == p.flatten().tolist()
                tested["seen"] = left[0, :, 0].tolist(), rho[0, :, 0].tolist()
                return torch.arange(slots)[None] == slot

            monkeypatch.setattr(tree, "is_turning", only)
            if bool(tree._checkpoint(state, Point(p, p, p, p), active, trajectory.always)):
                tested[slot] = tested["seen"][0][slot], tested["seen"][1][slot]
        tested.pop("seen", None)
        closing = [leaf + 1 - 2**j for j in range(1, depth + 1) if (leaf + 1) % 2**j == 0]
        expected = {(a + 1.0, sum(range(a + 1, leaf + 2))) for a in closing}
        assert set(tested.values()) == expected
        assert len(tested) == len(closing)


def test_a_resting_chain_leaves_its_checkpoints():
    rules = density.rules_for(0, max_depth=3)
    target = Density(lambda q: q.square().sum(-1))
    state = density.begin(target, torch.zeros(2, 1, dtype=torch.float64), rules)
    p = torch.ones(2, 1, dtype=torch.float64)
    active = torch.tensor([False, True])
    tree._checkpoint(state, Point(p, p, p, p), active, trajectory.look)
    assert state.check_p[:, 0, 0].tolist() == [0.0, 1.0]


class Quartic(NamedTuple):
    """U = sum q^4 / 4 + q_0 q_1 q_2, its slope written out so that autograd can pass through it."""

    precision: float = 0.7

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        others = torch.stack([q[:, 1] * q[:, 2], q[:, 0] * q[:, 2], q[:, 0] * q[:, 1]], -1)
        return q.pow(4).sum(-1) / 4 + q.prod(-1), q.pow(3) + others + self.precision * q


def _leap(q: Tensor, p: Tensor, side: int) -> Point:
    """One step of 0.3 from (q, p) [3] with a mass of (2, 1/2, 5)."""
    rules = density.rules_for(0)
    state = density.begin(Quartic(), q.detach()[None], rules, step=0.3)
    a = state.adaptation._replace(inverse_mass=torch.tensor([[0.5, 2.0, 0.2]], dtype=q.dtype))
    both = [v.expand(1, 2, 3) for v in (q, p, Quartic()(q[None])[1][0])]
    side = torch.tensor([side])
    state = state._replace(ends_q=both[0], ends_p=both[1], ends_g=both[2], side=side, adaptation=a)
    return trajectory.leapfrog(state, Quartic())


def test_the_leapfrog_is_reversible_and_symplectic():
    generator = torch.Generator().manual_seed(0)
    q, p = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    there = _leap(q, p, 1)
    back = _leap(there.q[0], there.p[0], 0)
    # there and back: two steps of seven sums each, of numbers near 1
    within = close(torch.float64, terms=3, depth=14)
    torch.testing.assert_close((back.q[0], back.p[0]), (q, p), **within)
    assert float((there.q - q).abs().min()) > 1e-3  # it did move

    def flow(z):
        to = _leap(z[:3], z[3:], 1)
        return torch.cat([to.q[0], to.p[0]])

    J = torch.autograd.functional.jacobian(flow, torch.cat([q, p]))
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    form = torch.cat([torch.cat([zero, eye], 1), torch.cat([-eye, zero], 1)])
    within = close(torch.float64, terms=6, depth=14, scale=float(J.square().sum()))
    torch.testing.assert_close(J.T @ form @ J, form, **within)
    torch.testing.assert_close(J.det(), torch.ones((), dtype=torch.float64), **within)


def test_the_leapfrog_by_its_equation():
    generator = torch.Generator().manual_seed(1)
    q, p = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    mass = torch.tensor([2.0, 0.5, 5.0], dtype=torch.float64)
    slope = lambda at: Quartic()(at[None])[1][0]  # noqa: E731
    for side, eps in ((1, 0.3), (0, -0.3)):
        half = p - 0.5 * eps * slope(q)
        there = q + eps * half / mass
        end = half - 0.5 * eps * slope(there)
        to = _leap(q, p, side)
        energies = [Quartic()(there[None])[0][0], 0.35 * there @ there, 0.5 * (end**2 / mass).sum()]
        torch.testing.assert_close(to.q[0], there)
        torch.testing.assert_close(to.p[0], end)
        torch.testing.assert_close(to.g[0], slope(there))
        torch.testing.assert_close(to.energy[0], torch.stack(energies))


# A recursive NUTS ---------------------------------------------------------------------------------


class Subtree(NamedTuple):
    left: np.ndarray  # momentum at its first leaf to be made
    right: np.ndarray
    rho: np.ndarray
    ends: bool  # it turns or diverges


class Recursive:
    """One chain of NUTS as the papers have it, in float64: trees by recursion, no masks. Takes the
    random numbers from (key, transition, purpose, index) in pure Python."""

    def __init__(self, energy, slope, q, key, *, step, inverse_mass=None, max_depth=10):
        self.energy, self.slope, self.q, self.key = energy, slope, q, key
        self.step, self.max_depth = step, max_depth
        self.inverse_mass = np.ones_like(q) if inverse_mass is None else inverse_mass
        self.transition = 0

    def _turns(self, left, right, rho):
        v = self.inverse_mass * (rho - 0.5 * (left + right))
        return left @ v <= 0 or right @ v <= 0

    def _total(self, q, p):
        return self.energy(q) + 0.5 * p @ (self.inverse_mass * p)

    def _leaf(self):
        """One leapfrog from the end that moves; the reservoir takes its point perhaps."""
        q, p = self.ends[self.side]
        eps = self.step if self.side else -self.step
        p = p - 0.5 * eps * self.slope(q)
        q = q + eps * self.inverse_mass * p
        p = p - 0.5 * eps * self.slope(q)
        self.ends[self.side] = q, p
        self.leapfrogs += 1
        with np.errstate(all="ignore"):
            error = self._total(q, p) - self.start
        bad = not error < 1000
        self.diverged |= bad
        weight = 0.0 if bad else math.exp(-error)
        self.accept += min(1.0, weight)
        self.sub_weight += weight
        u = density.uniform(self.key, self.transition, LEAF, self.leapfrogs)
        if weight > 0 and u < weight / self.sub_weight:
            self.sub_draw = q, self._total(q, p)
        return Subtree(p, p, p, bad)

    def _build(self, depth):
        if depth == 0:
            return self._leaf()
        first = self._build(depth - 1)
        if first.ends:
            return first
        second = self._build(depth - 1)
        if second.ends:
            return second
        rho = first.rho + second.rho
        return Subtree(first.left, second.right, rho, self._turns(first.left, second.right, rho))

    def draw(self):
        """One transition; what STATS would say of it."""
        t, D = self.transition, len(self.q)
        p = np.array(density.normal(self.key, t, MOMENTUM, D)) / np.sqrt(self.inverse_mass)
        self.start = self._total(self.q, p)
        self.ends = [(self.q, p), (self.q, p)]
        draw, rho, weight = (self.q, self.start), p, 1.0
        self.leapfrogs, self.accept, self.diverged, depth = 0, 0.0, False, 0
        while depth < self.max_depth:
            self.side = density.uniform(self.key, t, DIRECTION, depth) < 0.5
            self.sub_weight = 0.0
            sub = self._build(depth)
            if sub.ends:
                break
            if density.uniform(self.key, t, MERGE, depth) < self.sub_weight / weight:
                draw = self.sub_draw
            weight += self.sub_weight
            rho = rho + sub.rho
            depth += 1
            if self._turns(self.ends[0][1], self.ends[1][1], rho):
                break
        self.q, energy = draw
        self.transition += 1
        accept = self.accept / self.leapfrogs
        return [energy, accept, self.step, depth, self.leapfrogs, float(self.diverged)]


def _gaussian(D: int, seed: int, spread: float = 1.0):
    """Energy and slope in numpy and the energy in torch of a Gaussian with a random covariance."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(D, D)) + spread * np.diag(np.arange(1, D + 1))
    P = A @ A.T / D
    T = torch.tensor(P)
    return (
        lambda q: 0.5 * q @ P @ q,
        lambda q: P @ q,
        lambda q: 0.5 * ((q @ T) * q).sum(-1),
    )


def _funnel(D: int, scale: float = 1.5):
    """v = q_0 ~ N(0, scale^2), the others N(0, exp(v))."""

    def slope(q):
        v, x = q[0], q[1:]
        first = v / scale**2 + 0.5 * (D - 1) - 0.5 * np.exp(-v) * (x @ x)
        return np.concatenate([[first], x * np.exp(-v)])

    def energy(q):
        v, x = q[0], q[1:]
        return 0.5 * v**2 / scale**2 + 0.5 * (D - 1) * v + 0.5 * np.exp(-v) * (x @ x)

    return energy, slope, lambda q: funnel_energy(q, scale)


def funnel_energy(q: Tensor, scale: float) -> Tensor:
    v, x = q[:, 0], q[:, 1:]
    prior = 0.5 * v.square() / scale**2
    return prior + 0.5 * x.shape[1] * v + 0.5 * (-v).exp() * x.square().sum(-1)


TARGETS = {
    "1-d Gaussian": (1, _gaussian(1, 0), 0.9, 10),
    "3-d Gaussian": (3, _gaussian(3, 1), 0.3, 10),
    "12-d Gaussian, long trajectories": (12, _gaussian(12, 2), 0.12, 10),
    "7-d Gaussian, cut at depth 3": (7, _gaussian(7, 3), 0.15, 3),
    "5-d Gaussian, depth 1": (5, _gaussian(5, 4), 0.3, 1),
    "unstable step": (4, _gaussian(4, 5, spread=3.0), 0.45, 10),
    "funnel": (4, _funnel(4), 0.35, 10),
    "funnel, steps too large": (6, _funnel(6, 3.0), 1.2, 8),
}


GROWTH = 100.0  # of a difference within one trajectory; none was seen
COLUMNS = ("energy", "accept", "step", "depth", "leapfrogs", "diverged")


def _assert_same(chain, seen, stats, t, reference, row):
    """The chain's transition t and the reference's, both from one state. What differs is the order
    of sums, D terms in each of the leapfrogs; a trajectory makes a difference grow, by less than
    GROWTH. Another choice anywhere would be another draw."""
    within = close(torch.float64, terms=len(reference.q), depth=int(row[4]), condition=GROWTH)
    torch.testing.assert_close(seen.q[chain, t + 1], torch.tensor(reference.q), **within)
    got = torch.stack([stats[name][chain, t] for name in COLUMNS])
    within["atol"] *= max(1.0, abs(row[0]))  # the acceptance's error is that of the energy
    torch.testing.assert_close(got, torch.tensor(row, dtype=torch.float64), **within)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("massive", [False, True], ids=["unit mass", "mass"])
def test_draws_are_those_of_a_recursive_nuts(name, massive):
    D, (energy, slope, torch_energy), step, max_depth = TARGETS[name]
    M, transitions = 3, 16
    rng = np.random.default_rng(7)
    start = rng.normal(size=(M, D))
    inverse_mass = rng.uniform(0.5, 2.0, size=(M, D)) if massive else np.ones((M, D))
    seen, stats = density.visits(
        Density(torch_energy),
        torch.tensor(start),
        density.rules_for(0, max_depth=max_depth),
        transitions=transitions,
        step=step,
        inverse_mass=torch.tensor(inverse_mass),
    )
    rows = []
    for chain, key in enumerate(density.keys(M).tolist()):
        reference = Recursive(
            energy,
            slope,
            start[chain],
            key,
            step=step,
            inverse_mass=inverse_mass[chain],
            max_depth=max_depth,
        )
        for t in range(transitions):
            reference.q = seen.q[chain, t].numpy()
            rows.append(reference.draw())
            _assert_same(chain, seen, stats, t, reference, rows[-1])
    assert any(row[5] for row in rows) == (name in ("unstable step", "funnel, steps too large"))


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
            _assert_same(chain, seen, stats, t, reference, row)
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
    energy, slope, torch_energy = _gaussian(3, 1)
    start = scale * np.random.default_rng(6).normal(size=(4, 3))
    target = Density(lambda q: torch_energy(q / scale))
    key = density.keys(4)
    q = torch.tensor(start)
    got = reasonable_step(q, *target(q), target, key).exp()
    for chain in range(4):
        p = np.array(density.normal(int(key[chain]), -1, MOMENTUM, 3))
        q, step, goods = start[chain], 0.1, []
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
    _, _, energy = _gaussian(3, 1)
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


# Chains do not know of each other -----------------------------------------------------------------


def test_two_chains_are_the_first_two_of_five():
    """To the bit: nothing here is a matrix product, whose rounding may depend on its rows."""
    target = Density(lambda q: funnel_energy(q, 1.0))
    start = torch.tensor(np.random.default_rng(1).normal(size=(5, 6)))
    options = {"samples": 5, "warmup": 50, "max_depth": 5}
    five, stats = density.sample(target, start, **options)
    two, others = density.sample(target, start[:2], **options)
    assert torch.equal(two, five[:2])
    assert all(torch.equal(others[name], stats[name][:2]) for name in STATS)


def test_a_chain_is_the_same_in_any_company():
    """Neighbours with trajectories of quite other lengths, one of which diverges, one that cannot
    move and one that is not finite: chain by chain the same bits as alone."""
    scale = torch.tensor([1.0, 0.01, 30.0, 1e-9, 3.0, math.nan], dtype=torch.float64)
    start = torch.tensor(np.random.default_rng(2).normal(size=(6, 3)))

    def target(scales):
        return Density(lambda q: 0.5 * (q / scales.unsqueeze(1)).square().sum(-1))

    options = {"samples": 4, "warmup": 50, "step": 0.1, "max_depth": 4}
    together, stats = density.sample(target(scale), start, **options)
    for k in range(6):
        one = slice(k, k + 1)
        alone, own = density.sample(
            target(scale[one]), start[one], key=density.keys(6)[one], **options
        )
        assert torch.equal(alone[0], together[k])
        for name in STATS:
            assert torch.equal(own[name][0].nan_to_num(), stats[name][k].nan_to_num()), name
    assert len(set(stats["leapfrogs"].sum(1).tolist())) >= 5
    assert bool(stats["diverged"][5].all())
    assert not bool(stats["accept"][5].any())  # 0, not NaN: dual averaging goes on from it
    assert torch.equal(together[5], start[5].expand(4, 3))  # it stays where it was
    assert bool(together[:5].isfinite().all())


def test_a_chain_that_rests_does_not_move():
    _, _, energy = _gaussian(3, 12)
    start = torch.tensor(np.random.default_rng(3).normal(size=(2, 3)))
    rules = density.rules_for(0)
    record = density.empty(start, rules, 3)
    runner = PlainRunner(
        density.begin(Density(energy), start, rules, step=0.4), Density(energy), rules, record
    )
    while bool((runner.state().transition < 3).any()):
        runner.advance(1)
    before, kept = runner.state(), [t.clone() for t in record]
    runner.advance(9)
    for name, a, b in zip(before._fields, before[:-1], runner.state()[:-1], strict=False):
        assert torch.equal(a, b), name
    for a, b in zip(before.adaptation, runner.state().adaptation, strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(kept, record, strict=True))


def test_masks_need_no_look():
    """On a GPU every masked block runs (`always`); on a CPU those that do nothing are left out."""
    target = Density(lambda q: 2 * q.square().sum(-1))
    start = torch.tensor(np.random.default_rng(4).normal(size=(3, 3)))
    rules = density.rules_for(50)
    ends = []
    for guard in (trajectory.look, trajectory.always):
        state, record = density.begin(target, start, rules), density.empty(start, rules, 5)
        while bool((state.transition < 55).any()):
            state = tree.arrive(state, trajectory.leapfrog(state, target), rules, record, guard)
        ends.append((record.draws, record.stats))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


# Densities whose moments are known ----------------------------------------------------------------

ALARM = 1e-4  # the chance that a right sampler fails one of these, on another machine


def test_gaussian_in_100_dimensions_with_scales_from_a_hundredth_to_ten():
    """C_ij = s_i s_j / 2^|i - j|. The warm-up begins with variances wrong by up to a factor of 3
    and chains at their target, which they must not leave."""
    D, M, S = 100, 32, 20
    rng = np.random.default_rng(0)
    scale = rng.permutation(np.geomspace(0.01, 10, D))
    R = 0.5 ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))
    P = torch.tensor(np.linalg.inv(R))
    s = torch.tensor(scale)
    start = s * torch.tensor(rng.normal(size=(M, D)) @ np.linalg.cholesky(R).T)
    draws, stats = density.sample(
        Density(lambda q: 0.5 * ((q / s @ P) * (q / s)).sum(-1)),
        start,
        samples=S,
        warmup=50,
        max_depth=6,
        step=0.2,
        inverse_mass=s.square() * torch.tensor(rng.uniform(0.3, 3, size=(M, D))),
    )
    z = draws / s
    assert density.false_alarm(z, 0.0) > ALARM
    assert density.false_alarm(z.square(), 1.0) > ALARM
    assert density.false_alarm(z[..., 1:] * z[..., :-1], 0.5) > ALARM
    # trajectories of some half a period make draws that are as good as independent
    assert density.efficiency(z[..., ::20]) > 0.3
    assert float(stats["diverged"][:, 50:].sum()) == 0
    assert 0.6 < float(stats["accept"][:, 50:].mean()) < 0.95  # 0.8 is aimed at


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


def test_a_mild_funnel():
    """v ~ N(0, 1), five x ~ N(0, exp(v)): it bends every trajectory, yet a step size of acceptance
    0.9 still enters its neck (next to no divergences), as it does not in Neal's, of scale 3. Every
    chain starts in the middle."""
    start = torch.randn(128, 6, generator=torch.Generator().manual_seed(0)).double()
    start[:, 0] = 0
    draws, stats = density.sample(
        Density(lambda q: funnel_energy(q, 1.0)),
        start,
        samples=40,
        warmup=50,
        max_depth=5,
        target_accept=0.9,
    )
    v, x = draws[..., :1], draws[..., 1:]
    assert density.false_alarm(v, 0.0) > ALARM
    assert density.false_alarm(v.square(), 1.0) > ALARM
    thresholds = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
    normal = torch.tensor(scipy_stats.norm.cdf(thresholds))
    assert density.false_alarm((v < thresholds).double(), normal) > ALARM
    unit = x * (-0.5 * v).exp()  # N(0, 1), whatever v
    assert density.false_alarm(unit, 0.0) > ALARM
    assert density.false_alarm(unit.square(), 1.0) > ALARM
    assert density.efficiency(v) > 0.1
    assert float(stats["diverged"][:, 50:].mean()) < 0.01


def test_two_modes():
    """x ~ 0.3 N(-1.5, 0.7^2) + 0.7 N(1.5, 1), y ~ N(x, 1); all chains start in the larger mode."""
    share, (a, b), (s, r) = 0.3, (-1.5, 1.5), (0.7, 1.0)

    def energy(q):
        x, y = q.unbind(-1)
        left = math.log(share / s) - 0.5 * ((x - a) / s).square()
        right = math.log((1 - share) / r) - 0.5 * ((x - b) / r).square()
        return -torch.logaddexp(left, right) + 0.5 * (y - x).square()

    start = 1.5 + 0.1 * torch.randn(128, 2, generator=torch.Generator().manual_seed(0)).double()
    draws, _ = density.sample(Density(energy), start, samples=60, warmup=50, max_depth=5)
    x, y = draws[..., :1], draws[..., 1:]
    mean = share * a + (1 - share) * b
    square = share * (s**2 + a**2) + (1 - share) * (r**2 + b**2)
    assert density.false_alarm(x, mean) > ALARM
    assert density.false_alarm(x.square(), square) > ALARM
    assert density.false_alarm(y - x, 0.0) > ALARM
    assert density.false_alarm((y - x).square(), 1.0) > ALARM
    below = share * scipy_stats.norm.cdf((0 - a) / s) + (1 - share) * scipy_stats.norm.cdf(-b / r)
    assert density.false_alarm((x < 0).double(), float(below)) > ALARM
    assert density.efficiency(x) > 0.02


def test_calibration_by_simulation():
    """Parameters from the prior, data from the model: then the truth's rank among draws from the
    posterior is uniform (Talts et al., 2018). Each of 512 chains has data of its own.

    Logistic regression, 15 points, three weights. 15 draws of each chain, three transitions apart,
    where the autocorrelation is under 0.04 (measured; up to 0.2 one apart)."""
    M, N, S = 512, 15, 15
    generator = torch.Generator().manual_seed(1)
    options = {"generator": generator, "dtype": torch.float64}
    truth = torch.randn(M, 3, **options)
    x = torch.randn(M, N, 3, **options)
    y = (torch.rand(M, N, **options) < torch.einsum("mnd,md->mn", x, truth).sigmoid()).double()

    def energy(q):
        logits = torch.einsum("mnd,md->mn", x, q)
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(-1)

    target = Density(energy, precision=1.0)
    start = torch.randn(M, 3, **options)
    draws, _ = density.sample(target, start, samples=3 * S, warmup=50, max_depth=5)
    draws = draws[:, ::3]  # [M, S, 3]
    fits = torch.stack([energy(draws[:, i]) for i in range(S)], 1)  # [M, S]
    quantities = [(draws[..., k], truth[:, k]) for k in range(3)]
    quantities.append((fits, energy(truth)))
    quantities.append((draws.square().sum(-1), truth.square().sum(-1)))
    for values, true in quantities:
        ranks = (values < true.unsqueeze(1)).sum(1)  # 0 ... 15
        observed = ranks.bincount(minlength=S + 1)
        # 32 are expected of each rank; chi-square with 15 degrees of freedom
        assert scipy_stats.chisquare(observed.numpy()).pvalue > ALARM / 5


# The compiled twin --------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(not mlp.available(), reason="no compiler here")
TWINS = {
    "relu, classes": (nn.ReLU, 2, True, "categorical", 5, 19),
    "tanh, classes, no bias": (nn.Tanh, 3, False, "categorical", 1, 41),
    "silu, noise 0.3": (nn.SiLU, 1, True, Homoscedastic(noise=0.3), 2, 37),
    "relu, noise 0.3, no bias": (nn.ReLU, 1, False, Homoscedastic(noise=0.3), 1, 1),
    "tanh, heteroscedastic": (nn.Tanh, 2, True, "heteroscedastic", 3, 23),
}


@needs_compiler
@pytest.mark.parametrize("name", TWINS)
def test_the_kernel_is_the_same_machine(name):
    """Through the fast start, the window, its close, the fast end and some draws. Rounding grows
    by some thousand in blocks of 10 iterations (measured), so blocks are of 4."""
    activation, outputs, bias, likelihood, chains, n = TWINS[name]
    data = density.classes(n) if likelihood == "categorical" else density.curve(n)
    stats = density.lockstep(
        density.small_net(activation, outputs, bias=bias),
        data,
        density.rules_for(50, max_depth=3),
        chains=chains,
        samples=3,
        block=4,
        likelihood=likelihood,
    )
    assert float(stats["depth"].max()) == 3
    assert float(stats["leapfrogs"].min()) >= 1


@needs_compiler
def test_the_kernel_on_a_single_layer():
    density.lockstep(
        nn.Linear(3, 2),
        density.classes(),
        density.rules_for(0, max_depth=4),
        chains=2,
        samples=5,
        block=10,
    )


@needs_compiler
def test_the_kernel_in_deep_trees():
    """Small steps, so that a tree of depth 6 opens and closes all its checkpoints."""
    stats = density.lockstep(
        density.small_net(nn.Tanh, 2),
        density.classes(),
        density.rules_for(0, max_depth=7),
        chains=3,
        samples=4,
        block=16,
        step=0.02,
    )
    assert float(stats["depth"].max()) >= 6


@needs_compiler
def test_the_kernel_diverges_alike():
    """Too large a step: leaves beyond the bounds on energy."""
    stats = density.lockstep(
        density.small_net(nn.SiLU, 1),
        density.curve(),
        density.rules_for(0, max_depth=5),
        chains=5,
        samples=6,
        block=1,
        likelihood=Homoscedastic(noise=0.3),
        step=0.05,
    )
    assert 0 < float(stats["diverged"].mean()) < 1


@needs_compiler
def test_the_kernel_in_float32():
    """The first transition of every chain: energies of about 100 in 24 bits, and some hundred
    operations between."""
    x, y = density.classes()
    stats = density.lockstep(
        density.small_net(nn.Tanh, 2),
        (x.float(), y),
        density.rules_for(0, max_depth=3),
        chains=5,
        samples=1,
        block=7,
        dtype=torch.float32,
        step=0.05,
    )
    assert bool((stats["leapfrogs"] > 1).all())


# Through the front door ---------------------------------------------------------------------------

quiet = pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short are not to be trusted


def same(a, b):
    """Two posteriors with the same draws, statistics and state, to the bit."""
    for name, p in a.params.items():
        assert torch.equal(p, b.params[name]), name
    for name, s in a.chains.stats.items():
        assert torch.equal(s, b.chains.stats[name]), name
    for name, s in a.chains.state.items():
        assert torch.equal(s, b.chains.state[name]), name


@quiet
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_going_on_is_one_long_run(engine):
    """Half of the draws and then the rest, in memory: the bits of an uninterrupted run; and what
    was gone on with is as it was."""
    options = {"chains": 3, "warmup": 50, "max_depth": 3, "engine": engine, "seed": 4}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    whole = stochens.nuts(net, data, samples=8, **gather(**options))
    half = stochens.nuts(net, data, samples=4, **gather(**options))
    kept = {name: t.clone() for name, t in half.chains.state.items()}
    same(stochens.nuts(net, data, samples=8, resume=half, **gather(**options)), whole)
    for name, t in kept.items():
        assert torch.equal(half.chains.state[name], t), f"{name} of the run gone on with has moved"
    same(stochens.nuts(net, data, samples=8, resume=half, **gather(**options)), whole)
    draws = whole.params["0.weight"].view(3, 8, 5, 3)
    assert torch.equal(draws[:, :4], half.params["0.weight"].view(3, 4, 5, 3))


@quiet
def test_going_on_from_disk(tmp_path):
    options = {"chains": 2, "warmup": 30, "max_depth": 3}
    net, data = density.small_net(nn.ReLU, 2), density.classes()
    data = data[0].float(), data[1]
    whole = stochens.nuts(net, data, samples=8, **gather(**options))
    first = stochens.nuts(net, data, samples=3, **gather(checkpoint=tmp_path / "run", **options))
    same(
        stochens.nuts(net, data, samples=8, **gather(checkpoint=tmp_path / "run", **options)),
        whole,
    )
    first.save(tmp_path / "saved")
    loaded = stochens.load(tmp_path / "saved", net)
    same(stochens.nuts(net, data, samples=8, resume=loaded, **gather(**options)), whole)
    with pytest.raises(InputError, match="seed"):
        stochens.nuts(
            net, data, samples=9, seed=1, **gather(checkpoint=tmp_path / "run", **options)
        )


@quiet
@pytest.mark.parametrize("phase", ["warm-up", "draws"])
def test_an_interrupted_run_goes_on(phase, tmp_path, monkeypatch):
    """Ctrl-C in the middle of some trajectory, where chains are at different transitions."""
    options = {"chains": 3, "warmup": 20, "max_depth": 3, "engine": "vmap", "samples": 8}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    whole = stochens.nuts(net, data, **gather(**options))
    advance = PlainRunner.advance
    least = 12 if phase == "warm-up" else 25

    def interrupted(self, iterations):
        advance(self, 1)
        state = self.state()
        if int(state.transition.min()) >= least and bool((state.leaf % 4 == 3).any()):
            raise KeyboardInterrupt

    options["checkpoint"] = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PlainRunner, "advance", interrupted)
        if phase == "warm-up":
            with pytest.raises(KeyboardInterrupt, match="warm-up"):
                stochens.nuts(net, data, **gather(**options))
        else:
            part = stochens.nuts(net, data, **gather(**options))
            assert 1 <= len(part) // 3 < 8
            assert int(part.chains.state["leaf"].max()) >= 3
    if phase == "draws":
        same(
            stochens.nuts(net, data, resume=part, **gather(**{**options, "checkpoint": None})),
            whole,
        )
    same(stochens.nuts(net, data, **gather(**options)), whole)


@quiet
def test_engines_may_change_hands():
    """A run begun by one engine is gone on with by another: the same first draws after it."""
    options = {"chains": 2, "warmup": 20, "max_depth": 3}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    half = stochens.nuts(net, data, samples=2, **gather(engine="vmap", **options))
    a = stochens.nuts(net, data, samples=4, resume=half, **gather(engine="auto", **options))
    half = stochens.nuts(net, data, samples=2, **gather(engine="vmap", **options))
    b = stochens.nuts(net, data, samples=4, resume=half, **gather(engine="vmap", **options))
    # two transitions of at most 7 leapfrogs, forth and back through three layers, 37 examples
    within = close(torch.float64, terms=37, depth=2 * 7 * 6, condition=1e3)
    for name, p in a.params.items():
        torch.testing.assert_close(p, b.params[name], **within)


def _other(**change):
    x, y = density.classes()
    base = {"net": density.small_net(nn.Tanh, 2).double(), "data": (x, y)}
    return {**base, "chains": 2, "warmup": 10, "samples": 3, "max_depth": 2, **change}


OTHERS = {
    "data": {"data": (density.classes()[0] + 1e-9, density.classes()[1])},
    "labels": {"data": (density.classes()[0], 1 - density.classes()[1])},
    "seed": {"seed": 1},
    "chains": {"chains": 3},
    "warmup": {"warmup": 11},
    "max_depth": {"max_depth": 3},
    "target_accept": {"target_accept": 0.9},
    "prior_precision": {"prior_precision": 2.0},
    "dtype": {"precision": "float32"},
    "fewer samples": {"samples": 2},
    "a wider network": {
        "net": nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 2)).double()
    },
    "other activations": {"net": density.small_net(nn.ReLU, 2).double()},
}


@pytest.fixture
def short_run():
    return stochens.nuts(**gather(**_other()))


@quiet
@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_not_gone_on_with(what, short_run):
    with pytest.raises(InputError):
        stochens.nuts(**gather(**_other(resume=short_run, engine="vmap", **OTHERS[what])))


@quiet
def test_another_likelihood_is_not_gone_on_with():
    x, y = density.curve()
    net = density.small_net(nn.Tanh, 1).double()
    options = {"chains": 2, "warmup": 10, "samples": 3, "max_depth": 2}
    first = stochens.nuts(net, (x, y), likelihood=Homoscedastic(noise=0.3), **gather(**options))
    with pytest.raises(InputError):
        stochens.nuts(
            net, (x, y), likelihood=Homoscedastic(noise=3.0), resume=first, **gather(**options)
        )


def test_only_a_sampler_s_run_is_gone_on_with(xor):
    trained = stochens.fit(nn.Linear(2, 2), xor, method="regular", members=2, epochs=1)
    with pytest.raises(InputError, match="chains"):
        stochens.nuts(nn.Linear(2, 2), xor, resume=trained)


# What is refused ----------------------------------------------------------------------------------


def test_a_density_that_is_not_finite_names_chain_and_parameter(xor):
    """NaN in the data is said at once; an overflow depends on where a chain starts."""
    x = xor[0].clone()
    x[3, 1] = math.nan
    with pytest.raises(InputError, match=r"x\[3, 1\] is nan"):
        stochens.nuts(nn.Linear(2, 2), (x, xor[1]))
    x[3] = 1e38
    start = {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}
    start["weight"][2] = 100.0  # both logits are infinite there
    with pytest.raises(InputError, match=r"chain 2 .*log density is nan.*'weight'"):
        stochens.nuts(nn.Linear(2, 2), (x, xor[1]), chains=3, start=start)


def test_a_start_that_is_not_finite_names_its_chain(xor):
    start = {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}
    start["bias"][1, 0] = math.inf
    with pytest.raises(InputError, match=r"chain 1 .*'bias' is not finite"):
        stochens.nuts(nn.Linear(2, 2), xor, chains=3, start=start)


class OwnNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(F.dropout(x, 0.5))  # whatever the mode


NOISY = {
    "dropout in train mode": lambda: nn.Sequential(
        nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2)
    ),
    "a function": OwnNoise,
    "a function in eval mode": lambda: OwnNoise().eval(),
    "stochastic layers": lambda: stochens.stochastic(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), "dropout"
    ),
    "stochastic layers in eval mode": lambda: stochens.stochastic(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), "dropout"
    ).eval(),
}


@pytest.mark.parametrize("what", NOISY)
def test_a_stochastic_network_is_refused(what, xor):
    with pytest.raises(InputError, match="stochastic"):
        stochens.nuts(NOISY[what](), xor, samples=2, warmup=2)


@quiet
def test_dropout_that_is_off_is_accepted(xor):
    net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).eval()
    posterior = stochens.nuts(net, xor, chains=2, samples=2, warmup=2, max_depth=2)
    assert len(posterior) == 4
    assert not posterior.net.training


REFUSED = {
    "max_depth 0": ({"max_depth": 0}, "max_depth"),
    "max_depth 17": ({"max_depth": 17}, "max_depth"),
    "max_depth 2.5": ({"max_depth": 2.5}, "max_depth"),
    "target_accept 0": ({"target_accept": 0.0}, "target_accept"),
    "target_accept 1": ({"target_accept": 1.0}, "target_accept"),
    "target_accept nan": ({"target_accept": math.nan}, "target_accept"),
    "engine": ({"engine": "jit"}, "engine"),
    "chains": ({"chains": 0}, "chains"),
    "no chains": ({"chains": None}, "chains"),
    "samples": ({"samples": 0}, "samples"),
    "no samples": ({"samples": None}, "samples"),
    "warmup": ({"warmup": -1}, "warmup"),
    "no warmup": ({"warmup": None}, "warmup"),
    "step_size": ({"step_size": 0.0}, "step_size"),
    "prior_precision": ({"prior_precision": -1.0}, "prior_precision"),
    "precision": ({"precision": "float16"}, "precision"),
    "likelihood": ({"likelihood": "poisson"}, "likelihood"),
    "start by name": ({"start": "posterior"}, "start"),
    "start of wrong shape": (
        {"start": {"weight": torch.zeros(2, 2, 3), "bias": torch.zeros(2, 2)}},
        "'weight' must be",
    ),
    "start of wrong count": (
        {"start": {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}},
        "'weight' must be",
    ),
    "start without bias": ({"start": {"weight": torch.zeros(2, 2, 2)}}, "'bias' must be"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_options_are_refused(what, xor):
    options, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        stochens.nuts(
            nn.Linear(2, 2), xor, **gather(**{"chains": 2, "samples": 2, "warmup": 2, **options})
        )


def test_the_kernel_is_not_had_for_every_network(xor):
    net = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2))
    with pytest.raises(InputError, match="fused"):
        stochens.nuts(net, xor, run=stochens.Run(engine="fused"))


def test_a_loader_is_refused(xor):
    data = torch.utils.data.TensorDataset(*xor)
    loader = torch.utils.data.DataLoader(data, batch_size=10)
    with pytest.raises(InputError, match="DataLoader"):
        stochens.nuts(nn.Linear(2, 2), loader, samples=2, warmup=2)


@quiet
def test_a_start_from_a_posterior(xor):
    """Its first members, one for each chain; with no step size to speak of they stay there."""
    trained = stochens.fit(nn.Linear(2, 2), xor, method="regular", members=3, epochs=2)
    options = {"samples": 1, "warmup": 1, "max_depth": 1, "step_size": 1e-12}
    with pytest.raises(InputError, match="3 members"):
        stochens.nuts(nn.Linear(2, 2), xor, chains=4, start=trained, **gather(**options))
    posterior = stochens.nuts(nn.Linear(2, 2), xor, chains=2, start=trained, **gather(**options))
    for name, p in posterior.params.items():
        torch.testing.assert_close(p, trained.params[name][:2], rtol=1e-5, atol=1e-5)
