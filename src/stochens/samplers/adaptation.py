"""Warm-up: each chain finds its own step size and its own diagonal mass.

Dual averaging drives the mean acceptance to its target (Hoffman and Gelman, 2014). The mass is the
inverse of the variances seen in windows that double, between a fast start and a fast end, in which
only the step size moves (Stan's schedule and constants).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75  # Hoffman and Gelman 2014, section 3.2
FIRST, BASE, LAST = 75, 25, 50  # transitions of Stan's fast start, first window and fast end
SHORTEST = 50  # below it there are too few draws to learn a mass from, and a step size after it
SHRINK, TOWARDS = 5.0, 1e-3  # Stan: variance * n / (n + 5) + 1e-3 * 5 / (n + 5)


class Windows(NamedTuple):
    """For each transition of the warm-up: does it count for the mass, and does a window close?"""

    slow: Tensor  # bool [warmup + 1]; the last entry, after the warm-up, is False
    closes: Tensor  # bool [warmup + 1]


def windows(warmup: int, *, mass: bool = True) -> Windows:
    """Stan's schedule: 75 fast, then slow windows of 25, 50, 100, ..., then 50 fast. A warm-up that
    is too short for it is cut 15 : 50 : 35, and below 50 transitions the mass stays as it is.

    >>> windows(300).closes.nonzero().flatten().tolist()  # 75 + 25, + 50, and the rest
    [99, 149, 249]
    """
    slow, closes = (torch.zeros(warmup + 1, dtype=torch.bool) for _ in range(2))
    first, base, last = FIRST, BASE, LAST
    if warmup < first + base + last:
        first, last = int(0.15 * warmup), int(0.35 * warmup)
        base = warmup - first - last
    end = warmup - last
    if mass and warmup >= SHORTEST:
        slow[first:end] = True
        at = first
        while at < end:
            # a window that would leave less than the next one's length takes the rest
            size = base if at + 3 * base <= end else end - at
            closes[at + size - 1] = True
            at, base = at + size, 2 * base
    return Windows(slow, closes)


class Adaptation(NamedTuple):
    """A chain's step size and mass, and what they are learned from."""

    inverse_mass: Tensor  # [M, D]
    mean: Tensor  # [M, D], of the window so far
    scatter: Tensor  # [M, D], its sum of squared deviations (Welford)
    seen: Tensor  # [M], float64, draws in the window
    log_step: Tensor  # [M], float64, as are those below
    log_step_mean: Tensor  # [M], what remains after the warm-up
    shortfall: Tensor  # [M], running mean of target - acceptance
    centre: Tensor  # [M], what log_step is drawn to
    updates: Tensor  # [M], of the step size since the last restart


def begin(q: Tensor, log_step: Tensor) -> Adaptation:
    """Unit mass; q [M, D], log_step [M] float64."""
    zero = torch.zeros_like(log_step)
    return Adaptation(
        inverse_mass=torch.ones_like(q),
        mean=torch.zeros_like(q),
        scatter=torch.zeros_like(q),
        seen=zero,
        log_step=log_step,
        log_step_mean=log_step,
        shortfall=zero,
        centre=log_step + math.log(10),
        updates=zero,
    )


def step_size(a: Adaptation, accept: Tensor, target: float) -> Adaptation:
    """One update of dual averaging; accept [M], the mean acceptance of the transition."""
    updates = a.updates + 1
    share = 1 / (updates + T0)
    shortfall = (1 - share) * a.shortfall + share * (target - accept)
    log_step = a.centre - updates.sqrt() / GAMMA * shortfall
    weight = updates.pow(-KAPPA)
    log_step_mean = weight * log_step + (1 - weight) * a.log_step_mean
    return a._replace(
        updates=updates, shortfall=shortfall, log_step=log_step, log_step_mean=log_step_mean
    )


def observe(a: Adaptation, q: Tensor) -> Adaptation:
    """One more draw in the window, by Welford's update."""
    seen = a.seen + 1
    before = q - a.mean
    mean = a.mean + before / seen.to(q).unsqueeze(1)
    return a._replace(seen=seen, mean=mean, scatter=a.scatter + before * (q - mean))


def close(a: Adaptation) -> Adaptation:
    """The window's variances become the inverse mass, and the step size is learned afresh."""
    n = a.seen.to(a.mean).unsqueeze(1)
    variance = a.scatter / (n - 1).clamp_min(1)
    shrunk = variance * n / (n + SHRINK) + TOWARDS * SHRINK / (n + SHRINK)
    return begin(a.mean, a.log_step_mean)._replace(inverse_mass=shrunk)


def where(mask: Tensor, yes: Adaptation, no: Adaptation) -> Adaptation:
    """Chain by chain, mask [M]."""
    return Adaptation(*(pick(mask, a, b) for a, b in zip(yes, no, strict=True)))


def pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """torch.where with mask [M] for tensors [M, ...]."""
    if yes is no:
        return no
    return torch.where(mask.view(-1, *[1] * (no.dim() - 1)), yes, no)
