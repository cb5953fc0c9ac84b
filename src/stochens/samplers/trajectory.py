"""What NUTS and HMC share: chains that each take one leapfrog step per iteration, side by side.

No chain waits for another. One that ends its trajectory in this iteration records its draw, adapts
and begins its next transition, while its neighbours are in the middle of theirs. Every branch is a
choice by mask, so that nothing leaves the device inside a trajectory.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.randomness.hashed import DIRECTION, LENGTH, MOMENTUM, normal, uniform
from stochens.samplers import adaptation
from stochens.samplers.adaptation import Adaptation, Windows, pick
from stochens.samplers.target import Target, prior_energy

MAX_ENERGY_ERROR = 1000.0  # beyond it a trajectory has diverged (Stan)
STATS = ("likelihood", "prior", "energy", "accept", "step", "depth", "leapfrogs", "diverged")


class Rules(NamedTuple):
    """What does not change during a run."""

    warmup: int
    windows: Windows
    target_accept: float
    max_depth: int = 10  # NUTS: at most 2^depth - 1 leapfrogs a draw
    length: float = 0.0  # HMC: of a trajectory, in units of the mass; 0 for NUTS
    jitter: float = 0.0  # HMC: the length varies by this share, both ways
    max_leapfrogs: int = 10_000  # HMC


class State(NamedTuple):
    """One chain in each row. Positions, momenta and dU/dq in the dtype of the parameters; energies
    [M, 3] (likelihood, prior, kinetic) and weights in float64; counters in int64."""

    ends_q: Tensor  # [M, 2, D], the first and the last point of the trajectory
    ends_p: Tensor
    ends_g: Tensor
    side: Tensor  # [M], which end moves: 0 back in time, 1 forward
    start_energy: Tensor
    tree_q: Tensor  # [M, D], the trajectory's draw so far
    tree_g: Tensor
    tree_energy: Tensor
    tree_rho: Tensor  # [M, D], sum of the momenta
    tree_weight: Tensor  # [M], log sum of exp(-energy error)
    sub_q: Tensor  # the same five of the subtree that is being built (NUTS)
    sub_g: Tensor
    sub_energy: Tensor
    sub_rho: Tensor
    sub_weight: Tensor
    check_p: Tensor  # [M, K, D], momenta at the left edges of the subtree's open subtrees
    check_rho: Tensor  # [M, K, D], the subtree's sum there
    accept: Tensor  # [M], sum of the acceptance probabilities
    depth: Tensor  # [M], of the tree
    leaf: Tensor  # [M], leaves of the subtree; HMC: leapfrogs so far
    length: Tensor  # [M], HMC: leapfrogs to take
    leapfrogs: Tensor
    diverged: Tensor
    transition: Tensor
    key: Tensor  # [M], of the chain's random numbers
    adaptation: Adaptation


class Record(NamedTuple):
    """Filled in place, each chain at its own pace."""

    draws: Tensor  # [M, samples, D]
    stats: Tensor  # [M, warmup + samples, len(STATS)], float64


class Point(NamedTuple):
    """Where a leapfrog step arrived."""

    q: Tensor  # [M, D]
    p: Tensor
    g: Tensor
    energy: Tensor  # [M, 3]


Guard = Callable[[Tensor], bool]  # whether a masked block need run at all


def look(mask: Tensor) -> bool:
    """On the CPU a look costs nothing and saves the block."""
    return bool(mask.any())


def always(mask: Tensor) -> bool:
    """On a GPU a look would stop it, and could not be recorded in a graph."""
    return True


def kinetic(p: Tensor, inverse_mass: Tensor) -> Tensor:
    """p M^-1 p / 2, [M], float64."""
    return 0.5 * (inverse_mass.double() * p.double().square()).sum(-1)


def leapfrog(state: State, target: Target) -> Point:
    """p -= eps/2 dU;  q += eps M^-1 p;  p -= eps/2 dU, at the end that moves."""
    rows = torch.arange(len(state.key), device=state.key.device)
    q, p, g = (end[rows, state.side] for end in (state.ends_q, state.ends_p, state.ends_g))
    a = state.adaptation
    sign = 2 * state.side - 1
    step = (sign * a.log_step.exp()).to(q).unsqueeze(1)
    p = p - 0.5 * step * g
    q = q + step * a.inverse_mass * p
    likelihood, g = target(q)
    p = p - 0.5 * step * g
    parts = [likelihood, prior_energy(q, target.precision), kinetic(p, a.inverse_mass)]
    return Point(q, p, g, torch.stack(parts, dim=-1))


def move(state: State, to: Point, active: Tensor) -> State:
    """The moving end of the active chains is now there."""
    sides = torch.arange(2, device=active.device)
    here = (active.unsqueeze(1) & (state.side.unsqueeze(1) == sides)).unsqueeze(2)  # [M, 2, 1]
    return state._replace(
        ends_q=torch.where(here, to.q.unsqueeze(1), state.ends_q),
        ends_p=torch.where(here, to.p.unsqueeze(1), state.ends_p),
        ends_g=torch.where(here, to.g.unsqueeze(1), state.ends_g),
        leapfrogs=state.leapfrogs + active.long(),
    )


def energy_error(state: State, to: Point) -> tuple[Tensor, Tensor]:
    """H - H_start [M], each kind of energy subtracted apart, and whether it is beyond bounds."""
    error = (to.energy - state.start_energy).sum(-1)
    return error, ~(error < MAX_ENERGY_ERROR)  # NaN is beyond bounds too


def initial(
    q: Tensor, likelihood: Tensor, g: Tensor, target: Target, log_step: Tensor, key: Tensor,
    rules: Rules, checkpoints: int,
) -> State:  # fmt: skip
    """Every chain at the beginning of its first transition."""
    M, D = q.shape
    zero, none = torch.zeros_like(key), torch.zeros_like(log_step)
    energy = torch.stack([likelihood, prior_energy(q, target.precision), none], dim=-1)
    state = State(
        ends_q=q.unsqueeze(1).repeat(1, 2, 1),
        ends_p=q.new_zeros(M, 2, D),
        ends_g=g.unsqueeze(1).repeat(1, 2, 1),
        side=zero,
        start_energy=energy,
        tree_q=q,
        tree_g=g,
        tree_energy=energy,
        tree_rho=torch.zeros_like(q),
        tree_weight=none,
        sub_q=q,
        sub_g=g,
        sub_energy=energy,
        sub_rho=torch.zeros_like(q),
        sub_weight=none,
        check_p=q.new_zeros(M, checkpoints, D),
        check_rho=q.new_zeros(M, checkpoints, D),
        accept=none,
        depth=zero,
        leaf=zero,
        length=zero,
        leapfrogs=zero,
        diverged=zero,
        transition=zero,
        key=key,
        adaptation=adaptation.begin(q, log_step),
    )
    return begin(state, torch.ones_like(key, dtype=torch.bool), rules)


def finish(
    state: State, finished: Tensor, accept: Tensor, rules: Rules, record: Record, guard: Guard
) -> State:
    """Chains whose trajectory is over: record, adapt, begin the next. accept [M]: mean of it."""
    if not guard(finished):
        return state
    _write(state, finished, accept, rules, record)
    warm = finished & (state.transition < rules.warmup)
    if guard(warm):
        adapted = _adapt(state, accept, rules)
        state = state._replace(adaptation=adaptation.where(warm, adapted, state.adaptation))
    state = state._replace(transition=state.transition + finished.long())
    return begin(state, finished, rules)


def _adapt(state: State, accept: Tensor, rules: Rules) -> Adaptation:
    t = state.transition.clamp_max(rules.warmup)
    a = adaptation.step_size(state.adaptation, accept, rules.target_accept)
    a = adaptation.where(rules.windows.slow[t], adaptation.observe(a, state.tree_q), a)
    a = adaptation.where(rules.windows.closes[t], adaptation.close(a), a)
    last = t == rules.warmup - 1
    return a._replace(log_step=torch.where(last, a.log_step_mean, a.log_step))


def _write(state: State, finished: Tensor, accept: Tensor, rules: Rules, record: Record) -> None:
    rows = torch.arange(len(finished), device=finished.device)
    at = state.transition.clamp_max(record.stats.shape[1] - 1)
    values = torch.stack(
        [
            *state.tree_energy[:, :2].unbind(-1),
            state.tree_energy.sum(-1),
            accept,
            state.adaptation.log_step.exp(),
            state.depth.double(),
            state.leapfrogs.double(),
            state.diverged.double(),
        ],
        dim=-1,
    )
    record.stats[rows, at] = pick(finished, values, record.stats[rows, at])
    if record.draws.shape[1]:
        at = (state.transition - rules.warmup).clamp(0, record.draws.shape[1] - 1)
        kept = finished & (state.transition >= rules.warmup)
        record.draws[rows, at] = pick(kept, state.tree_q, record.draws[rows, at])


def begin(state: State, fresh: Tensor, rules: Rules) -> State:
    """A new transition for the chains in `fresh` [M]: p ~ N(0, M), and a tree of one point."""
    t, key, a = state.transition, state.key, state.adaptation
    noise = normal(key, t, MOMENTUM, state.tree_q.shape[1])
    p = noise.to(state.tree_q) / a.inverse_mass.sqrt()
    energy = torch.stack([*state.tree_energy[:, :2].unbind(-1), kinetic(p, a.inverse_mass)], -1)
    none, zero = torch.zeros_like(state.accept), torch.zeros_like(key)
    new = state._replace(
        ends_q=state.tree_q.unsqueeze(1).expand(-1, 2, -1),
        ends_p=p.unsqueeze(1).expand(-1, 2, -1),
        ends_g=state.tree_g.unsqueeze(1).expand(-1, 2, -1),
        side=direction(key, t, zero) if rules.length == 0 else torch.ones_like(zero),
        start_energy=energy,
        tree_energy=energy,
        tree_rho=p,
        tree_weight=none,
        sub_weight=torch.full_like(none, -torch.inf),
        accept=none,
        depth=zero,
        leaf=zero,
        length=_leapfrogs(state, rules) if rules.length else zero,
        leapfrogs=zero,
        diverged=zero,
    )
    return choose(fresh, new, state)


def direction(key: Tensor, transition: Tensor, depth: Tensor) -> Tensor:
    """0 or 1, a fair coin for each doubling."""
    return (uniform(key, transition, DIRECTION, depth) < 0.5).long()


def _leapfrogs(state: State, rules: Rules) -> Tensor:
    """HMC: how many steps make the trajectory's length, jittered."""
    u = uniform(state.key, state.transition, LENGTH, torch.zeros_like(state.key))
    length = rules.length * (1 + rules.jitter * (2 * u - 1))
    return (length / state.adaptation.log_step.exp()).ceil().clamp(1, rules.max_leapfrogs).long()


def choose(mask: Tensor, yes: State, no: State) -> State:
    """Chain by chain, mask [M]."""
    parts = (pick(mask, a, b) for a, b in zip(yes[:-1], no[:-1], strict=True))
    return State._make([*parts, adaptation.where(mask, yes.adaptation, no.adaptation)])
