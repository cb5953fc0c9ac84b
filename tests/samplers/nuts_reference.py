"""A recursive NUTS in numpy, and densities that it and ours are run on."""

import math
from typing import NamedTuple

import numpy as np
import torch
from tests.samplers import density
from tests.tolerance import close
from torch import Tensor

from stochens.randomness.hashed import DIRECTION, LEAF, MERGE, MOMENTUM


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


def gaussian(D: int, seed: int, spread: float = 1.0):
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


def funnel(D: int, scale: float = 1.5):
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
    "1-d Gaussian": (1, gaussian(1, 0), 0.9, 10),
    "3-d Gaussian": (3, gaussian(3, 1), 0.3, 10),
    "12-d Gaussian, long trajectories": (12, gaussian(12, 2), 0.12, 10),
    "7-d Gaussian, cut at depth 3": (7, gaussian(7, 3), 0.15, 3),
    "5-d Gaussian, depth 1": (5, gaussian(5, 4), 0.3, 1),
    "unstable step": (4, gaussian(4, 5, spread=3.0), 0.45, 10),
    "funnel": (4, funnel(4), 0.35, 10),
    "funnel, steps too large": (6, funnel(6, 3.0), 1.2, 8),
}


GROWTH = 100.0  # of a difference within one trajectory; none was seen
COLUMNS = ("energy", "accept", "step", "depth", "leapfrogs", "diverged")


def assert_same(chain, seen, stats, t, reference, row):
    """The chain's transition t and the reference's, both from one state. What differs is the order
    of sums, D terms in each of the leapfrogs; a trajectory makes a difference grow, by less than
    GROWTH. Another choice anywhere would be another draw."""
    within = close(torch.float64, terms=len(reference.q), depth=int(row[4]), condition=GROWTH)
    torch.testing.assert_close(seen.q[chain, t + 1], torch.tensor(reference.q), **within)
    got = torch.stack([stats[name][chain, t] for name in COLUMNS])
    within["atol"] *= max(1.0, abs(row[0]))  # the acceptance's error is that of the energy
    torch.testing.assert_close(got, torch.tensor(row, dtype=torch.float64), **within)
