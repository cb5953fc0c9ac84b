"""The one training loop: all members at once, each as if it were alone."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stochens import objective
from stochens.data import Source
from stochens.errors import InputError
from stochens.members import Params, flatten, size
from stochens.posterior.history import Recorder
from stochens.prior import Centred
from stochens.program.data_term import InMemory, Term, Way, data_term
from stochens.program.loader_term import loader_term
from stochens.randomness.seeds import NOISE, member_seed, seeded
from stochens.run.progress import compiling
from stochens.streams import Reader
from stochens.training.arrival import DRAWS, LEAST, distance_left, how_many, warn_far
from stochens.training.augmented import augmented_term
from stochens.training.batches import all_at_once, epochs_of, steps_per_epoch
from stochens.training.natural import NaturalGradient, drawn_term
from stochens.training.own_optimizer import own_optimizer
from stochens.training.schedules import (
    optimizer_named,
    restarts,
    schedule_named,
    warmed_up,
)
from stochens.training.selection import Validator, validation_nll
from stochens.training.shares import Shares
from stochens.training.snapshot import Held, restore_snapshot, take_snapshot
from stochens.training.step import (
    Batch,
    EagerStep,
    Loss,
    LossOf,
    Passes,
    ShareOf,
    Step,
    record_step,
    size_of,
)
from stochens.training.task import Lost, Settings, Task, Trained, Watchers
from stochens.training.views import chosen_state, looked_at, view_of
from stochens.trees import Input


def train(task: Task, start: Params, members: tuple[int, ...], watchers: Watchers) -> Trained:
    """Train one block of members: the loop itself. It goes on from what `watchers.keep` has found,
    and trains the tensors of `start` [M, ...] themselves."""
    net, data, likelihood, settings, prior_of, *_ = task
    collector, bar, log, keep, callbacks, *_ = watchers
    params = {name: p.detach().requires_grad_() for name, p in start.items()}
    share_of = Shares(data, settings.batch_size, settings.accumulate)
    prior: float | Centred = settings.prior_precision
    if prior_of is not None:
        prior = prior_of(members, settings.seed)
    penalty = objective.penalty_for(net, params, prior)
    net.train()
    term = _data_term(task, members)
    rate = warmed_up(schedule_named(settings.schedule), settings.warmup)
    per_epoch = steps_per_epoch(data, settings)
    steps = settings.epochs * per_epoch
    fresh = restarts(settings.schedule, steps)
    validator: Validator | None = None
    recorder = Recorder(len(members), settings.device)
    optimizer: torch.optim.Optimizer
    means = penalty.means
    if settings.natural is not None:
        optimizer = natural = _natural(task, params, penalty, members, steps)
        at_means = term.of
        term = term._replace(of=drawn_term(term.of, natural))
        of_means = penalty.of
        penalty = penalty._replace(of=lambda params: of_means(params) + natural.kl_of_sigma())
        means = None  # it has them
    elif settings.own is not None:
        optimizer = own_optimizer(settings.own, params)
        penalty, means = penalty._replace(slopes=None), None  # the prior is in the loss
        term = term._replace(recordable=False)  # nobody knows what it does between two steps
    else:
        optimizer = optimizer_named(
            settings.optimizer,
            params,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            l2=_l2(penalty, data, settings),
            noise=likelihood.noise_parameter(),
            capturable=term.recordable,
        )
    loss_of = _loss(task, term.of, params, share_of, penalty)
    several = settings.accumulate > 1
    passes = Passes(settings.batch_size, settings.accumulate) if several else None
    move: Step = EagerStep(
        params,
        loss_of,
        optimizer,
        recorder,
        share_of,
        means,
        clip=settings.clip,
        passes=passes,
    )
    draws = _draws(loss_of, params, data, settings)
    if task.held is not None:
        state, params_of = looked_at(params, optimizer)
        nll = validation_nll(task, task.held, members, params_of, draws=draws)
        validator = Validator(task.held, nll, state)
    device = settings.device if draws else None
    reader = None if data.stream is None else Reader(data.stream, settings.seed)
    held = Held(params, optimizer, recorder, collector, validator, callbacks, device, reader)

    def call(event: str, step: int) -> None:
        if callbacks:
            last_rate = settings.lr * rate((step - 1) / steps) if step else 0.0
            where = {"step": step, "steps": steps, "lr": last_rate, "epochs": settings.epochs}
            view = view_of(task, members, held, validator, watchers, **where)
            callbacks.call(event, view, lambda: keep.now(step, lambda: take_snapshot(step, held)))

    seed = member_seed(settings.seed, members[0], NOISE)
    stream = seeded(seed, settings.device) if draws else contextlib.nullcontext()
    with term.context, _on(settings.device), stream:
        step = 0 if keep.found is None else restore_snapshot(keep.found, held)
        if step == 0 and isinstance(optimizer, NaturalGradient):
            optimizer.begin(at_means, _first_batch(data, members, settings))
        bar.advance(step * len(members))
        done, began = step, time.monotonic()
        met: set[int | None] = set()  # sizes of batches, each of which is compiled by itself
        call("begin", step)
        for epoch, batches in epochs_of(data, members, settings, first=step, reader=reader):
            if callbacks.reached(epoch) or (validator is not None and validator.all_stopped()):
                break
            for batch in batches:
                with compiling(bar, term.compiled and size_of(batch) not in met):
                    if step == done and isinstance(move, EagerStep) and term.recordable:
                        move = record_step(move, batch)
                    if step in fresh:
                        move.restart()
                    move(batch, step, rate=settings.lr * rate(step / steps))
                met.add(size_of(batch))
                step += 1
                if collector is not None:
                    collector.update(params, step=step, steps=steps)
                bar.advance(len(members))
                if data.loader is None and step % per_epoch:  # a loader has no place inside
                    keep(step, lambda: take_snapshot(step, held))  # noqa: B023, called at once
            recorder.end_epoch()
            stopped = None
            if validator is not None:
                stopped = validator.stopped  # before this epoch
                validator.end_epoch()
            if bar.wants_note:  # a look at the loss waits for the GPU
                speed = (step - done) * len(members) / (time.monotonic() - began)
                seen = "" if validator is None else validator.note()
                bar.note(
                    f"loss {recorder.mean_loss(stopped):.4g}{seen}, {speed:,.0f} member-steps/s"
                )
            if log is not None:
                values = {
                    "loss": recorder.mean_loss(stopped),
                    "lr": settings.lr * rate(step / steps),
                }
                if validator is not None:
                    values["validation"] = float(validator.newest.nanmean())
                log(epoch, values)
            call("epoch", step)
            keep(step, lambda: take_snapshot(step, held))  # noqa: B023, called at once
        bar.advance((steps - step) * len(members))  # where all have stopped
        keep.now(steps, lambda: take_snapshot(steps, held))
        call("end", step)
        if isinstance(optimizer, NaturalGradient) and not (validator and validator.chooses):
            further = dataclasses.replace(settings, epochs=settings.epochs + 1)
            batches = next(epochs_of(data, members, further, first=steps, reader=reader))[1]
            most = how_many(steps) if data.loader is None else LEAST  # which are kept
            some = list(itertools.islice(batches, most))
            some *= math.ceil(DRAWS / len(some))
            weighed = [(share_of(batch), batch) for batch in some]
            left = distance_left(optimizer, at_means, weighed, whole=per_epoch <= most)
            warn_far(left.where(recorder.lost_at.to(left.device) < 0, 0.0), members)
    trained = {name: p.detach() for name, p in params.items()}
    averaged, low_rank = (trained, None) if collector is None else collector.finish(trained)
    if isinstance(optimizer, NaturalGradient):
        low_rank = optimizer.gaussian()
    last = torch.full((len(members),), len(recorder.rows) - 1)
    if validator is None:
        history = recorder.history(settings.epochs, last)
    else:
        last = torch.where(validator.stopped.cpu(), validator.last.cpu(), last)
        history = validator.completed(recorder.history(settings.epochs, last))
        averaged, low_rank = chosen_state(validator.chosen(), low_rank)
    lost = _lost(members, averaged, recorder, until=(last + 1) * per_epoch)
    return Trained(averaged, low_rank, history, lost)


def _lost(
    members: tuple[int, ...], params: Params, recorder: Recorder, *, until: Tensor
) -> dict[int, Lost]:
    """Of each member that is lost the step and its loss there. What comes after the steps `until`
    [M] is no part of a member's training."""
    at, by = recorder.lost_at.cpu(), recorder.lost_by.cpu()
    at = torch.where(at < until, at, -1)
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


