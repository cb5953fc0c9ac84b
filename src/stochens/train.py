"""The one training loop: all members at once, each as if it were alone."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor, nn

from stochens import objective
from stochens.data.source import Source
from stochens.history import History, Recorder
from stochens.kernels.fused import fused_nll
from stochens.kernels.mlp import alone_on_the_cores
from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params, forward, forward_each, size
from stochens.progress import Bar, Log
from stochens.randomness import NOISE, member_seed, permutations, seeded
from stochens.schedules import optimizer_named, restarts, schedule_named
from stochens.spread import Spread


class Collector(Protocol):
    """Watches the parameters of a block of members while they train (SWA, SWAG)."""

    def update(self, params: Params, *, step: int, steps: int) -> None: ...

    def finish(self, params: Params) -> tuple[Params, Spread | None]: ...


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
    temperature: float
    repulsion: float | None
    seed: int
    device: torch.device
    bf16: bool
    engine: Engine
    fused: bool


def train(
    net: nn.Module,
    start: Params,
    data: Source,
    likelihood: Likelihood,
    members: tuple[int, ...],
    settings: Settings,
    collector: Collector | None,
    bar: Bar,
    log: Log,
) -> tuple[Params, Spread | None, History]:
    """Train one block of members: the loop itself."""
    params = {name: p.detach().clone().requires_grad_() for name, p in start.items()}
    data_term, context = _data_term(net, data, likelihood, members, settings)
    rate = schedule_named(settings.schedule)
    per_epoch = steps_per_epoch(data, settings)
    steps = settings.epochs * per_epoch
    fresh = restarts(settings.schedule, steps)
    optimizer = _optimizer(params, settings)
    recorder = Recorder(len(members), settings.device)
    noise_gain = objective.stochasticity(objective.mixtures(net, params))
    net.train()
    step, began = 0, time.monotonic()
    with context, seeded(member_seed(settings.seed, members[0], NOISE), settings.device):
        for epoch, batches in enumerate(_epochs(data, members, settings)):
            for batch in batches:
                if step in fresh:
                    optimizer = _optimizer(params, settings)
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * rate(step / steps)
                nll = data_term(params, batch, step)  # [M]
                kl = objective.penalty(net, params, settings.prior_precision)  # [M]
                if settings.repulsion is not None:
                    parts = objective.mixtures(net, params)
                    kl = kl + objective.repulsive_bound(parts, settings.repulsion)
                loss = nll + settings.temperature * kl / data.size  # [M]
                loss.sum().backward()  # summed, so that each member has its own gradient, whole
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                recorder.step(nll.detach(), (data.size * nll + kl).detach() + noise_gain)
                step += 1
                if collector is not None:
                    collector.update(params, step=step, steps=steps)
                bar.advance(len(members))
            mean_loss = recorder.end_epoch()
            speed = step * len(members) / (time.monotonic() - began)
            bar.note(f"loss {mean_loss:.4g}, {speed:,.0f} member-steps/s")
            log(epoch, {"loss": mean_loss, "lr": settings.lr * rate(step / steps)})
    trained = {name: p.detach() for name, p in params.items()}
    if collector is None:
        return trained, None, recorder.history()
    averaged, spread = collector.finish(trained)
    return averaged, spread, recorder.history()


Batch = Tensor | tuple[Tensor, Tensor] | None  # rows [M, B]; a loader's (x, y); all of the data
DataTerm = Callable[[Params, Batch, int], Tensor]


def _epochs(
    data: Source, members: tuple[int, ...], settings: Settings
) -> Iterator[Iterator[Batch]]:
    """The batches of each epoch. While one trains, a thread shuffles for the next."""
    if data.loader is not None:
        yield from (data.batches() for _ in range(settings.epochs))
    elif settings.batch_size >= data.size:
        yield from (iter([None]) for _ in range(settings.epochs))
    else:
        shuffle = functools.partial(permutations, data.size, seed=settings.seed, members=members)
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(shuffle, epoch=0)
            for epoch in range(settings.epochs):
                order = coming.result()  # [M, N]
                if epoch + 1 < settings.epochs:
                    coming = thread.submit(shuffle, epoch=epoch + 1)
                yield iter(order.to(settings.device).split(settings.batch_size, dim=1))


def steps_per_epoch(data: Source, settings: Settings) -> int:
    if data.loader is not None:
        return len(data.loader)
    return math.ceil(data.size / settings.batch_size)


def _data_term(
    net: nn.Module,
    data: Source,
    likelihood: Likelihood,
    members: tuple[int, ...],
    settings: Settings,
) -> tuple[DataTerm, contextlib.AbstractContextManager[None]]:
    """The mean NLL of each member on its batch, [M], by the fastest way that fits, and the context
    that it wants to run in."""
    if settings.fused and data.loader is None and settings.engine == "vmap":
        fused = fused_nll(net, likelihood, data.x, data.y, members, settings.seed)
        if fused is not None:
            return fused, alone_on_the_cores()

    def data_term(params: Params, batch: Batch, step: int) -> Tensor:
        with torch.autocast(settings.device.type, torch.bfloat16, enabled=settings.bf16):
            if isinstance(batch, Tensor):
                x, y = data.x[batch], data.y[batch]  # [M, B, ...]
                outputs = forward_each(net, params, x, engine=settings.engine)  # [M, B, C]
            else:
                x, y = (data.x, data.y) if batch is None else _checked(batch, likelihood, settings)
                outputs = forward(net, params, x, engine=settings.engine)  # [M, B, C]
                if batch is not None:
                    likelihood.check_outputs(outputs[0], y)  # labels of a loader come unseen
                y = y.expand(size(params), *y.shape)
        return likelihood.nll(outputs, y)

    return data_term, contextlib.nullcontext()


def _checked(
    batch: tuple[Tensor, Tensor], likelihood: Likelihood, settings: Settings
) -> tuple[Tensor, Tensor]:
    x, y = batch
    return x.to(settings.device), likelihood.check_targets(y).to(settings.device)


def _optimizer(params: Params, settings: Settings) -> torch.optim.Optimizer:
    return optimizer_named(
        settings.optimizer, params.values(), lr=settings.lr, weight_decay=settings.weight_decay
    )
