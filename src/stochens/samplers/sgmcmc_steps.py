"""The steps of stochastic-gradient MCMC on flat positions q [M, D], and what each one is for.

    p <- beta p - s g + sqrt(2 (1 - beta) T) n,   n ~ N(0, 1)
    q <- q + s p,   s = sqrt(lr / (N m))

g estimates dU / dq. SGLD is beta = 0. Written in the momentum p, whose variance 2 T / (1 + beta) is
the same for all small steps, so that their size may change on the way. On a Gaussian of precision
a, with the exact g, the chain is an AR(2) process, and the variance of its draws is

    T / (a (1 - s^2 a / (2 (1 + beta)))):

right for small steps, and too wide by a share that is known.
"""

import itertools
import logging
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.kernels.graphs import Replayed
from stochens.members import Params, flatten
from stochens.program.data_term import DataTerm, InMemory, Term, Way, data_term, refuse_unfused
from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive, permutations
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar, compiling
from stochens.samplers.chain_heat import Heat, measured
from stochens.samplers.problem import Problem
from stochens.samplers.target import unflatten

log = logging.getLogger("stochens")

AVERAGING = 0.99  # alpha of RMSprop; Li et al. 2016, and Izmailov et al. 2021
SETTLING = 100  # steps, the reach of that average
STREAM = 1  # of the numbers of (seed, SAMPLER, chain); those without it are of nuts and hmc


class Moment(NamedTuple):
    """What one step does."""

    lr: float
    temperature: float
    adapts: bool  # the preconditioner
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

    @property
    def length(self) -> int:
        """Steps of a cycle."""
        return self.burn_in + self.samples // (self.cycles or 1) * self.thin

    @property
    def steps(self) -> int:
        return (self.cycles or 1) * self.length

    def ends_burn_in(self, step: int) -> bool:
        """Whether this step is the first after a burn-in."""
        return step % self.length == self.burn_in

    def at(self, step: int) -> Moment:
        """lr_k = lr / 2 (1 + cos(pi k / K)) in the k-th step of a cycle of K (Zhang et al., 2020).

        There is no noise while a cycle explores. With a preconditioner its last steps have it all
        the same: a descent ends where gradients vanish, and that says nothing of their size in the
        draws.

        >>> plan = Cycle(0.1, 0.9, 1.0, None, burn_in=2, thin=1, samples=4, cycles=2)
        >>> [round(plan.at(k).lr, 3) for k in range(8)]
        [0.1, 0.085, 0.05, 0.015, 0.1, 0.085, 0.05, 0.015]
        >>> [plan.at(k).draws for k in range(4)]
        [False, False, True, True]
        """
        k = step % self.length
        after = k - self.burn_in  # steps since the burn-in
        if self.cycles is None:
            lr, quiet = self.lr, False
        else:
            lr = self.lr / 2 * (1 + math.cos(math.pi * k / self.length))
            quiet = after < (0 if self.preconditioner is None else -SETTLING)
        return Moment(
            lr=lr,
            temperature=0.0 if quiet else self.temperature,
            adapts=self.preconditioner is not None and after < 0,
            draws=after >= 0 and (after + 1) % self.thin == 0,
        )


class State(NamedTuple):
    """All chains after a step."""

    q: Tensor  # [M, D]
    p: Tensor  # [M, D]
    square: Tensor  # [M, D], the running average of (g / N)^2
    centre: Tensor  # [M, D], where the burn-in ended
    weight: float  # of the gradients in that average; the rest is the zero that it began with


NAMES = State._fields[:-1]


def initial(q: Tensor) -> State:
    return State(q, torch.zeros_like(q), torch.zeros_like(q), q, 0.0)


def adapted(state: State, g: Tensor, data_size: int) -> State:
    """V <- alpha V + (1 - alpha) (g / N)^2"""
    square = AVERAGING * state.square + (1 - AVERAGING) * (g / data_size).square()
    return state._replace(square=square, weight=AVERAGING * state.weight + 1 - AVERAGING)


