"""The batches of a training: which rows each step has, by (seed, member, epoch) alone."""

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stochens.data import Source
from stochens.errors import TrainingAdvice, outside
from stochens.randomness.seeds import permutations
from stochens.streams import Reader
from stochens.training.bootstrap import bootstrap_rows
from stochens.training.step import Batch, Several
from stochens.training.task import Settings
from stochens.trees import Input


def epochs_of(
    data: Source,
    members: tuple[int, ...],
    settings: Settings,
    *,
    first: int = 0,
    reader: Reader | None = None,
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """The batches of each epoch that is left after the `first` steps, with its number. reader: of
    a stream, where it is after these steps."""
    begun, skipped = divmod(first, steps_per_epoch(data, settings))
    left = range(begun, settings.epochs)
    if data.stream is not None:
        reader, count = reader or Reader(data.stream, settings.seed), data.stream.batches
        yield from ((epoch, _grouped(reader.take(count), settings.accumulate)) for epoch in left)
    elif data.loader is not None:
        for epoch in left:
            batches = data.batches()
            if epoch == begun and _of_ones_own(data.loader):
                batches = _counted(batches, data.size)
            yield epoch, _grouped(batches, settings.accumulate)
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
            batches = (order + place.unsqueeze(1)).split(rows_of_step(data, settings), dim=1)
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
    if data.stream is not None:
        return math.ceil(data.stream.batches / settings.accumulate)
    if data.loader is not None:
        return math.ceil(len(data.loader) / settings.accumulate)
    return math.ceil(data.size / rows_of_step(data, settings))


def rows_of_step(data: Source, settings: Settings) -> int:
    """Of data in memory: those of the batches that make a step."""
    return max(1, min(settings.batch_size * settings.accumulate, data.size))


def _of_ones_own(loader: "DataLoader[Any]") -> bool:
    """Whether nothing tells how many rows an epoch of it has: a sampler of batches of one's own, or
    a stream. torch's samplers do, and those that show other rows in the next epoch are fine."""
    return isinstance(loader.dataset, IterableDataset) or not isinstance(
        loader.batch_sampler, BatchSampler
    )


def _counted(batches: Iterator[tuple[Input, Tensor]], size: int) -> Iterator[tuple[Input, Tensor]]:
    """The batches of an epoch, and a warning where they leave out as many rows as a batch has."""
    rows = longest = 0
    for x, y in batches:
        yield x, y
        rows, longest = rows + len(y), max(longest, len(y))
    if rows + longest <= size:
        warnings.warn(
            f"the DataLoader showed {rows:,} rows in its first epoch, and its data set has "
            f"{size:,}, which the prior is weighed against. If the others never come, it is too "
            f"weak by a factor of {size / max(rows, 1):.3g}: give a torch.utils.data.Subset of the "
            "rows that do",
            TrainingAdvice,
            stacklevel=outside(),
        )


def _grouped(batches: Iterator[tuple[Input, Tensor]], together: int) -> Iterator[Batch]:
    """A loader's batches, or as many of them as make a step, as a list."""
    if together == 1:
        yield from batches
        return
    while some := Several(itertools.islice(batches, together)):
        yield some
