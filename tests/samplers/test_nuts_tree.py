"""NUTS: its pieces, its transitions against a recursive NUTS, and chains alone and together."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.long import crossed
from tests.samplers import density
from tests.samplers.density import Density
from tests.samplers.nuts_reference import TARGETS, Recursive, assert_same, funnel_energy, gaussian
from tests.tolerance import close
from torch import Tensor

from stochens.samplers import nuts as tree
from stochens.samplers import trajectory
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
        tested: dict[Any, Any] = {}
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
    ends = {"ends_q": both[0], "ends_p": both[1], "ends_g": both[2]}
    state = state._replace(**ends, side=torch.tensor([side]), adaptation=a)
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


@pytest.mark.parametrize(("name", "massive"), crossed([*TARGETS], [False, True], each=1))
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
            assert_same(chain, seen, stats, t, reference, rows[-1])
    assert any(row[5] for row in rows) == (name in ("unstable step", "funnel, steps too large"))


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
    _, _, energy = gaussian(3, 12)
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