def step_scale(
    state: State, lr: float, data_size: int, precision: float | Tensor
) -> Tensor | float:
    """s = sqrt(lr / (N m)),   m = sqrt(V) + sqrt(lambda) / N,   [M, D]; m = 1 where there is no V.

    What is added is what sqrt(V) would be for a parameter that the data leave alone, E g^2 =
    lambda. A gradient that is 0 by chance, or in a dead unit, then makes no enormous step.
    """
    if state.weight == 0:
        return math.sqrt(lr / data_size)
    m = (state.square / state.weight).sqrt() + precision**0.5 / data_size  # [M, D]
    return torch.rsqrt(m * (data_size / lr))


def move_chains(
    state: State, g: Tensor, s: Tensor | float, momentum: float, kick: Tensor | float
) -> State:
    """p <- beta p - s g + kick;   q <- q + s p"""
    p = momentum * state.p - s * g + kick  # [M, D]
    return state._replace(q=state.q + s * p, p=p)


# The loop -----------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What is kept of the steps that draw."""

    draws: Tensor  # [M, samples, D]
    likelihood: Tensor  # [M, samples]
    heat: Heat  # [M, samples, K]

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
        counts = torch.tensor([self.state.weight, self.step, self.made], dtype=torch.float64)
        return {**dict(zip(NAMES, self.state, strict=False)), "counts": counts}

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        tensors = (named[name].to(device) for name in NAMES)
        weight, step, made = named["counts"].tolist()
        return cls(State(*tensors, weight), int(step), int(made))


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
    at, chains, device = start, len(start.state.q), start.state.q.device
    keys = [derive(problem.seed, SAMPLER, chain, STREAM) for chain in problem.ids]
    key = torch.tensor(keys, device=device)  # [M]
    stream = itertools.islice(batches(problem, batch_size), start.step, plan.steps)
    gradient = Gradient(problem, data_term)
    sizes = [shape.numel() for shape in problem.shapes.values()]
    began = time.monotonic()
    try:
        for step, rows in enumerate(stream, start.step):
            energy, g = gradient(at.state.q, rows, step)
            if step == 0:
                refuse_bad_start(energy, problem.ids)
            state, made = at.state, at.made
            if plan.ends_burn_in(step):
                state = state._replace(centre=state.q)
            before, state = state, _step(problem, plan, state, g, key, step)
            if plan.at(step).draws:
                record.draws[:, made] = state.q
                record.likelihood[:, made] = energy
                heat = measured(before.q, before.centre, g, state.p, plan.momentum, sizes)
                record.heat.virial[:, made : made + 1] = heat.virial
                record.heat.temperature[:, made : made + 1] = heat.temperature
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


def _step(problem: Problem, plan: Cycle, state: State, g: Tensor, key: Tensor, step: int) -> State:
    now, N = plan.at(step), len(problem.x)
    if now.adapts:
        state = adapted(state, g, N)
    s = step_scale(state, now.lr, N, problem.coordinates.precision(problem.prior_precision))
    kick: Tensor | float = 0.0  # sqrt(2 (1 - beta) T) n
    if now.temperature > 0:
        # n is a function of (seed, chain, step): a chain is the same in any company, on any device
        n = normal(key, torch.full_like(key, step), MOMENTUM, g.shape[1]).to(g)  # [M, D]
        kick = math.sqrt(2 * (1 - plan.momentum) * now.temperature) * n
    return move_chains(state, g, s, plan.momentum, kick)


