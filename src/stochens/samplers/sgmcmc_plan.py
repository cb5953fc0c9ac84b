"""What each step of stochastic-gradient MCMC does: when a chain learns its preconditioner, looks at
the noise of its mini-batches, chooses its lr and draws."""

import math
from typing import NamedTuple

SETTLING = 100  # steps, the reach of RMSprop's average
FIRST_RATE = 1e-3  # of "fisher", by RMSprop until the variance of gradients is known


class Moment(NamedTuple):
    """What one step does."""

    lr: float
    temperature: float
    adapts: bool  # the preconditioner
    by_fisher: bool  # whether it is the variance of gradients
    looks: bool  # at the noise of its mini-batch
    corrects: bool  # for that noise
    draws: bool  # what it leads to is kept


class Cycle(NamedTuple):
    """The whole run of a chain: (burn-in, draws) once, or in every cycle."""

    lr: float
    momentum: float
    temperature: float
    preconditioner: str | None
    burn_in: int
    thin: int
    samples: int
    cycles: int | None  # None: a constant step size
    cools: bool  # lr is the largest; the noise of mini-batches may make it smaller

    @property
    def length(self) -> int:
        """Steps of a cycle."""
        return self.burn_in + self.samples // (self.cycles or 1) * self.thin

    @property
    def steps(self) -> int:
        return (self.cycles or 1) * self.length

    @property
    def kick(self) -> float:
        """The variance of what a step injects: 2 (1 - beta) T."""
        return 2 * (1 - self.momentum) * self.temperature

    def ends_burn_in(self, step: int) -> bool:
        """Whether this step is the first after a burn-in."""
        return step % self.length == self.burn_in

    @property
    def windows(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """When a burn-in looks at the noise of mini-batches; after either look lr is chosen. By the
        second one chains have cooled down with the first: hot ones have larger gradients."""
        eighths = [k * self.burn_in // 8 for k in range(9)]
        return (eighths[1], eighths[3 if self.fisher else 2]), (eighths[4], eighths[6])

    def half_way(self, step: int) -> bool:
        """Whether this step is after the first half of the looks of a window: "fisher" looks for
        directions in that, and measures the noise along them in the other half."""
        k = step % self.length
        return any((first + last) // 2 <= k < last for first, last in self.windows)

    @property
    def fisher(self) -> bool:
        """Whether the variance of gradients is to be the preconditioner."""
        return self.preconditioner == "fisher"

    def begins_to_look(self, step: int) -> bool:
        """Whether this step is the first of those that look."""
        return step % self.length in (first for first, _ in self.windows)

    def ends_looking(self, step: int) -> bool:
        """Whether this step is the first with a lr that is made to the noise."""
        wanted = self.cools or self.fisher
        return wanted and step % self.length in (last for _, last in self.windows)

    def measured(self, step: int) -> int:
        """Of the window that ends at this step, how many looks are in its second half."""
        return next(b - (a + b) // 2 for a, b in self.windows if b == step % self.length)

    def corrects(self, step: int) -> bool:
        """Whether all that will be known of the noise is known."""
        return step % self.length >= self.windows[1][1]

    def at(self, step: int) -> Moment:
        """lr_k = lr / 2 (1 + cos(pi k / K)) in the k-th step of a cycle of K (Zhang et al., 2020).

        There is no noise while a cycle explores. With a preconditioner its last steps have it all
        the same: a descent ends where gradients vanish, and that says nothing of their size in the
        draws.

        >>> plan = Cycle(0.1, 0.9, 1.0, None, burn_in=2, thin=1, samples=4, cycles=2, cools=False)
        >>> [round(plan.at(k).lr, 3) for k in range(8)]
        [0.1, 0.085, 0.05, 0.015, 0.1, 0.085, 0.05, 0.015]
        >>> [plan.at(k).draws for k in range(4)]
        [False, False, True, True]
        """
        k = step % self.length
        after = k - self.burn_in  # steps since the burn-in
        by_fisher = self.fisher and k >= self.windows[0][1]
        until = self.windows[1][0] if self.fisher else self.burn_in  # what is learned is held then
        if self.cycles is None:
            lr, quiet = FIRST_RATE if self.fisher and not by_fisher else self.lr, False
        else:
            lr = self.lr / 2 * (1 + math.cos(math.pi * k / self.length))
            quiet = after < (0 if self.preconditioner is None else -SETTLING)
        return Moment(
            lr=lr,
            temperature=0.0 if quiet else self.temperature,
            adapts=self.preconditioner is not None and k < until,
            by_fisher=by_fisher,
            looks=any(first <= k < last for first, last in self.windows),
            corrects=self.corrects(step),
            draws=after >= 0 and (after + 1) % self.thin == 0,
        )
