"""The one training loop: all members at once, each as if it were alone."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stochens import objective
from stochens.data import Source
from stochens.likelihoods import Likelihood, learned_noise
from stochens.members import Engine, Params, flatten, size
from stochens.posterior.history import History, Recorder
from stochens.posterior.low_rank import LowRankGaussian
from stochens.prior import Centred
from stochens.program.data_term import Data, Term, Way, data_term, with_own_noise
from stochens.program.features import Kept
from stochens.randomness.seeds import NOISE, member_seed, permutations, seeded
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar, Log
from stochens.training.bootstrap import bootstrap_rows
from stochens.training.schedules import optimizer_named, restarts, schedule_named
from stochens.training.shares import Shares
from stochens.training.snapshot import Held, restore_snapshot, take_snapshot
from stochens.training.step import Batch, EagerStep, Loss, LossOf, ShareOf, Step, record_step
from stochens.trees import Input


class Collector(Protocol):
    """Watches the parameters of a block of members while they train (SWA, SWAG)."""

    def update(self, params: Params, *, step: int, steps: int) -> None: ...

    def finish(self, params: Params) -> tuple[Params, LowRankGaussian | None]: ...

    def state(self) -> Params:
        """To go on with later; `restore` takes it back."""

    def restore(self, state: Params) -> None: ...

    def settings(self) -> dict[str, Any]:
        """What one that goes on must share with the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the loop needs to know; `fit` checks it."""

    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    weight_decay: float
    schedule: str
    prior_precision: float
    kl_weight: float
    repulsion: float | None
    seed: int
    device: torch.device
    bf16: bool | None  # None: by kernels alone
    tf32: bool
    engine: Engine
    fast: bool  # whether kernels and CUDA graphs may do the work
    compile: bool  # whether torch.compile does


class Task(NamedTuple):
    """What is trained, on what and how: all but the members and where they begin."""

    net: nn.Module
    data: Source
    likelihood: Likelihood
    settings: Settings
    # of these members by this seed; None: N(0, 1 / prior_precision)
    prior: Callable[[tuple[int, ...], int], Centred] | None = None
    kept: Kept | None = None  # features, where a part of the network is the same for all members


class Watchers(NamedTuple):
    """Who looks on while a block of members trains."""

    collector: Collector | None
    bar: Bar
    log: Log | None
    keep: Keeper


class Lost(NamedTuple):
    """When a member's loss was no number for the first time, and what it was."""

    step: int  # -1: never, but its parameters are none
    loss: float


class Trained(NamedTuple):
    params: Params
    low_rank: LowRankGaussian | None
    history: History
    lost: dict[int, Lost]  # by member


