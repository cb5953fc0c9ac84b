"""The loop of `mclmc`: members descend, find the posterior, are tuned, and draw.

mclmc_plan.py says when each of these is done.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.kernels import mclmc
from stochens.program.graph import graph_of
from stochens.program.mlp_fusion import flat_layers
from stochens.randomness.hashed import LEAF, LENGTH, MOMENTUM, normal, uniform
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar
from stochens.samplers import mclmc_steps as steps
from stochens.samplers import mclmc_trials as trials
from stochens.samplers.gradients import Gradient
from stochens.samplers.mclmc_plan import Schedule
from stochens.samplers.mclmc_steps import Slope, State
from stochens.samplers.mclmc_trials import Trial
from stochens.samplers.mixing import effective
from stochens.samplers.problem import Problem
from stochens.samplers.target import prior_energy

STREAM = 3  # of the numbers of (seed, SAMPLER, member)
LENGTH_SHARE = 0.4  # L as a share of the way between two independent draws; Robnik et al. 2023
COLUMNS = 100  # parameters of a position that L is learned from; at most
LEAST_WATCHED, LEAST_ROWS = 50, 50  # steps; fewer say nothing of variances, or of L
STATS = ("likelihood", "prior", "error", "virial", "failed", "step", "stiff", "accept")


class Progress(NamedTuple):
    """How far a run is: enough to go on as if nothing had been."""

    state: State
    rows: Tensor  # [M, ROWS, COLUMNS] at most, positions that L is learned from
    stiff: Tensor  # [M, D], the stiffest direction, in the coordinates of the steps
    trial: Trial | None = None  # of each member, where they are accepted or not
    step: int = 0  # the next
    made: int = 0  # draws that every member has
    round: int = 0
    begin: int = 0  # the round's first step
    cuts: int = 0  # rounds before it whose steps were too long

    def named(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.step, self.made, self.round, self.begin, self.cuts])
        named = {**self.state._asdict(), "rows": self.rows, "stiff": self.stiff, "counts": counts}
        if self.trial is not None:
            named |= {f"trial {name}": t for name, t in self.trial._asdict().items()}
        return named

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        own = {name: t.to(device) for name, t in named.items()}
        state = State(*(own[name] for name in State._fields))
        trial = None
        if "trial q" in own:
            trial = Trial(*(own[f"trial {name}"] for name in Trial._fields))
        return cls(state, own["rows"], own["stiff"], trial, *named["counts"].tolist())

    def next_round(self, *, smaller: bool) -> "Progress":
        """Where the next round begins. smaller: with a smaller energy variance."""
        here = self.state if self.trial is None else trials.drawn(self.state, self.trial)
        state = steps.forget(here)
        none = torch.full_like(state.most, torch.inf)
        return self._replace(
            state=state._replace(most=none),
            trial=None,
            made=0,
            round=self.round + 1,
            begin=self.step,
            cuts=self.cuts + smaller,
        )


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
Trier = Callable[[State, Trial, int, int, float | None], tuple[State, Trial]]


class Way(NamedTuple):
    """How steps are taken.

    move: (state, first step, how many, v at each or None, whether they are watched) -> state
    attempt: (state, trial, first step, how many, the acceptance that h is tuned to or None) -> both
    """

    slope: Slope
    move: Mover
    attempt: Trier


def choose_way(problem: Problem, key: Tensor, slope: Slope) -> Way:
    """By the kernel where there is one, or by torch."""
    compiled = _compiled(problem, key)
    if compiled is None:
        return Way(slope, plain_mover(key, slope), plain_trier(key, slope))
    return Way(slope, *compiled)


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


def plain_trier(key: Tensor, slope: Slope) -> Trier:
    """Likewise."""

    def attempt(
        at: State, trial: Trial, first: int, count: int, target: float | None
    ) -> tuple[State, Trial]:
        zero = torch.zeros_like(key)
        for k in range(first, first + count):
            step = torch.full_like(key, k)
            n = normal(key, step, MOMENTUM, at.q.shape[1]).to(at.q)
            taken, length, share = (
                uniform(key, step, purpose, zero + k)
                for purpose, k in ((LEAF, 0), (LENGTH, 0), (LENGTH, 1))
            )
            chance = trials.Chance(taken, length, share)
            at, trial, over = trials.try_step(at, trial, n, chance, slope)
            if target is not None:
                at, trial = trials.learn_size(at, trial, over, target)
        return at, trial

    return attempt


def _compiled(problem: Problem, key: Tensor) -> tuple[Mover, Trier] | None:
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

    def attempt(
        at: State, trial: Trial, first: int, count: int, target: float | None
    ) -> tuple[State, Trial]:
        new = State(*(t.clone().contiguous() for t in at))
        tried = Trial(*(t.clone().contiguous() for t in trial))
        walk.advance(new._asdict(), first, count, None, False, tried._asdict(), target)
        return new, tried

    return move, attempt


CONSTANTS = {
    "turn": steps.TURN,
    "large": steps.LARGE,
    "forget": steps.FORGET,
    "trust": steps.TRUST,
    "shrink": steps.SHRINK,
    "learn": trials.LEARN,
    "rare": trials.RARE,
    "small": trials.SMALL,
}


def begin(q: Tensor, key: Tensor, precision: float, slope: Slope) -> Progress:
    n = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)
    state = steps.initial(q, n, precision**-0.5, slope)
    return Progress(state, q.new_zeros(len(q), 0, 0), n)


def run(
    plan: Schedule,
    start: Progress,
    way: Way,
    record: Record,
    bar: Bar,
    keep: Keeper,
) -> Progress:
    """Take all steps of a round that are left; how far it came, which is less if Ctrl-C did."""
    at, M = start, len(start.state.q)
    began = time.monotonic()
    try:
        while at.step < plan.steps:
            before = at.step
            at = advance(plan, at, way, record)
            speed = (at.step - start.step) / max(time.monotonic() - began, 1e-6)
            again = f"round {at.round + 1}, " if at.round else ""
            bar.note(f"{again}{plan.phase(at.step)}, {speed:,.0f} steps/s")
            bar.advance(M * (at.step - before))
            now = at
            keep(at.step, lambda: _kept(now, record))  # noqa: B023, called at once
        keep.now(at.step, lambda: _kept(at, record))
    except KeyboardInterrupt:
        return at
    return at


def _kept(at: Progress, record: Record) -> dict[str, Tensor]:
    return {**at.named(), "draws": record.draws[:, : at.made], "stats": record.stats[:, : at.made]}


def advance(plan: Schedule, at: Progress, way: Way, record: Record) -> Progress:
    """Some steps of all members, and what follows from them."""
    state, rows, stiff, trial, made = at.state, at.rows, at.stiff, at.trial, at.made
    phase, end, ends = plan.phase(at.step), plan.stop(at.step), plan.ends
    count = end - at.step
    if phase == "training":
        for step in range(at.step, end):
            state = steps.descend(state, step, plan.rate(step), way.slope)
    elif phase in ("find", "watch", "settle"):
        wanted = [plan.wanted(step) for step in range(at.step, end)]
        state = way.move(state, at.step, count, wanted, phase == "watch")
    elif trial is None:
        state = way.move(state, at.step, count, None, False)
    else:
        target = plan.target_accept if phase == "accept" else None
        state, trial = way.attempt(state, trial, at.step, count, target)
    if phase == "length" and (end - ends.settle) % plan.gap == 0:
        rows = _remember(rows, state)
    if phase == "draws" and (end - ends.accept) % plan.thin == 0:
        here = state if trial is None else trials.drawn(state, trial)
        record.draws[:, made] = here.q
        record.stats[:, made] = _stats(plan, here, stiff, trial)
        state, made = _counted(state), made + 1
    if end == ends.training:
        state = steps.forget(state)
    if end == ends.watch and phase == "watch":
        state = _learned(plan, state)
    if end == ends.length and trial is None and made == 0:
        state, rows = _with_length(plan, state, rows), rows[:, :0]
        trial = None if plan.target_accept is None else trials.first_trial(state)
    if end == ends.accept and made == 0:
        state = _counted(state if trial is None else trials.settle_size(state, trial))
        stiff = steps.stiffest(state, stiff, way.slope)
    return at._replace(state=state, rows=rows, stiff=stiff, trial=trial, step=end, made=made)


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
    if plan.ends.watch - plan.ends.find < LEAST_WATCHED:
        return state
    variance = steps.variances(state)
    if plan.precondition:
        return steps.precondition(state, variance)
    return state._replace(length=variance.sum(1).sqrt())


def _with_length(plan: Schedule, state: State, rows: Tensor) -> State:
    """L = LENGTH_SHARE h (steps / ESS), the mean over parameters, of rows [M, R, K]."""
    if rows.shape[1] < LEAST_ROWS:
        return state
    count = plan.ends.length - plan.ends.settle
    each = rows.detach().double().cpu()
    ess = torch.stack([effective(q.unsqueeze(0)) for q in each])  # [M, K]
    apart = (count / ess.clamp(1.0, rows.shape[1])).mean(1).to(state.length)
    return state._replace(length=LENGTH_SHARE * state.size * apart)


def _stats(plan: Schedule, state: State, stiff: Tensor, trial: Trial | None) -> Tensor:
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
            torch.ones_like(state.energy) if trial is None else trial.accept,
        ],
        dim=1,
    )
