"""The loop of `mclmc`: members descend, find the posterior, are tuned, and draw.

training  Adam on U, on all of the data
find      microcanonical steps whose energy variance v falls from FIRST_VARIANCE to the wanted
watch     mean and variance of every parameter, for the preconditioner and L
settle    the size of the steps is learned again, in the new coordinates
length    steps of one size; their effective sample size gives L
draws     steps of one size, of which one in `thin` is kept
"""

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar
from stochens.samplers import mclmc_steps as steps
from stochens.samplers.mclmc_steps import Slope, State
from stochens.samplers.mixing import effective
from stochens.samplers.problem import Problem
from stochens.samplers.sgmcmc_steps import Gradient
from stochens.samplers.target import prior_energy

STREAM = 3  # of the numbers of (seed, SAMPLER, member)
RATE = 0.01  # of Adam, in standard deviations of the prior; it falls to 0 by a cosine
FIRST_VARIANCE = 0.5  # v where the warm-up begins; Arvanitis et al. 2026 (bde)
FIND, WATCH, SETTLE = 0.6, 0.2, 0.1  # shares of the warm-up; the rest is for L
LENGTH_SHARE = 0.4  # L as a share of the way between two independent draws; Robnik et al. 2023
ROWS, COLUMNS = 1000, 100  # positions, and parameters of each, that L is learned from; at most
LEAST_WATCHED, LEAST_ROWS = 50, 50  # steps; fewer say nothing of variances, or of L
STATS = ("likelihood", "prior", "error", "virial", "failed", "step")


class Schedule(NamedTuple):
    """What is done when."""

    training: int
    warmup: int
    samples: int
    thin: int
    energy_variance: float  # v, the mean squared error in the energy of a step and a dimension
    precondition: bool
    sigma: float  # the prior's standard deviation

    @property
    def ends(self) -> tuple[int, int, int, int, int]:
        """Steps at which training, find, watch, settle and length are over."""
        find, watch, settle = (
            self.training + round(self.warmup * share)
            for share in (FIND, FIND + WATCH, FIND + WATCH + SETTLE)
        )
        return self.training, find, watch, settle, self.training + self.warmup

    @property
    def steps(self) -> int:
        return self.training + self.warmup + self.samples * self.thin

    def wanted(self, step: int) -> float:
        """v at this step: it falls like a power of v while the posterior is looked for."""
        begin, end = self.ends[:2]
        done = min(1.0, (step - begin) / max(end - begin, 1))
        first = max(FIRST_VARIANCE, self.energy_variance)
        return math.exp((1 - done) * math.log(first) + done * math.log(self.energy_variance))

    def rate(self, step: int) -> float:
        """Of Adam."""
        return RATE * self.sigma * 0.5 * (1 + math.cos(math.pi * step / self.training))


class Progress(NamedTuple):
    """How far a run is: enough to go on as if nothing had been."""

    state: State
    rows: Tensor  # [M, ROWS, COLUMNS] at most, positions that L is learned from
    step: int  # the next
    made: int  # draws that every member has

    def named(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.step, self.made])
        return {**self.state._asdict(), "rows": self.rows, "counts": counts}

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        state = State(*(named[name].to(device) for name in State._fields))
        step, made = named["counts"].tolist()
        return cls(state, named["rows"].to(device), step, made)


class Record(NamedTuple):
    """What is kept of the steps that draw."""

    draws: Tensor  # [M, samples, D]
    stats: Tensor  # [M, samples, len(STATS)], float64


def slope_of(problem: Problem, gradient: Gradient) -> Slope:
    """U and dU/dq of positions in which the prior is the same for all parameters."""
    precision = problem.prior_precision

    def slope(q: Tensor) -> tuple[Tensor, Tensor]:
        energy, g = gradient.of_data(q, None, 0)
        return energy + prior_energy(q, precision), g + precision * q

    return slope


def keys_of(problem: Problem, device: torch.device) -> Tensor:
    """Of the members' numbers, [M]."""
    keys = [derive(problem.seed, SAMPLER, member, STREAM) for member in problem.ids]
    return torch.tensor(keys, device=device)


def begin(q: Tensor, key: Tensor, precision: float, slope: Slope) -> Progress:
    n = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)
    state = steps.initial(q, n, precision**-0.5, slope)
    return Progress(state, q.new_zeros(len(q), 0, 0), 0, 0)


