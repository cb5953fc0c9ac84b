"""A training that is ready to begin, and how it is done for all members."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from stochens.members import Params, move
from stochens.randomness.seeds import RETRY, derive
from stochens.run.progress import Log, Show, progress_bar
from stochens.training.batches import steps_per_epoch
from stochens.training.blocks import in_blocks, tried_again
from stochens.training.callbacks import Callbacks
from stochens.training.folder import held_by, keeper
from stochens.training.loop import train
from stochens.training.task import Collector, SoFar, Task, Trained, Watchers

SLOWER = 0.25  # the rate of members that are trained again by natural gradients


class First(Protocol):
    """Where these members begin, [m, ...], in tensors that are training's to change."""

    def __call__(self, own: tuple[int, ...], seed: int) -> Params: ...


class Work(NamedTuple):
    """All but the members."""

    task: Task
    together: int  # members at a time
    collect: Callable[[], Collector] | None
    checkpoint: str | Path | None
    every: float  # seconds between checkpoints
    whose: dict[str, Any]  # what a checkpoint must share, as `identity` says
    so_far: SoFar
    callbacks: Callbacks

    @property
    def steps(self) -> int:
        settings = self.task.settings
        return settings.epochs * steps_per_epoch(self.task.data, settings)

    def done(
        self,
        first: First,
        ids: tuple[int, ...],
        *,
        again: bool,
        progress: Show,
        log: Log | None,
    ) -> Trained:
        """All members; `again`: whether those that are lost begin once more, from other seeds."""
        settings = self.task.settings
        seed, coupled = settings.seed, settings.repulsion is not None
        # how long a Newton step may be depends on how parameters go together, which no sigma tells
        slower = 1.0 if settings.natural is None else SLOWER
        with contextlib.ExitStack() as held:
            stop = held_by(held, self.checkpoint)
            total = self.steps * len(ids)
            bar = held.enter_context(progress_bar("training", total=total, show=progress))

            def block(
                part: Params,
                own: tuple[int, ...],
                *,
                seed: int = seed,
                lr: float = settings.lr,
                name: str,
            ) -> Trained:
                watch = self.collect() if self.collect else None
                folder = None if self.checkpoint is None else Path(self.checkpoint) / name
                keep = keeper(folder, self.every, self.whose, part, own, watch, stop)
                settled = dataclasses.replace(settings, seed=seed, lr=lr)
                mine = self.task._replace(settings=settled)
                start = move(part, settings.device)
                seen = (self.callbacks, self.so_far, len(ids))
                watchers = Watchers(watch, bar, log, keep, *seen)
                before = bar.done
                try:
                    return train(mine, start, own, watchers)
                except torch.OutOfMemoryError:  # its members begin again, fewer at a time
                    bar.extend(bar.done - before)
                    raise

            def once_more(own: tuple[int, ...], attempt: int) -> Trained:
                anew = derive(seed, RETRY, attempt)
                bar.extend(self.steps * len(own))
                once = functools.partial(block, seed=anew, lr=settings.lr * slower**attempt)
                prefix = f"again-{attempt}-"
                begin = functools.partial(first, seed=anew)
                return in_blocks(once, begin, own, self.together, prefix=prefix)

            begin = functools.partial(first, seed=seed)
            trained = in_blocks(block, begin, ids, self.together, coupled=coupled)
            how = "" if slower == 1 else f", each time at {slower:g} of the rate before"
            return tried_again(trained, ids, once_more, how) if again else trained
