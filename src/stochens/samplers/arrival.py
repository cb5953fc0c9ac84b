"""Whether members are draws from the posterior, by identities that such draws obey.

For q from exp(-U) and momenta p from N(0, 1), with g = dU/dq and any point c,

    E (q - c) . g = D,     E g = 0,     E |p|^2 = D,

the first and the second also for the part of each parameter by itself. None of them needs the
truth. Members that do not obey them, beyond chance, are no such draws: their steps were too large
or too few, or the noise of mini-batches heated them.

What they can see depends on how much there is to see: M members of D parameters show a variance
that is too large by a share of about 4 / sqrt(M D / 2), the average over all directions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

ALARM = 0.0027  # how often good members are called bad: all tests together, 3 standard errors
HOT = 10.0  # times the usual energy: a member there has diverged
LEAST_MEMBERS = 5  # below it a spread over members says too little to judge by


class Ends(NamedTuple):
    """Where all members ended, float64."""

    q: Tensor  # [M, D]
    p: Tensor  # [M, D]
    g: Tensor  # [M, D], dU/dq on all of the data
    energy: Tensor  # [M], U

    def take(self, rows: Tensor) -> "Ends":
        return Ends(*(t[rows] for t in self))


class Verdict(NamedTuple):
    """What the identities say. Ratios to what they should be, with standard errors."""

    virial: tuple[float, float]  # of (q - c) . g
    kinetic: tuple[float, float]  # of |p|^2
    chance: float  # the least probability that draws look so, times the number of tests
    place: str | None  # the parameter it was found in; None: in all together

    @property
    def arrived(self) -> bool:
        return self.chance >= ALARM


def not_diverged(ends: Ends, *, settled: bool = True) -> Tensor:
    """Members [M], bool, that did not diverge.

    A momentum at HOT times its usual energy has, and so has a member as much above the lowest
    energy of the others: draws lie D / 2 above the lowest there is, more or less sqrt(D / 2). So
    the judgement does not lean on the middle of members that may be lost themselves. Where members
    had no time to settle, high energies are what they began with, and count for nothing.
    """
    D = ends.q.shape[1]
    most = HOT * (D + math.sqrt(2 * D))
    fine = ends.energy.isfinite() & ends.q.isfinite().all(1) & ends.g.isfinite().all(1)
    fine &= ends.p.square().sum(1) <= most  # NaN: no
    if settled and bool(fine.any()):
        fine &= ends.energy - ends.energy[fine].min() <= most
    return fine


def judge(ends: Ends, sizes: dict[str, int]) -> Verdict:
    """Hold members against the identities; `sizes` are those of the parameters, in q's order."""
    M, D = ends.q.shape
    speed = float(ends.p.square().sum())
    kinetic = speed / (M * D), math.sqrt(2 / (M * D))
    found: list[tuple[float, str | None]] = [(_chance_of_heat(speed, M * D), None)]
    virial = math.nan, math.nan
    if M >= LEAST_MEMBERS:
        # c is the middle of the other members, of which a member is independent
        c = (ends.q.sum(0) - ends.q) / (M - 1)
        parts = list(sizes.values())
        spans = ((ends.q - c) * ends.g).split(parts, 1), (c * ends.g).split(parts, 1)
        inner, outer = (torch.stack([t.sum(1) for t in span], 1) for span in spans)  # each [M, K]
        for k, (name, size) in enumerate(sizes.items()):
            found.append((_chance(inner[:, k], size, math.sqrt(2 * size)), name))
            found.append((_chance(outer[:, k], 0.0, 0.0), name))
        if len(sizes) > 1:
            found.append((_chance(inner.sum(1), D, math.sqrt(2 * D)), None))
        total = inner.sum(1) / D
        virial = float(total.mean()), float(total.std()) / math.sqrt(M)
    least, place = min(found, key=lambda each: each[0])
    return Verdict(virial, kinetic, min(1.0, least * len(found)), place)


def _chance(values: Tensor, expected: float, least: float) -> float:
    """The probability that the mean of values [M] is as far from the expected one or further.

    Student's t. `least`: their standard deviation is not below it. That of a part of (q - c) . g is
    at least sqrt(2 D) on every Gaussian; a few members can seem closer together by chance, since
    it is skewed.
    """
    M = len(values)
    spread = max(float(values.std()), least)
    away = float(values.mean()) - expected
    if spread == 0:
        return 1.0 if away == 0 else 0.0
    return student_tails(away * math.sqrt(M) / spread, M - 1)


def _chance_of_heat(heat: float, count: int) -> float:
    """The probability of a chi^2 of so many degrees above `heat` (Wilson and Hilferty, 1931).

    Only too much of it counts: the momenta of BAOAB are a share (h omega)^2 / 4 too cold where its
    positions are right."""
    if not math.isfinite(heat):
        return 0.0
    z = ((heat / count) ** (1 / 3) - (1 - 2 / (9 * count))) / math.sqrt(2 / (9 * count))
    return 0.5 * math.erfc(z / math.sqrt(2))


def student_tails(t: float, freedom: int) -> float:
    """P(|T| >= |t|) for Student's T of so many degrees (Abramowitz and Stegun 26.7.3 and 26.7.4).

    >>> round(student_tails(2.228, 10), 4)  # the table's 5 % point
    0.05
    """
    if not math.isfinite(t):
        return 0.0
    angle = math.atan2(abs(t), math.sqrt(freedom))
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    inside = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + inside) if odd else inside)
