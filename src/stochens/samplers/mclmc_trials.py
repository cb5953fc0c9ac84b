"""Trials: stretches of microcanonical steps that are accepted or not, and so leave no bias.

A trial takes n steps without noise, from where its member is and in a random direction. With W the
sum of the errors that they make in the energy, the member goes to where it ends with probability

    min(1, exp(-W))

and stays where it was else (Robnik, Cohn-Gordon and Seljak, 2025): exp(-U) is kept exactly. Then
the next begins, in a new direction, with  n = ceil(2 r L / h),  r uniform in (0, 1), so that its
length is L on average and no motion that returns to its beginning is met again and again. Some of
the trials take much shorter steps: a member that is where the posterior is more curved than
elsewhere would have all of its others refused for long.

All members take their steps at the same time, each in a trial of its own. At any step a member's
draw is where its last trial left it. That is right, because n has nothing to do with where a member
is, and neither has the size of its steps: no position is waited at for longer than another.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stochens.samplers.mclmc_steps import LARGE, Slope, State, flow, pick, unit

LEARN = 0.6  # the k-th trial changes log h by (acceptance - target) / k^LEARN; Robbins, Monro 1951
RARE, SMALL = 0.3, 0.1  # so many trials have steps of so much of h


class Chance(NamedTuple):
    """Numbers in (0, 1), each [M], for trials that end."""

    taken: Tensor  # whether it is accepted
    length: Tensor  # of the next one
    share: Tensor  # of h in its steps


class Trial(NamedTuple):
    """Of all members."""

    q: Tensor  # [M, D], where it began, and so in the next two
    g: Tensor  # [M, D]
    energy: Tensor  # [M], float64, as are those below
    left: Tensor  # [M], steps to go
    error: Tensor  # [M], W so far
    accept: Tensor  # [M], the probability with which the last one was accepted
    ended: Tensor  # [M], how many there were since h is learned
    log_size: Tensor  # [M], the running mean of log h while it is learned
    share: Tensor  # [M], of h in its steps


def first_trial(at: State) -> Trial:
    """One of a single step, from where members are."""
    zero = torch.zeros_like(at.energy)
    return Trial(
        q=at.q,
        g=at.g,
        energy=at.energy,
        left=zero + 1,
        error=zero,
        accept=zero + 1,
        ended=zero,
        log_size=at.size.log(),
        share=zero + 1,
    )


def drawn(at: State, trial: Trial) -> State:
    """The state of members at their draws."""
    return at._replace(q=trial.q, g=trial.g, energy=trial.energy)


def try_step(
    at: State, trial: Trial, n: Tensor, chance: Chance, slope: Slope
) -> tuple[State, Trial, Tensor]:
    """A step of every member's trial, and which trials [M] ended with it.

    n [M, D], from N(0, 1), and `chance` are for those that end. A step that fails, or one after it,
    leaves its member where it is: that trial will not be accepted.
    """
    new, error = flow(at._replace(size=trial.share * at.size), slope)
    new = new._replace(size=at.size)
    total = trial.error + error
    fine = total.abs() < LARGE  # NaN: no
    fine &= new.q.isfinite().all(1) & new.g.isfinite().all(1) & new.u.isfinite().all(1)
    total = torch.where(fine, total, torch.inf)
    new = State(*(pick(fine, b, a) for a, b in zip(at, new, strict=True)))
    left = trial.left - 1
    over = left <= 0
    accept = torch.exp(-total).clamp(max=1.0)
    taken = over & (chance.taken < accept)
    small = torch.full_like(trial.share, SMALL)
    begin = trial._replace(
        q=pick(taken, new.q, trial.q),
        g=pick(taken, new.g, trial.g),
        energy=pick(taken, new.energy, trial.energy),
        left=torch.where(over, torch.ceil(2 * chance.length * at.length / at.size), left),
        error=torch.where(over, 0.0, total),
        accept=torch.where(over, accept, trial.accept),
        ended=trial.ended + over,
        share=torch.where(over, torch.where(chance.share < RARE, small, 1.0), trial.share),
    )
    after = new._replace(
        q=pick(over, begin.q, new.q),
        g=pick(over, begin.g, new.g),
        energy=pick(over, begin.energy, new.energy),
        u=pick(over, unit(n), new.u),
        errors=at.errors + torch.where(fine, error.square(), 0.0),
    )
    return after, begin, over


def learn_size(at: State, trial: Trial, over: Tensor, target: float) -> tuple[State, Trial]:
    """h of members whose trial is over: larger where more were accepted than the target."""
    count = trial.ended.clamp(min=1.0)
    log_size = at.size.log() + (trial.accept - target) * count.pow(-LEARN)
    mean = trial.log_size + (log_size - trial.log_size) * 2 / (count + 1)  # later ones count more
    at = at._replace(size=torch.where(over, log_size.exp(), at.size))
    return at, trial._replace(log_size=torch.where(over, mean, trial.log_size))


def settle_size(at: State, trial: Trial) -> State:
    """h is the mean of what it was while it was learned, from here on."""
    return at._replace(size=trial.log_size.exp())
