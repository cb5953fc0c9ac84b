"""The steps of a Langevin ensemble on flat positions q [M, D], each member with a clock of its own.

In units of the prior's standard deviation sigma, with c = exp(-friction h), n ~ N(0, 1) and
g = beta s + lambda q, where s = N dnll/dq (BAOAB: Leimkuhler and Matthews, 2013):

    p -= h/2 sigma g;   q += h/2 sigma p;   p = c p + sqrt(1 - c^2) n;   q += h/2 sigma p;
    s = N dnll/dq;   p -= h/2 sigma g

A member's progress u goes from 0 to 1. beta and the size of its steps are functions of it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TAIL = 0.5  # the last part of the progress, over which mini-batch steps shrink
# The most that h omega may be, omega the highest frequency of a member. BAOAB is stable up to 2;
# on Gaussians its positions are exact below that. With the usual step the toy problem's networks
# have 0.3 to 1.2, half of them more than 0.57.
SWING = 0.75
EVERY = 10  # steps between two looks at the curvature, each of which costs a gradient
FORGET = 0.9  # of a high curvature that is not seen again, at each look
TIME = 12.5  # units of time, sum of h, that a member takes at least when its steps are not given
BRAKE = 10.0  # a friction above it, the one of mini-batches, needs more than that time
REACH = 0.1  # of 1 / omega: how far apart are the two gradients that give the curvature

Slope = Callable[[Tensor], Tensor]  # q [M, D] -> N dnll/dq [M, D], on the rows of a step


class StepRule(NamedTuple):
    """What every step is."""

    steps: int | None  # None: as many as a member's time takes
    step_size: float  # h, at most
    fixed: bool  # whether h is that whatever the curvature
    friction: float
    anneal: float
    last_step: float
    precision: float  # lambda

    @property
    def sigma(self) -> float:
        return math.sqrt(1 / self.precision)

    def weight(self, u: Tensor) -> Tensor:
        """beta, of the likelihood, [M]."""
        return torch.ones_like(u) if self.anneal == 0 else (u / self.anneal).clamp(max=1).square()

    def share(self, u: Tensor) -> Tensor:
        """Of the step's size, [M]: 1, and then falling by a cosine to its last over the tail."""
        done = ((u - (1 - TAIL)) / TAIL).clamp(0, 1)
        return self.last_step + (1 - self.last_step) * 0.5 * (1 + torch.cos(math.pi * done))

    @property
    def mean_share(self) -> float:
        return 1 - TAIL * (1 - self.last_step) / 2

    def size(self, at: "State") -> Tensor:
        """h of each member before its share, [M]: none moves by more than SWING / omega."""
        if self.fixed:
            return torch.full_like(at.u, self.step_size)
        omega = self.frequency(self.weight(at.u) * at.curvature)
        return (SWING / omega).clamp(max=self.step_size)

    def frequency(self, curvature: Tensor) -> Tensor:
        """omega = sqrt(1 + a / lambda), [M], of the stiffest direction; a = |beta N d2nll/dq2|."""
        return (1 + curvature / self.precision).sqrt()

    def time_needed(self, curvature: Tensor, *, left: float = 0.02) -> Tensor:
        """The time after which a member has lost what it had too much of a variance, [M], but for
        a share of `left`.

        The stiffest direction begins as wide as the prior. When its frequency has risen to omega
        slowly, its variance is too large by a share of about 4 omega, which friction takes away by
        exp(-friction t). Friction above 2 brakes the others instead, which move at
        a rate of omega^2 / friction: as TIME is enough for BRAKE, more friction takes more time.
        """
        excess = 4 * self.frequency(curvature) / left
        # A part of that time is enough at the usual friction: a linear regression with batches had
        # a standard deviation 18 % too large after a quarter of it. 0.9: steps are rounded.
        part = 0.9 if self.friction > BRAKE else 0.6
        slow = part * TIME * self.friction / BRAKE if self.friction > 2 else 0.0
        return (excess.log() / min(self.friction, 2.0)).clamp(min=slow)

    @property
    def least_time(self) -> float:
        """That a member takes when its steps are not given."""
        return TIME * max(1.0, self.friction / BRAKE)

    def pace(self, at: "State", h: Tensor) -> Tensor:
        """What a step adds to u, [M]."""
        if self.steps is not None:
            return torch.full_like(at.u, 1 / self.steps)
        time = self.time_needed(at.curvature).clamp(min=self.least_time)
        return h * self.mean_share / time