def _first_batch(data: Source, members: tuple[int, ...], settings: Settings) -> Batch:
    if data.loader is not None:  # which is not begun for this
        return data.x.to(settings.device), data.y.to(settings.device)
    return next(next(epochs_of(data, members, settings))[1])


def _natural(
    task: Task,
    params: Params,
    penalty: objective.Penalty,
    members: tuple[int, ...],
    steps: int,
) -> NaturalGradient:
    settings = task.settings
    assert settings.natural is not None
    if penalty.slopes is None:
        raise InputError(
            "natural gradients learn a Gaussian of every parameter, and the method has sigmas of "
            "its own; use another method than 'gaussian', or another optimizer"
        )
    return NaturalGradient(
        params,
        settings.natural,
        lr=settings.lr,
        examples=task.data.examples / settings.kl_weight,
        slopes=penalty.slopes,
        means=penalty.means,
        steps=steps,
        members=members,
        seed=settings.seed,
    )


def _l2(penalty: objective.Penalty, data: Source, settings: Settings) -> dict[str, float] | None:
    """What the gradient of kl_weight KL / N is of each parameter, where the optimiser adds it."""
    if penalty.slopes is None:
        return None
    factor = settings.kl_weight / data.examples
    return {name: factor * slope for name, slope in penalty.slopes.items()}


def _data_term(task: Task, members: tuple[int, ...]) -> Term:
    """The mean NLL of each member on its batch, [M]."""
    net, data, likelihood, settings, _, kept, _ = task
    if data.augment is not None:
        return augmented_term(task, members)
    in_memory = data.loader is None
    way = Way(
        engine=settings.engine,
        fast=settings.fast,
        compile=True if settings.compile else None,
        bf16=settings.bf16,
        bf16_programs=True,
        batch=settings.batch_size if in_memory else len(data.x),
        examples=settings.epochs * data.size * len(members),
        own_rows=in_memory and not all_at_once(data, settings.batch_size),
        # not where gradients of several passes are summed, or compared
        reuse=settings.accumulate == 1 and settings.natural is None,
    )
    if not in_memory:
        return _loader_term(task, members, way)
    net, x = (net, data.x) if kept is None else (kept.net, kept.x)
    given = InMemory(x, data.y, data.weights)
    return data_term(net, likelihood, given, members, settings.seed, way)


def _loader_term(task: Task, members: tuple[int, ...], way: Way) -> Term:
    """Of batches as the loader gives them: on some device, with targets nobody has looked at."""
    net, data, likelihood, settings, *_ = task
    device = settings.device

    def checked(batch: tuple[Input, Tensor]) -> tuple[Input, Tensor]:
        x, y = batch
        return x.to(device), likelihood.check_targets(y).to(device)

    term = loader_term(net, likelihood, (data.x, data.y), members, settings.seed, way)
    return term._replace(of=lambda params, batch, step: term.of(params, checked(batch), step))
