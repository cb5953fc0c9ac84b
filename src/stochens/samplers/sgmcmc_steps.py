"""The steps of stochastic-gradient MCMC on flat positions q [M, D], and what each one is for.

    p <- beta p - s g + sqrt(2 (1 - beta) T - s^2 n) xi,   xi ~ N(0, 1)
    q <- q + s p,   s = sqrt(lr / (N m))

g estimates dU / dq, with a noise of variance n (batch_noise.py). SGLD is beta = 0. Written in the
momentum p, whose variance 2 T / (1 + beta) is the same for all small steps, so that their size may
change on the way. On a Gaussian of precision a, with the exact g, the chain is an AR(2) process,
and the variance of its draws is

    T / (a (1 - s^2 a / (2 (1 + beta)))):

right for small steps, and too wide by a share that is known.

m is 1, or what the chain learns of each parameter while it burns in (`step_scale`): by RMSprop the
size of gradients; by "fisher" the variance of one example's gradient, which where the network is
right about its data is the curvature, so that lr^(1/2) is a step in standard deviations of the
posterior.
"""

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.program.data_term import DataTerm
from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar
from stochens.samplers.batch_noise import (
    NOISY,
    Noise,
    cooled,
    kick_variance,
    noise_share,
    seen,
    step_share,
    unknown,
)
from stochens.samplers.chain_heat import Heat, measured
from stochens.samplers.gradients import Gradient, random_rows, refuse_bad_start
from stochens.samplers.problem import Problem

AVERAGING = 0.99  # alpha of RMSprop; Li et al. 2016, and Izmailov et al. 2021
SETTLING = 100  # steps, the reach of that average
FIRST_RATE = 1e-3  # of "fisher", by RMSprop until the variance of gradients is known
STREAM = 1  # of the numbers of (seed, SAMPLER, chain); those without it are of nuts and hmc


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
        return (eighths[1], eighths[2]), (eighths[4], eighths[6])

    @property
    def fisher(self) -> bool:
        """Whether the variance of gradients is to be the preconditioner."""
        return self.preconditioner == "fisher"

    def turns_to_fisher(self, step: int) -> bool:
        """Whether this step is the first with it: gradients are small enough by now to tell."""
        return self.fisher and step == self.windows[0][1]

    def begins_to_look(self, step: int) -> bool:
        """Whether this step is the first of those that look."""
        return step % self.length in (first for first, _ in self.windows)

    def chooses_lr(self, step: int) -> bool:
        """Whether this step is the first with a lr that is made to the noise."""
        return self.cools and step % self.length in (last for _, last in self.windows)

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
            corrects=k >= self.windows[1][1],
            draws=after >= 0 and (after + 1) % self.thin == 0,
        )


class State(NamedTuple):
    """All chains after a step."""

    q: Tensor  # [M, D]
    p: Tensor  # [M, D]
    square: Tensor  # [M, D], the running average of (g / N)^2, or of what is in `spread`
    centre: Tensor  # [M, D], where the burn-in ended
    spread: Tensor  # [M, D] or, without "fisher", [M, 0]: that of an example's gradient's variance
    noise: Noise
    weight: float  # of the gradients in the averages; the rest is the zero that they began with
    looks: int  # at the noise of mini-batches

    def named(self) -> dict[str, Tensor]:
        """Its tensors; those of the noise are told apart by a prefix."""
        own = {name: t for name, t in self._asdict().items() if isinstance(t, Tensor)}
        return own | {f"noise {name}": t for name, t in self.noise._asdict().items()}


def keys(problem: Problem) -> Tensor:
    """Of the random numbers of each chain, [M]."""
    each = [derive(problem.seed, SAMPLER, chain, STREAM) for chain in problem.ids]
    return torch.tensor(each, device=problem.x.device)


def initial(q: Tensor, key: Tensor, *, fisher: bool = False) -> State:
    """At rest at q [M, D]."""
    v = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)
    spread = torch.zeros_like(q if fisher else q[:, :0])
    return State(q, torch.zeros_like(q), torch.zeros_like(q), q, spread, unknown(v), 0.0, 0)