def train(task: Task, start: Params, members: tuple[int, ...], watchers: Watchers) -> Trained:
    """Train one block of members: the loop itself. It goes on from what `watchers.keep` has found,
    and trains the tensors of `start` [M, ...] themselves."""
    net, data, likelihood, settings, prior_of, _ = task
    collector, bar, log, keep = watchers
    params = {name: p.detach().requires_grad_() for name, p in start.items()}
    share_of = Shares(data, settings.batch_size)
    prior: float | Centred = settings.prior_precision
    if prior_of is not None:
        prior = prior_of(members, settings.seed)
    penalty = objective.penalty_for(net, params, prior)
    net.train()
    term = _data_term(task, members)
    loss_of = _loss(task, term.of, params, share_of, penalty)
    rate = schedule_named(settings.schedule)
    per_epoch = steps_per_epoch(data, settings)
    steps = settings.epochs * per_epoch
    fresh = restarts(settings.schedule, steps)
    recorder = Recorder(len(members), settings.device)
    optimizer = optimizer_named(
        settings.optimizer,
        params,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        l2=_l2(penalty, data, settings),
        noise=learned_noise(likelihood),
        capturable=term.recordable,
    )
    move: Step = EagerStep(params, loss_of, optimizer, recorder, share_of, penalty.means)
    draws = _draws(loss_of, params, data, settings)
    held = Held(params, optimizer, recorder, collector, settings.device if draws else None)
    seed = member_seed(settings.seed, members[0], NOISE)
    stream = seeded(seed, settings.device) if draws else contextlib.nullcontext()
    with term.context, _on(settings.device), stream:
        step = 0 if keep.found is None else restore_snapshot(keep.found, held)
        bar.advance(step * len(members))
        done, began = step, time.monotonic()
        for epoch, batches in _epochs(data, members, settings, first=step):
            for batch in batches:
                if step == done and term.compiled:
                    bar.note("compiling the program; it is kept for the next run")
                if step == done and isinstance(move, EagerStep) and term.recordable:
                    move = record_step(move, batch)
                if step in fresh:
                    move.restart()
                move(batch, step, rate=settings.lr * rate(step / steps))
                step += 1
                if collector is not None:
                    collector.update(params, step=step, steps=steps)
                bar.advance(len(members))
                if data.loader is None and step % per_epoch:  # a loader has no place inside
                    keep(step, lambda: take_snapshot(step, held))  # noqa: B023, called at once
            recorder.end_epoch()
            if bar.wants_note:  # a look at the loss waits for the GPU
                speed = (step - done) * len(members) / (time.monotonic() - began)
                bar.note(f"loss {recorder.mean_loss():.4g}, {speed:,.0f} member-steps/s")
            if log is not None:
                log(epoch, {"loss": recorder.mean_loss(), "lr": settings.lr * rate(step / steps)})
            keep(step, lambda: take_snapshot(step, held))  # noqa: B023, called at once
        keep.now(steps, lambda: take_snapshot(steps, held))
    trained = {name: p.detach() for name, p in params.items()}
    averaged, low_rank = (trained, None) if collector is None else collector.finish(trained)
    return Trained(averaged, low_rank, recorder.history(), _lost(members, averaged, recorder))


def _lost(members: tuple[int, ...], params: Params, recorder: Recorder) -> dict[int, Lost]:
    """Of each member that is lost the step and its loss there."""
    at, by = recorder.lost_at.cpu(), recorder.lost_by.cpu()
    whole = torch.stack([flatten({n: p}).isfinite().all(1) for n, p in params.items()]).all(0).cpu()
    return {
        member: Lost(int(at[row]), float(by[row]))
        for row, member in enumerate(members)
        if at[row] >= 0 or not whole[row]
    }


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Graphs are recorded, and random numbers kept, on the device that is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _draws(loss_of: LossOf, params: Params, data: Source, settings: Settings) -> bool:
    """Whether training draws from torch's own generator, as a network's own dropout does and a
    DataLoader. Threads share that, so that such trainings wait for each other; on a GPU all do,
    since no other thread may call it while a graph is recorded."""
    if data.loader is not None or settings.compile or settings.device.type != "cpu":
        return True
    rows = None  # as the steps have them: a network may not bear rows of each member's own
    if not all_at_once(data, settings.batch_size):
        rows = torch.zeros(size(params), 4, dtype=torch.int64)
    with torch.no_grad(), seeded(0):
        before = torch.get_rng_state()
        loss_of(params, rows, 0)
        return not torch.equal(torch.get_rng_state(), before)


def _loss(
    task: Task,
    data_term: Callable[[Params, Any, int | Tensor], Tensor],
    params: Params,
    share_of: ShareOf,
    penalty: objective.Penalty,
) -> LossOf:
    """What a step minimises and records."""
    net, data, settings = task.net, task.data, task.settings
    noise_gain = objective.stochasticity(objective.mixtures(net, params))

    def loss_of(params: Params, batch: Batch, step: int | Tensor) -> Loss:
        nll = data_term(params, batch, step)  # [M]
        with torch.set_grad_enabled(penalty.slopes is None):
            kl = penalty.of(params)  # [M]
        minimised = nll
        if settings.repulsion is not None:
            parts = objective.mixtures(net, params)
            kl = kl + objective.repulsive_bound(parts, settings.repulsion)
        if kl.requires_grad:
            minimised = minimised + settings.kl_weight * kl / data.examples
        if (share := share_of(batch)) != 1:
            minimised = share * minimised
        return Loss(minimised, nll, data.examples * nll + kl + noise_gain)

    return loss_of