def run(
    plan: Schedule,
    start: Progress,
    key: Tensor,
    slope: Slope,
    record: Record,
    bar: Bar,
    keep: Keeper,
) -> Progress:
    """Take all the steps that are left; how far it came, which is less if Ctrl-C did."""
    at, M = start, len(start.state.q)
    began = time.monotonic()
    try:
        while at.step < plan.steps:
            at = advance(plan, at, key, slope, record)
            if at.step % 100 == 0:
                speed = (at.step - start.step) / (time.monotonic() - began)
                bar.note(f"{plan_phase(plan, at.step)}, {speed:,.0f} steps/s")
            bar.advance(M)
            now = at
            keep(at.step, lambda: _kept(now, record))  # noqa: B023, called at once
        keep.now(at.step, lambda: _kept(at, record))
    except KeyboardInterrupt:
        return at
    return at


def plan_phase(plan: Schedule, step: int) -> str:
    names = ("training", "find", "watch", "settle", "length")
    return next((n for n, end in zip(names, plan.ends, strict=True) if step < end), "draws")


def _kept(at: Progress, record: Record) -> dict[str, Tensor]:
    return {**at.named(), "draws": record.draws[:, : at.made], "stats": record.stats[:, : at.made]}


def advance(plan: Schedule, at: Progress, key: Tensor, slope: Slope, record: Record) -> Progress:
    """One step of all members, and what follows from it."""
    step, state = at.step, at.state
    trained, found, watched, settled, ready = plan.ends
    if step < trained:
        state = steps.descend(state, step, plan.rate(step), slope)
        return at._replace(state=_closed(plan, state, step + 1), step=step + 1)
    n = normal(key, torch.full_like(key, step), MOMENTUM, state.q.shape[1]).to(state.q)
    before = state
    state, error = steps.move_members(state, n, slope)
    rows, made = at.rows, at.made
    if step < settled:
        state = steps.adapt_size(state, before, error, plan.wanted(step), rounding(before))
        state = steps.watch(state) if found <= step < watched else state
    elif step < ready:
        rows = _remember(plan, rows, state, step)
    elif (step + 1 - ready) % plan.thin == 0:
        record.draws[:, made] = state.q
        record.stats[:, made] = _stats(plan, state)
        zero = torch.zeros_like(state.errors)
        state, made = state._replace(errors=zero, failed=zero.clone()), made + 1
    state = _closed(plan, state, step + 1)
    if step + 1 == ready and rows.shape[1]:
        state, rows = _with_length(plan, state, rows), rows[:, :0]
    return Progress(state, rows, step + 1, made)


def rounding(at: State) -> Tensor:
    """The variance that rounding leaves in a difference of energies, [M], float64."""
    return (0.5 * torch.finfo(at.q.dtype).eps * at.energy).square()


def _remember(plan: Schedule, rows: Tensor, state: State, step: int) -> Tensor:
    """Some parameters of the position, in the coordinates of the steps, at some of the steps."""
    begin, end = plan.ends[3:]
    gap = -(-(end - begin) // ROWS)
    if (step + 1 - begin) % gap:
        return rows
    z = (state.q / state.scale)[:, :: -(-state.q.shape[1] // COLUMNS)].unsqueeze(1)
    return torch.cat([rows, z], 1) if rows.shape[1] else z


def _closed(plan: Schedule, state: State, step: int) -> State:
    """What changes between one phase and the next."""
    trained, found, watched, _, ready = plan.ends
    if step == trained:
        state = steps.forget(state)
    if step == watched and watched - found >= LEAST_WATCHED:
        variance = steps.variances(state)
        if plan.precondition:
            state = steps.precondition(state, variance)
        else:
            state = state._replace(length=variance.sum(1).sqrt())
    if step == ready:
        zero = torch.zeros_like(state.errors)
        state = state._replace(errors=zero, failed=zero.clone())
    return state


def _with_length(plan: Schedule, state: State, rows: Tensor) -> State:
    """L = LENGTH_SHARE h (steps / ESS), the mean over parameters, of rows [M, R, K]."""
    if rows.shape[1] < LEAST_ROWS:
        return state
    count = plan.ends[4] - plan.ends[3]
    each = rows.detach().double().cpu()
    ess = torch.stack([effective(q.unsqueeze(0)) for q in each])  # [M, K]
    apart = (count / ess.clamp(1.0, rows.shape[1])).mean(1).to(state.length)
    return state._replace(length=LENGTH_SHARE * state.size * apart)


def _stats(plan: Schedule, state: State) -> Tensor:
    """[M, len(STATS)] of a draw."""
    prior = prior_energy(state.q, plan.sigma**-2)
    D = state.q.shape[1]
    virial = ((state.q.double() - state.mean) * state.g).sum(1) / D
    error = state.errors / (D * plan.thin)
    return torch.stack(
        [state.energy - prior, prior, error, virial, state.failed, state.size], dim=1
    )
