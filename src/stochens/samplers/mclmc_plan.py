"""What `mclmc` does at which step.

training  Adam on U, on all of the data
find      microcanonical steps whose energy variance v falls from FIRST_VARIANCE to the wanted
watch     mean and variance of every parameter, for the preconditioner and L
settle    the size of the steps is learned again, in the new coordinates
length    steps of one size; their effective sample size gives L
accept    trials, which are accepted or not, and the size of their steps; only where they are wanted
draws     steps of one size, of which one in `thin` is kept

All but the training are a round. A run that goes on until its members have arrived has several,
each with twice the steps of the one before.
"""

import math
from typing import NamedTuple

RATE = 0.01  # of Adam, in standard deviations of the prior; it falls to 0 by a cosine
FIRST_VARIANCE = 0.5  # v where the warm-up begins; Arvanitis et al. 2026 (bde)
FIND, WATCH = 0.6, 0.2  # shares of the warm-up
SETTLE = {False: 0.1, True: 0.05}  # with trials
LENGTH = {False: 0.1, True: 0.05}  # the rest is for the trials
ROWS = 1000  # positions that L is learned from; at most
PHASES = ("training", "find", "watch", "settle", "length", "accept", "draws")
BLOCK = 50  # steps between two looks at the progress
LONGER = 2  # times the steps of the round before
SMALLER = 8.0  # times less energy variance where steps are too long: their bias, h^2, is halved


class Ends(NamedTuple):
    """Steps at which each phase is over."""

    training: int
    find: int
    watch: int
    settle: int
    length: int
    accept: int


class Schedule(NamedTuple):
    """A round of a run, and how its steps are tuned."""

    training: int
    warmup: int
    samples: int
    thin: int
    energy_variance: float  # v, the mean squared error in the energy of a step and a dimension
    precondition: bool
    sigma: float  # the prior's standard deviation
    target_accept: float | None = None  # None: no trials
    begin: int = 0  # the round's first step

    @property
    def ends(self) -> Ends:
        trials, first = self.target_accept is not None, self.begin + self.training
        shares = [FIND, FIND + WATCH, FIND + WATCH + SETTLE[trials]]
        if trials:
            shares.append(shares[-1] + LENGTH[True])
        ends = [first + round(self.warmup * share) for share in shares]
        ends += [first + self.warmup] * (5 - len(ends))
        return Ends(first, *ends)

    @property
    def steps(self) -> int:
        """The step at which the round is over."""
        return self.begin + self.training + self.warmup + self.samples * self.thin

    def phase(self, step: int) -> str:
        """What is done at this step."""
        return next((n for n, end in zip(PHASES, self.ends, strict=False) if step < end), "draws")

    def stop(self, step: int) -> int:
        """The step after which something has to be done besides stepping on, or BLOCK."""
        ends = self.ends
        after = [end for end in ends if end > step] + [step + BLOCK]
        if step >= ends.accept:
            after.append(step + self.thin - (step - ends.accept) % self.thin)
        elif ends.settle <= step < ends.length:
            after.append(step + self.gap - (step - ends.settle) % self.gap)
        return min(*after, self.steps)

    @property
    def gap(self) -> int:
        """Steps between two positions that L is learned from."""
        return -(-max(1, self.ends.length - self.ends.settle) // ROWS)

    def wanted(self, step: int) -> float:
        """v at this step: large, and so are the steps, while the posterior is looked for."""
        begin, end = self.ends.training, self.ends.find
        left = max(0.0, 1 - (step - begin) / max(end - begin, 1))
        return self.energy_variance + left * max(0.0, FIRST_VARIANCE - self.energy_variance)

    def rate(self, step: int) -> float:
        """Of Adam."""
        return RATE * self.sigma * 0.5 * (1 + math.cos(math.pi * step / self.training))

    def at_round(self, number: int, begin: int, cuts: int) -> "Schedule":
        """The round of this number, of a run whose first round is self; its steps were found to be
        too long in `cuts` of the rounds before."""
        if number == 0:
            return self
        times = LONGER**number
        return self._replace(
            training=0,
            warmup=times * self.warmup,
            thin=times * self.thin,
            energy_variance=self.energy_variance / SMALLER**cuts,
            begin=begin,
        )