def adapted(state: State, g: Tensor, data_size: int) -> State:
    """V <- alpha V + (1 - alpha) (g / N)^2"""
    square = AVERAGING * state.square + (1 - AVERAGING) * (g / data_size).square()
    return state._replace(square=square, weight=AVERAGING * state.weight + 1 - AVERAGING)


def with_spread(state: State, g: Tensor, data_size: int, batch_size: int) -> State:
    """The same with the variance of one example's gradient, B / N^2 E (g' - g)^2 / 2.

    Of the differences of neighbouring steps, and not of g: far from the posterior all gradients are
    large, and a chain that stepped by their size would stay there.
    """
    noise = state.noise._replace(last=g)
    if state.weight <= 1 - AVERAGING:  # the first gradient has none before it
        return state._replace(noise=noise)
    half = (g - state.noise.last).square() * (0.5 * batch_size / data_size**2)
    return state._replace(spread=AVERAGING * state.spread + (1 - AVERAGING) * half, noise=noise)


def step_scale(
    state: State, lr: float, data_size: int, precision: float | Tensor, *, by_fisher: bool = False
) -> Tensor:
    """s = sqrt(lr / (N m)),   m = sqrt(V) + sqrt(lambda) / N  or, of "fisher",  V + lambda / N,
    [M, D]; m = 1 where there is no V, [M, 1]. lr is multiplied by the rate of each chain.

    What is added is what the first term would be for a parameter that the data leave alone, E g^2 =
    lambda. A gradient that is 0 by chance, or in a dead unit, then makes no enormous step.
    """
    rate = (state.noise.rate * (lr / data_size)).to(state.q).unsqueeze(1)  # [M, 1]
    if state.weight == 0:
        return rate.sqrt()
    V = (state.spread if by_fisher else state.square) / state.weight  # [M, D]
    m = V + precision / data_size if by_fisher else V.sqrt() + precision**0.5 / data_size
    return torch.rsqrt(m / rate)


def move_chains(state: State, g: Tensor, s: Tensor, momentum: float, kick: Tensor | float) -> State:
    """p <- beta p - s g + kick;   q <- q + s p"""
    p = momentum * state.p - s * g + kick  # [M, D]
    return state._replace(q=state.q + s * p, p=p)


# The loop -----------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What is kept of the steps that draw."""

    draws: Tensor  # [M, samples, D]
    likelihood: Tensor  # [M, samples]
    heat: Heat  # [M, samples, K + 1]

    def upto(self, made: int) -> dict[str, Tensor]:
        """What there is of it, by name."""
        named = {"draws": self.draws, "likelihood": self.likelihood, **self.heat._asdict()}
        return {name: t[:, :made] for name, t in named.items()}


class Progress(NamedTuple):
    """How far a run is: enough to go on as if nothing had been."""

    state: State
    step: int  # the next
    made: int  # draws that every chain has

    def named(self) -> dict[str, Tensor]:
        counts = [self.state.weight, self.state.looks, self.step, self.made]
        return {**self.state.named(), "counts": torch.tensor(counts, dtype=torch.float64)}

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        weight, looks, step, made = named["counts"].tolist()
        noise = Noise(*(named[f"noise {name}"].to(device) for name in Noise._fields))
        q, p, square, centre = (named[name].to(device) for name in State._fields[:4])
        spread = named.get("spread", q[:, :0]).to(device)
        state = State(q, p, square, centre, spread, noise, weight, int(looks))
        return cls(state, int(step), int(made))