class Gradient:
    """N nll [M] on the rows [M, B], and dU / dq = N dnll / dq + lambda (q - mean), [M, D].

    Every batch of a random order is a random part of the data: its mean is that of all the data on
    average. On a GPU the network's part is a CUDA graph, one for each size
    of batch, since Python needs longer to ask for its operations than the GPU to do them.
    """

    def __init__(self, problem: Problem, data_term: DataTerm) -> None:
        self._problem, self._data_term = problem, data_term
        self._graphs: dict[int, Replayed] = {}
        self._record = problem.x.is_cuda

    def __call__(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        energy, slope = self.of_data(q, rows, step)
        coordinates = self._problem.coordinates
        pull = coordinates.precision(self._problem.prior_precision)  # lambda, or [D] of them
        away = q.detach() if coordinates.mean is None else q.detach() - coordinates.mean
        return energy, slope + pull * away

    def of_data(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        """N nll [M] and N dnll / dq [M, D], without the prior."""
        if self._record:
            nll, slope = self._replayed(q, rows, step)
        else:
            nll, slope = self._slope(q, step, rows)
        N = len(self._problem.x)
        return N * nll.double(), N * slope

    def _slope(
        self, q: Tensor, step: int | Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            nll = self._data_term(unflatten(q, self._problem.shapes), rows, step)  # [M]
            (slope,) = torch.autograd.grad(nll.sum(), q)  # summed: each chain has its own, whole
        return nll.detach(), slope

    def _replayed(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        inputs = (q, torch.full((1,), step, device=q.device), *([] if rows is None else [rows]))
        size = 0 if rows is None else rows.shape[1]
        try:
            if size not in self._graphs:
                self._graphs[size] = Replayed(self._slope, *inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning("chains run without a CUDA graph: %s", error)
            self._record = False
            return self._slope(q, step, rows)
        nll, slope = self._graphs[size](*inputs)
        return nll, slope


def gradient_in_w(problem: Problem, data_term: DataTerm) -> Gradient:
    """With respect to coordinates in which the prior is the same for all parameters."""
    coordinates = problem.coordinates
    if coordinates.plain:
        return Gradient(problem, data_term)

    def of_w(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        theta = coordinates.theta(flatten(params))
        return data_term(unflatten(theta, problem.shapes), rows, step)

    return Gradient(problem, of_w)


def batches(problem: Problem, batch_size: int) -> Iterator[Tensor | None]:
    """Rows [M, B] of each chain, epoch after epoch for ever; None for all of the data.

    What is left over at the end of an epoch begins the first batch of the next one. A short batch
    of its own would have a gradient with more noise, which heats the chain, and its rows would
    count more than the others.
    """
    if batch_size >= len(problem.x):
        yield from itertools.repeat(None)
    left = torch.zeros(len(problem.ids), 0, dtype=torch.int64, device=problem.x.device)
    for epoch in itertools.count():
        order = permutations(
            len(problem.x),
            seed=problem.seed,
            members=problem.ids,
            epoch=epoch,
            device=problem.x.device,
        )  # [M, N]
        left = torch.cat([left, order], 1)
        while left.shape[1] >= batch_size:
            batch, left = left[:, :batch_size], left[:, batch_size:]
            yield batch


def data_term_for(problem: Problem, batch_size: int | None, steps: int) -> Term:
    """The mean NLL of each chain on its rows, [M]. steps: about how many are to be made."""
    run, everything = problem.run, len(problem.x)
    batch = min(batch_size or everything, everything)
    way = Way(
        engine=problem.engine,
        fast=run.way in ("auto", "fused", "compile"),
        compile=run.way == "compile",
        bf16=run.bf16,
        batch=batch,
        examples=float(steps) * batch * len(problem.ids),
        own_rows=batch_size is not None and batch_size < everything,
    )
    net, x = problem.computed
    data = InMemory(x, problem.y)
    if run.way == "fused":
        refuse_unfused(net, problem.likelihood, data)
    return data_term(net, problem.likelihood, data, problem.ids, problem.seed, way)


def told(term: Term, bar: Bar) -> DataTerm:
    """The same, which says when it compiles: at its first call for each size of batch."""
    if not term.compiled:
        return term.of
    met: set[int | None] = set()

    def of(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        size = None if rows is None else rows.shape[1]
        with compiling(bar, size not in met):
            met.add(size)
            return term.of(params, rows, step)

    return of


def refuse_bad_start(energy: Tensor, ids: tuple[int, ...]) -> None:
    """Name the first chain whose likelihood [M] is no number where it begins."""
    for chain, value in zip(ids, energy.tolist(), strict=True):
        if not math.isfinite(value):
            raise InputError(
                f"chain {chain} cannot start: its log likelihood is {-value}; give another start"
            )
