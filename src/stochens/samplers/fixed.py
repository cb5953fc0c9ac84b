"""Hamiltonian Monte Carlo with trajectories of a fixed length, jittered so that no orbit resonates.

p ~ N(0, M);  L leapfrog steps;  the end is taken with probability min(1, exp(-H error)).
"""

import torch

from stochens.randomness.hashed import MERGE, uniform
from stochens.samplers.adaptation import pick
from stochens.samplers.trajectory import (
    Guard,
    Point,
    Record,
    Rules,
    State,
    energy_error,
    finish,
    move,
)


def arrive(state: State, to: Point, rules: Rules, record: Record, guard: Guard) -> State:
    """What follows from one leapfrog step, for every chain that has draws left to make."""
    active = state.transition < record.stats.shape[1]
    state = move(state, to, active)
    error, bad = energy_error(state, to)
    finished = active & (bad | (state.leapfrogs >= state.length))
    state = state._replace(diverged=state.diverged | (active & bad).long())
    if not guard(finished):
        return state
    accept = torch.where(bad, 0.0, (-error).exp().clamp_max(1))
    u = uniform(state.key, state.transition, MERGE, torch.zeros_like(state.key))
    chosen = finished & ~bad & (u < accept)
    state = state._replace(
        tree_q=pick(chosen, to.q, state.tree_q),
        tree_g=pick(chosen, to.g, state.tree_g),
        tree_energy=pick(chosen, to.energy, state.tree_energy),
    )
    return finish(state, finished, accept, rules, record, guard)