def run(
    problem: Problem,
    plan: Cycle,
    start: Progress,
    data_term: DataTerm,
    batch_size: int,
    record: Record,
    bar: Bar,
    keep: Keeper,
) -> Progress:
    """Take all the steps that are left; how far it came, which is less if Ctrl-C did."""
    at, chains, key = start, len(start.state.q), keys(problem)
    mini = batch_size < len(problem.x)
    gradient = Gradient(problem, data_term)
    sizes = [shape.numel() for shape in problem.shapes.values()]
    began = time.monotonic()
    try:
        for step in range(start.step, plan.steps):
            rows = random_rows(problem, key, batch_size, step) if mini else None
            energy, g = gradient(at.state.q, rows, step)
            if step == 0:
                refuse_bad_start(energy, problem.ids)
            before, s = _prepared(problem, plan, at.state, g, step, batch_size, mini=mini)
            state, made = _step(plan, before, g, s, key, step, mini=mini), at.made
            if plan.at(step).draws:
                record.draws[:, made] = state.q
                record.likelihood[:, made] = energy
                at_draw = before._replace(p=state.p)  # the momentum that q was left with
                for kept, value in zip(record.heat, _heat(plan, at_draw, g, s, sizes), strict=True):
                    kept[:, made] = value
                made += 1
                speed = chains * (made - start.made) / (time.monotonic() - began)
                bar.note(f"draw {made} of {plan.samples}, {speed:,.1f} draws/s")
            at = Progress(state, step + 1, made)  # at once, so that Ctrl-C finds all or nothing
            bar.advance(chains)
            keep(at.step, lambda: _kept(at, record))  # noqa: B023, called at once
        keep.now(at.step, lambda: _kept(at, record))
    except KeyboardInterrupt:
        return at
    return at


def _kept(at: Progress, record: Record) -> dict[str, Tensor]:
    return {**at.named(), **record.upto(at.made)}


def _heat(plan: Cycle, state: State, g: Tensor, s: Tensor, sizes: list[int]) -> Heat:
    away = (state.q - state.centre) / s  # in the coordinates of the steps
    return measured(away, s * g, state.p, state.noise.v, plan.momentum, sizes)


def _prepared(
    problem: Problem, plan: Cycle, state: State, g: Tensor, step: int, batch: int, *, mini: bool
) -> tuple[State, Tensor]:
    """What is learned from the gradient before the chains move, and s [M, 1] or [M, D]."""
    now, N, last = plan.at(step), len(problem.x), state.noise.last
    if now.adapts:
        state = adapted(state, g, N)
        if plan.fisher:
            state = with_spread(state, g, N, batch)
    if plan.ends_burn_in(step):
        state = state._replace(centre=state.q)
    if plan.chooses_lr(step):
        state = state._replace(noise=cooled(state.noise, _share(plan, state, N, batch, step, mini)))
    precision = problem.coordinates.precision(problem.prior_precision)
    s = step_scale(state, now.lr, N, precision, by_fisher=now.by_fisher)
    if now.looks:
        looks = 0 if plan.begins_to_look(step) else state.looks + 1
        noise = seen(state.noise._replace(last=last), g, s, looks)
        state = state._replace(noise=noise, looks=looks)
    return state, s


def _share(plan: Cycle, state: State, N: int, batch: int, step: int, mini: bool) -> Tensor:
    """By how much lr makes variances too large, of what is allowed, [M]."""
    if plan.turns_to_fisher(step):  # s^2 n is lr N / B where the data are all that counts
        return torch.full_like(state.noise.rate, plan.lr * N / batch / plan.kick / NOISY)
    if mini:
        return noise_share(state.noise, plan.kick)
    return step_share(state.noise, plan.momentum, plan.temperature)


def _step(
    plan: Cycle, state: State, g: Tensor, s: Tensor, key: Tensor, step: int, *, mini: bool
) -> State:
    now = plan.at(step)
    kick: Tensor | float = 0.0
    if now.temperature > 0:
        variance: Tensor | float = plan.kick
        if mini and now.corrects:
            variance = kick_variance(state.noise, state.looks, s, plan.kick)
        # xi is a function of (seed, chain, step): a chain is the same in any company, on any device
        xi = normal(key, torch.full_like(key, step), MOMENTUM, g.shape[1]).to(g)  # [M, D]
        kick = variance**0.5 * xi
    return move_chains(state, g, s, plan.momentum, kick)