class State(NamedTuple):
    """All members after a step."""

    q: Tensor  # [M, D]
    p: Tensor  # [M, D]
    s: Tensor  # [M, D], N dnll/dq at q
    v: Tensor  # [M, D], of length 1: towards the stiffest direction of the likelihood
    curvature: Tensor  # [M], float64, along it
    u: Tensor  # [M], float64, the progress
    time: Tensor  # [M], float64, the sum of h


def initial(q: Tensor, p: Tensor, v: Tensor) -> State:
    """At rest with the prior: beta is 0 and s does not count yet."""
    v = v / v.norm(dim=1, keepdim=True)
    zero = torch.zeros(len(q), dtype=torch.float64, device=q.device)
    return State(q, p, torch.zeros_like(q), v, zero, zero.clone(), zero.clone())


def move_members(plan: StepRule, at: State, n: Tensor, slope: Slope) -> State:
    """The next state of all members; those that are done stay where they are. n [M, D]: noise."""
    h = plan.size(at)  # [M]
    pace = plan.pace(at, h)
    h = h * plan.share(at.u)
    half = (0.5 * h * plan.sigma).to(at.q).unsqueeze(1)  # [M, 1]
    c = torch.exp(-plan.friction * h).unsqueeze(1)
    p = at.p - half * _force(plan, at)
    q = at.q + half * p
    p = c.to(q) * p + (1 - c * c).sqrt().to(q) * n
    q = q + half * p
    u = (at.u + pace).clamp(max=1.0)
    # the last step of a number of steps that does not add up to 1 exactly
    u = torch.where(1 - u < 0.5 * pace, torch.ones_like(u), u)
    new = at._replace(q=q, s=slope(q), u=u, time=at.time + h)
    new = new._replace(p=p - half * _force(plan, new))
    going = at.u < 1
    return State(*(_where(going, b, a) for a, b in zip(at, new, strict=True)))


def _force(plan: StepRule, at: State) -> Tensor:
    """g = beta s + lambda q"""
    return plan.weight(at.u).to(at.q).unsqueeze(1) * at.s + plan.precision * at.q


def _where(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows if one.dim() == 1 else rows.unsqueeze(1), one, other)


def measure_curvature(plan: StepRule, at: State, slope: Slope) -> State:
    """One step of the power method on the likelihood's curvature, v <- A v / |A v|, by the
    difference to the gradient of the step before, on the same rows."""
    omega = plan.frequency(at.curvature)
    reach = (REACH * plan.sigma / omega).to(at.q).unsqueeze(1)  # [M, 1]
    change = (slope(at.q + reach * at.v) - at.s) / reach  # A v, [M, D]
    length = change.double().norm(dim=1)  # [M]
    # of a member that is done, at.s is of other rows
    seen = length.isfinite() & (length > 0) & (at.u < 1)
    v = torch.where(seen.unsqueeze(1), (change / length.to(change).unsqueeze(1)), at.v)
    # on a grid, so that a last bit, which other members beside this one may change, does not matter
    length = torch.where(seen, length, torch.ones_like(length))
    grid = torch.exp2(torch.ceil(4 * torch.log2(length)) / 4)
    curvature = torch.where(seen, torch.maximum(grid, FORGET * at.curvature), at.curvature)
    return at._replace(v=v, curvature=curvature)
