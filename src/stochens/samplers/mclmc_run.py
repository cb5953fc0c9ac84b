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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.kernels import mclmc
from stochens.program.graph import graph_of
from stochens.program.mlp_fusion import flat_layers
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
STATS = ("likelihood", "prior", "error", "virial", "failed", "step", "stiff")


PHASES = ("training", "find", "watch", "settle", "length", "draws")
BLOCK = 50  # steps between two looks at the progress


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

    def phase(self, step: int) -> str:
        """What is done at this step."""
        return next((n for n, end in zip(PHASES, self.ends, strict=False) if step < end), "draws")

    def stop(self, step: int) -> int:
        """The step after which something has to be done besides stepping on, or BLOCK."""
        ready = self.ends[-1]
        after = [end for end in self.ends if end > step] + [step + BLOCK]
        if step >= ready:
            after.append(step + self.thin - (step - ready) % self.thin)
        elif step >= self.ends[-2]:
            after.append(step + self.gap - (step - self.ends[-2]) % self.gap)
        return min(*after, self.steps)

    @property
    def gap(self) -> int:
        """Steps between two positions that L is learned from."""
        return -(-max(1, self.ends[4] - self.ends[3]) // ROWS)

    def wanted(self, step: int) -> float:
        """v at this step: large, and so are the steps, while the posterior is looked for."""
        begin, end = self.ends[:2]
        left = max(0.0, 1 - (step - begin) / max(end - begin, 1))
        return self.energy_variance + left * max(0.0, FIRST_VARIANCE - self.energy_variance)

    def rate(self, step: int) -> float:
        """Of Adam."""
        return RATE * self.sigma * 0.5 * (1 + math.cos(math.pi * step / self.training))


class Progress(NamedTuple):
    """How far a run is: enough to go on as if nothing had been."""

    state: State
    rows: Tensor  # [M, ROWS, COLUMNS] at most, positions that L is learned from
    stiff: Tensor  # [M, D], the stiffest direction, in the coordinates of the steps
    step: int  # the next
    made: int  # draws that every member has

    def named(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.step, self.made])
        own = {"rows": self.rows, "stiff": self.stiff, "counts": counts}
        return {**self.state._asdict(), **own}

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        state = State(*(named[name].to(device) for name in State._fields))
        step, made = named["counts"].tolist()
        return cls(state, named["rows"].to(device), named["stiff"].to(device), step, made)


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


Mover = Callable[[State, int, int, Sequence[float] | None, bool], State]


def choose_mover(problem: Problem, key: Tensor, slope: Slope) -> Mover:
    """(state, first step, how many, v at each or None, whether they are watched) -> state, by the
    kernel where there is one, or by torch."""
    compiled = _compiled(problem, key)
    return plain_mover(key, slope) if compiled is None else compiled


def plain_mover(key: Tensor, slope: Slope) -> Mover:
    """By torch, for any density."""

    def move(
        at: State, first: int, count: int, wanted: Sequence[float] | None, watched: bool
    ) -> State:
        for k in range(count):
            n = normal(key, torch.full_like(key, first + k), MOMENTUM, at.q.shape[1]).to(at.q)
            before = at
            at, error = steps.move_members(at, n, slope)
            if wanted is not None:
                at = steps.adapt_size(at, before, error, wanted[k])
            at = steps.watch(at) if watched else at
        return at

    return move


def _compiled(problem: Problem, key: Tensor) -> Mover | None:
    net, x = problem.computed
    if problem.run.way not in ("auto", "fused") or not isinstance(x, Tensor):
        return None
    if not problem.coordinates.plain:  # the kernel knows one precision, and no mean
        return None
    layers = flat_layers(graph_of(net), x, problem.shapes)
    code = problem.likelihood.kernel()
    if layers is None or code is None or not mclmc.available(x):
        return None
    walk = mclmc.Walk(
        layers, code, x, problem.y, key, CONSTANTS | {"precision": problem.prior_precision}
    )

    def move(
        at: State, first: int, count: int, wanted: Sequence[float] | None, watched: bool
    ) -> State:
        new = State(*(t.clone().contiguous() for t in at))
        walk.advance(new._asdict(), first, count, wanted, watched)
        return new

    return move


CONSTANTS = {
    "turn": steps.TURN,
    "large": steps.LARGE,
    "forget": steps.FORGET,
    "trust": steps.TRUST,
    "shrink": steps.SHRINK,
}