def _l2(penalty: objective.Penalty, data: Source, settings: Settings) -> dict[str, float] | None:
    """What the gradient of kl_weight KL / N is of each parameter, where the optimiser adds it."""
    if penalty.slopes is None:
        return None
    factor = settings.kl_weight / data.examples
    return {name: factor * slope for name, slope in penalty.slopes.items()}


def _data_term(task: Task, members: tuple[int, ...]) -> Term:
    """The mean NLL of each member on its batch, [M]."""
    net, data, likelihood, settings, _, kept = task
    if data.loader is not None:
        return _loader_term(task, members)
    way = Way(
        engine=settings.engine,
        fast=settings.fast,
        compile=True if settings.compile else None,
        bf16=settings.bf16,
        bf16_programs=True,
        batch=settings.batch_size,
        examples=settings.epochs * data.size * len(members),
        own_rows=not all_at_once(data, settings.batch_size),
    )
    net, x = (net, data.x) if kept is None else (kept.net, kept.x)
    return data_term(net, likelihood, Data(x, data.y, data.weights), members, settings.seed, way)


def _loader_term(task: Task, members: tuple[int, ...]) -> Term:
    """By the engine: batches of a loader come in other shapes and other memory each time."""
    net, likelihood, settings = task.net, task.likelihood, task.settings
    mean_nll = objective.mean_nll(
        net, likelihood, engine=settings.engine, bf16=bool(settings.bf16), check=True
    )

    def of_batch(params: Params, batch: Any, step: int | Tensor) -> Tensor:
        return mean_nll(params, *_checked(batch, likelihood, settings), None)

    return Term(with_own_noise(of_batch, members, settings.seed, settings.device))


def _epochs(
    data: Source, members: tuple[int, ...], settings: Settings, *, first: int = 0
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """The batches of each epoch that is left after the `first` steps, with its number."""
    begun, skipped = divmod(first, steps_per_epoch(data, settings))
    left = range(begun, settings.epochs)
    if data.loader is not None:
        yield from ((epoch, data.batches()) for epoch in left)
    elif all_at_once(data, settings.batch_size):
        yield from ((epoch, iter([None])) for epoch in left)
    else:
        place = torch.tensor([k % data.sets * data.size for k in members], device=settings.device)
        shuffle = functools.partial(
            permutations, data.size, seed=settings.seed, members=members, device=settings.device
        )
        drawn = None
        if data.bootstrap:
            drawn = bootstrap_rows(data, members=members, seed=settings.seed).to(settings.device)
        for epoch, order in zip(left, _ahead(shuffle, left, settings), strict=True):  # [M, N]
            order = order if drawn is None else drawn.gather(1, order)
            batches = (order + place.unsqueeze(1)).split(settings.batch_size, dim=1)
            yield epoch, iter(batches[skipped if epoch == begun else 0 :])


def all_at_once(data: Source, batch_size: int) -> bool:
    """Whether every batch is all of the data, the same rows for all members."""
    return batch_size >= data.size and data.sets == 1 and not data.bootstrap


def _ahead(shuffle: Callable[..., Tensor], epochs: range, settings: Settings) -> Iterator[Tensor]:
    """The order of each epoch. While one trains, a thread shuffles for the next; a GPU does it by
    itself, and no thread may call it while a graph is recorded."""
    if settings.device.type == "cuda":
        yield from (shuffle(epoch=epoch) for epoch in epochs)
        return
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(shuffle, epoch=epochs.start)
        for epoch in epochs:
            order = coming.result()
            if epoch + 1 in epochs:
                coming = thread.submit(shuffle, epoch=epoch + 1)
            yield order


def steps_per_epoch(data: Source, settings: Settings) -> int:
    if data.loader is not None:
        return len(data.loader)
    return math.ceil(data.size / settings.batch_size)


def _checked(
    batch: tuple[Input, Tensor], likelihood: Likelihood, settings: Settings
) -> tuple[Input, Tensor]:
    x, y = batch
    return x.to(settings.device), likelihood.check_targets(y).to(settings.device)
