"""The no-U-turn sampler (Hoffman and Gelman, 2014), as a machine that takes one leapfrog step of
every chain per iteration.

A trajectory doubles, forward or back in time, until it turns on itself. Points are drawn by
multinomial weights exp(-H): evenly within a new subtree, with a bias to the new subtree between
trees (Betancourt, 2017). A turn is  v_left . rho <= 0  or  v_right . rho <= 0,  with rho the sum of
the momenta between, half of each edge left out. Within a subtree all its aligned subtrees are
tested with log2 checkpoints instead of recursion (Phan et al., 2019; Lao and Dillon, 2019).
"""

import torch
from torch import Tensor

from stochens.randomness.hashed import LEAF, MERGE, uniform
from stochens.samplers.adaptation import pick
from stochens.samplers.trajectory import (
    Guard,
    Point,
    Record,
    Rules,
    State,
    direction,
    energy_error,
    finish,
    move,
)


def checkpoints(max_depth: int) -> int:
    """K: a subtree of depth d has at most d open subtrees; the last doubling has max_depth - 1."""
    return max(max_depth - 1, 1)


def arrive(state: State, to: Point, rules: Rules, record: Record, guard: Guard) -> State:
    """What follows from one leapfrog step, for every chain that has draws left to make."""
    active = state.transition < record.stats.shape[1]
    state = move(state, to, active)
    state, bad = _add_leaf(state, to, active)
    turning = _checkpoint(state, to, active, guard)
    complete = state.leaf + 1 == 2**state.depth
    over = active & (complete | bad | turning)
    good = over & ~bad & ~turning
    state = state._replace(
        leaf=state.leaf + active.long(), diverged=state.diverged | (active & bad).long()
    )
    if not guard(over):
        return state
    state, whole_turns = _merge(state, good)
    finished = over & (~good | whole_turns | (state.depth >= rules.max_depth))
    state = _double(state, over & ~finished)
    accept = state.accept / state.leapfrogs.clamp_min(1)
    return finish(state, finished, accept, rules, record, guard)


def _add_leaf(state: State, to: Point, active: Tensor) -> tuple[State, Tensor]:
    """The new point joins the subtree, and is its draw with probability w / (sum of w)."""
    error, bad = energy_error(state, to)
    weight = torch.where(bad, -torch.inf, -error)
    total = torch.logaddexp(state.sub_weight, weight)
    u = uniform(state.key, state.transition, LEAF, state.leapfrogs)
    chosen = active & (u.log() < weight - total)  # no: where both are -inf
    rho = pick(state.leaf == 0, to.p, state.sub_rho + to.p)
    new = state._replace(
        sub_q=pick(chosen, to.q, state.sub_q),
        sub_g=pick(chosen, to.g, state.sub_g),
        sub_energy=pick(chosen, to.energy, state.sub_energy),
        sub_rho=pick(active, rho, state.sub_rho),
        sub_weight=torch.where(active, total, state.sub_weight),
        accept=state.accept + torch.where(active, weight.exp().clamp_max(1), 0.0),
    )
    return new, bad


def _checkpoint(state: State, to: Point, active: Tensor, guard: Guard) -> Tensor:
    """Even leaves open a subtree and leave a checkpoint, in place; odd ones close some, and whether
    any of those turns is returned, [M]."""
    leaf = state.leaf
    last = _bits(leaf >> 1)  # checkpoints that a leaf finds open: one for each bit above the last
    slots = torch.arange(state.check_p.shape[1], device=leaf.device)
    odd = leaf % 2 == 1
    writes = (active & ~odd).unsqueeze(1) & (slots == last.unsqueeze(1))  # [M, K]
    if guard(writes):
        writes = writes.unsqueeze(2)
        state.check_p.copy_(torch.where(writes, to.p.unsqueeze(1), state.check_p))
        state.check_rho.copy_(torch.where(writes, state.sub_rho.unsqueeze(1), state.check_rho))
    if not guard(odd):
        return odd
    # As many subtrees close at an odd leaf as it has ones at its end.
    closed = _bits(leaf ^ (leaf + 1)) - 1
    tested = (slots <= last.unsqueeze(1)) & (slots > (last - closed).unsqueeze(1))  # [M, K]
    rho = state.sub_rho.unsqueeze(1) - state.check_rho + state.check_p  # [M, K, D]
    p = to.p.unsqueeze(1)
    turns = is_turning(state.check_p, p, rho, state.adaptation.inverse_mass.unsqueeze(1))
    return odd & (turns & tested).any(1)


def is_turning(left: Tensor, right: Tensor, rho: Tensor, inverse_mass: Tensor) -> Tensor:
    """M^-1 left . rho <= 0 or M^-1 right . rho <= 0, with half of both edges taken from rho; all
    [..., D] -> [...]."""
    v = inverse_mass * (rho - 0.5 * (left + right))
    return ((left * v).sum(-1) <= 0) | ((right * v).sum(-1) <= 0)


def _merge(state: State, good: Tensor) -> tuple[State, Tensor]:
    """A whole subtree joins the tree, and its draw becomes the tree's with probability
    min(1, w_subtree / w_tree); whether the doubled tree turns, [M]."""
    u = uniform(state.key, state.transition, MERGE, state.depth)
    chosen = good & (u.log() < state.sub_weight - state.tree_weight)
    rho = state.tree_rho + state.sub_rho
    turns = is_turning(state.ends_p[:, 0], state.ends_p[:, 1], rho, state.adaptation.inverse_mass)
    weight = torch.logaddexp(state.tree_weight, state.sub_weight)
    merged = state._replace(
        tree_q=pick(chosen, state.sub_q, state.tree_q),
        tree_g=pick(chosen, state.sub_g, state.tree_g),
        tree_energy=pick(chosen, state.sub_energy, state.tree_energy),
        tree_rho=pick(good, rho, state.tree_rho),
        tree_weight=torch.where(good, weight, state.tree_weight),
        depth=state.depth + good.long(),
    )
    return merged, turns


def _double(state: State, on: Tensor) -> State:
    """An empty subtree, on a side chosen by a coin, for the chains in `on` [M]."""
    side = direction(state.key, state.transition, state.depth)
    return state._replace(
        side=torch.where(on, side, state.side),
        leaf=torch.where(on, 0, state.leaf),
        sub_weight=torch.where(on, -torch.inf, state.sub_weight),
    )


def _bits(n: Tensor) -> Tensor:
    """How many bits of n are set; n < 2^16."""
    n = n - ((n >> 1) & 0x5555)
    n = (n & 0x3333) + ((n >> 2) & 0x3333)
    n = (n + (n >> 4)) & 0x0F0F
    return (n + (n >> 8)) & 0x1F