def begin(q: Tensor, key: Tensor, precision: float, slope: Slope) -> Progress:
    n = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)
    state = steps.initial(q, n, precision**-0.5, slope)
    return Progress(state, q.new_zeros(len(q), 0, 0), n, 0, 0)


def run(
    plan: Schedule,
    start: Progress,
    mover: Mover,
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
            before = at.step
            at = advance(plan, at, mover, slope, record)
            speed = (at.step - start.step) / max(time.monotonic() - began, 1e-6)
            bar.note(f"{plan.phase(at.step)}, {speed:,.0f} steps/s")
            bar.advance(M * (at.step - before))
            now = at
            keep(at.step, lambda: _kept(now, record))  # noqa: B023, called at once
        keep.now(at.step, lambda: _kept(at, record))
    except KeyboardInterrupt:
        return at
    return at


def _kept(at: Progress, record: Record) -> dict[str, Tensor]:
    return {**at.named(), "draws": record.draws[:, : at.made], "stats": record.stats[:, : at.made]}


def advance(plan: Schedule, at: Progress, mover: Mover, slope: Slope, record: Record) -> Progress:
    """Some steps of all members, and what follows from them."""
    state, rows, stiff, made = at.state, at.rows, at.stiff, at.made
    phase, end = plan.phase(at.step), plan.stop(at.step)
    count = end - at.step
    if phase == "training":
        for step in range(at.step, end):
            state = steps.descend(state, step, plan.rate(step), slope)
    elif phase in ("find", "watch", "settle"):
        wanted = [plan.wanted(step) for step in range(at.step, end)]
        state = mover(state, at.step, count, wanted, phase == "watch")
    else:
        state = mover(state, at.step, count, None, False)
    if phase == "length" and (end - plan.ends[3]) % plan.gap == 0:
        rows = _remember(rows, state)
    if phase == "draws" and (end - plan.ends[4]) % plan.thin == 0:
        record.draws[:, made] = state.q
        record.stats[:, made] = _stats(plan, state, stiff)
        state, made = _counted(state), made + 1
    if end == plan.ends[0]:
        state = steps.forget(state)
    if end == plan.ends[2] and phase == "watch":
        state = _learned(plan, state)
    if end == plan.ends[4] and made == 0:
        state, rows = _counted(_with_length(plan, state, rows)), rows[:, :0]
        stiff = steps.stiffest(state, stiff, slope)
    return Progress(state, rows, stiff, end, made)


def _counted(state: State) -> State:
    """Errors and failures are counted from here on."""
    zero = torch.zeros_like(state.errors)
    return state._replace(errors=zero, failed=zero.clone())


def _remember(rows: Tensor, state: State) -> Tensor:
    """One more row: some parameters of the position, in the coordinates of the steps."""
    z = (state.q / state.scale)[:, :: -(-state.q.shape[1] // COLUMNS)].unsqueeze(1)
    return torch.cat([rows, z], 1) if rows.shape[1] else z


def _learned(plan: Schedule, state: State) -> State:
    """Preconditioner and L, from what was watched."""
    if plan.ends[2] - plan.ends[1] < LEAST_WATCHED:
        return state
    variance = steps.variances(state)
    if plan.precondition:
        return steps.precondition(state, variance)
    return state._replace(length=variance.sum(1).sqrt())


def _with_length(plan: Schedule, state: State, rows: Tensor) -> State:
    """L = LENGTH_SHARE h (steps / ESS), the mean over parameters, of rows [M, R, K]."""
    if rows.shape[1] < LEAST_ROWS:
        return state
    count = plan.ends[4] - plan.ends[3]
    each = rows.detach().double().cpu()
    ess = torch.stack([effective(q.unsqueeze(0)) for q in each])  # [M, K]
    apart = (count / ess.clamp(1.0, rows.shape[1])).mean(1).to(state.length)
    return state._replace(length=LENGTH_SHARE * state.size * apart)


def _stats(plan: Schedule, state: State, stiff: Tensor) -> Tensor:
    """[M, len(STATS)] of a draw."""
    prior = prior_energy(state.q, plan.sigma**-2)
    D = state.q.shape[1]
    virial = ((state.q.double() - state.mean) * state.g).sum(1) / D
    error = state.errors / (D * plan.thin)
    return torch.stack(
        [
            state.energy - prior,
            prior,
            error,
            virial,
            state.failed,
            state.size,
            steps.virial_along(state, stiff),
        ],
        dim=1,
    )
