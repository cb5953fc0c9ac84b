"""Tensors, a torch Dataset or a DataLoader, as one kind of thing."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from stochens.errors import InputError
from stochens.randomness.seeds import seeded
from stochens.run.checkpoints import digest

READ = 1024  # rows of a Dataset at a time


class Source(NamedTuple):
    """Where training batches come from.

    `x`, `y` are the whole data set on the device; with a `loader` they are its first batch, and
    every member sees the loader's batches in the loader's order. Of several `sets` they are one
    after the other, and member k sees the set k mod `sets`.
    """

    x: Tensor  # [sets * N, ...]
    y: Tensor  # [sets * N] or [sets * N, D]
    size: int  # N
    loader: "DataLoader[Any] | None" = None
    sets: int = 1
    weights: Tensor | None = None  # [N], of mean 1; None: all rows count the same
    total: float | None = None  # the sum of the weights as they were given
    bootstrap: bool = False  # whether each member has its own resample (training/bootstrap.py)
    odds: Tensor | None = None  # [N], of the rows in it; None: the same for all

    @property
    def examples(self) -> float:
        """How many examples the likelihood is of: N, or the sum of the weights."""
        return float(self.size) if self.total is None else self.total

    def to(self, device: torch.device) -> "Source":
        weights = None if self.weights is None else self.weights.to(device)
        return self._replace(x=self.x.to(device), y=self.y.to(device), weights=weights)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.loader is not None
        for batch in self.loader:
            x, y = _pair(batch)
            _check(x, y)
            yield x, y


class Replicas(tuple[Any, ...]):
    """Several training sets of one size, side by side: member k learns from set k mod D.

    So D data draws cost one training. `posterior.replica(d, D)` is the ensemble of set d.

    >>> x, y = torch.randn(2, 30, 1), torch.zeros(2, 30, dtype=torch.long)
    >>> len(Replicas(zip(x, y)))
    2
    """

    __slots__ = ()


def _side_by_side(data: Replicas) -> Source:
    if not data:
        raise InputError("Replicas holds no data set")
    parts = [source(part) for part in data]
    x, y = [part.x for part in parts], [part.y for part in parts]
    for k, part in enumerate(parts):
        if part.loader is not None:
            raise InputError("Replicas must hold data sets in memory, not DataLoaders")
        if part.x.shape != x[0].shape or part.y.shape != y[0].shape:
            raise InputError(
                "Replicas must hold data sets of one size: the first has x "
                f"{tuple(x[0].shape)} and y {tuple(y[0].shape)}, number {k} x "
                f"{tuple(part.x.shape)} and y {tuple(part.y.shape)}"
            )
    return Source(torch.cat(x), torch.cat(y), parts[0].size, sets=len(parts))


OF_ALL_ROWS = (RandomSampler, SequentialSampler, WeightedRandomSampler)


def source(data: Any, sample_weight: Any = None) -> Source:
    """Read what the user gave. A Dataset is read once into memory; a DataLoader is streamed.

    `sample_weight` [N]: a row of weight w counts as w equal rows; rows of weight 0 are left out.

    >>> source((torch.zeros(6, 2), torch.zeros(6, dtype=torch.long))).size
    6
    """
    if sample_weight is not None:
        return _weighted(source(data), sample_weight)
    if isinstance(data, Replicas):
        return _side_by_side(data)
    if isinstance(data, DataLoader):
        return _streamed(data)
    if isinstance(data, Dataset):
        x, y = _read(data)
    else:
        x, y = _pair(data)
    _check(x, y)
    return Source(x, y, len(x))


def _streamed(loader: "DataLoader[Any]") -> Source:
    with seeded(0):  # a shuffle draws from torch's generator, which threads share
        batch = next(iter(loader), None)
    if batch is None:
        raise InputError("the DataLoader is empty")
    x, y = _pair(batch)
    _check(x, y)
    return Source(x, y, _rows(loader), loader)


def _rows(loader: "DataLoader[Any]") -> int:
    """How many rows the prior is weighed against: those that the loader shows sooner or later. Of a
    sampler that is not torch's own for all rows, it is known how many it shows in an epoch."""
    if loader.batch_sampler is None:  # the data set makes the batches, and its length counts them
        raise InputError(
            "the DataLoader has batch_size=None, so that its data set has a length in batches, and "
            "not in rows, which the prior is weighed against; give it single rows and a batch_size"
        )
    data: Any = loader.dataset
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if isinstance(batches, BatchSampler) else loader.sampler
    try:
        if isinstance(sampler, SequentialSampler) and getattr(batches, "drop_last", False):
            return len(batches) * int(batches.batch_size)  # the last rows are the same every time
        if isinstance(data, IterableDataset) or isinstance(sampler, OF_ALL_ROWS):
            return len(data)
        return min(len(data), len(sampler))
    except TypeError:
        raise InputError(
            "the DataLoader's data set must have a length, the number of its rows, which the prior "
            "is weighed against; give it a __len__"
        ) from None


def _weighted(given: Source, sample_weight: Any) -> Source:
    if given.loader is not None or given.sets > 1:
        what = "a DataLoader" if given.loader is not None else "Replicas"
        raise InputError(f"sample_weight needs one data set in memory, not {what}")
    weights = _tensor(sample_weight, "sample_weight").to(torch.float64)
    if tuple(weights.shape) != (given.size,):
        raise InputError(
            f"sample_weight must be [N] = ({given.size},), one for each row of x, got "
            f"{tuple(weights.shape)}"
        )
    wrong = ~weights.isfinite() | (weights < 0)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"sample_weight must be finite and not negative; row {row} has {weights[row].item()}"
        )
    rows = weights > 0
    if not bool(rows.any()):
        raise InputError("sample_weight is 0 for every row, so there is nothing to learn from")
    x, y, weights = given.x[rows], given.y[rows], weights[rows]  # those of weight 0 say nothing
    total = math.fsum(weights.tolist())  # the same on every machine, unlike a sum in parallel
    if bool((weights == weights[0]).all()):
        return Source(x, y, len(x), total=total)
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    mean_one = (weights * (len(x) / total)).to(dtype)
    return Source(x, y, len(x), weights=mean_one, total=total)


def weighting(sample_weight: Any) -> str | None:
    """A word for weights, which members of one ensemble share; None where all rows count the same.

    >>> weighting([2.0, 2.0]) is None, weighting([0, 1]) == weighting([1, 0])
    (True, False)
    """
    if sample_weight is None:
        return None
    weights = _tensor(sample_weight, "sample_weight").to(torch.float64)
    same = bool((weights == weights.flatten()[0]).all())
    return None if same else digest({"weights": weights})[:16]


def _read(data: "Dataset[Any]") -> tuple[Tensor, Tensor]:
    blocks = [_pair(batch) for batch in _in_order(data)]
    if not blocks:
        raise InputError("the data set is empty")
    return torch.cat([x for x, _ in blocks]), torch.cat([y for _, y in blocks])


def _in_order(data: "Dataset[Any]") -> "DataLoader[Any]":
    # A generator of its own, since even this loader draws a number, of torch's where it has none.
    return DataLoader(data, batch_size=READ, generator=torch.Generator())


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InputError(
            "data must be (x, y), or a Dataset or DataLoader of such pairs, got "
            f"{type(data).__name__}"
        )
    y = _tensor(data[1], "y")
    _refuse_several(data[0], rows=len(y) if y.dim() else None)
    return _tensor(data[0], "x"), y


def _refuse_several(x: Any, *, rows: int | None) -> None:
    """A list of tensors may be one, row by row; anything else that holds several is refused."""
    parts = x if isinstance(x, (tuple, list)) else ()
    tensors = all(isinstance(part, (Tensor, np.ndarray)) and part.ndim for part in parts)
    stacks = len({tuple(part.shape) for part in parts}) == 1 if tensors else True
    if isinstance(x, dict) or (parts and tensors and not (stacks and len(parts) == rows)):
        raise InputError(
            f"x must be one tensor [N, ...], got a {type(x).__name__} of {len(x)}: networks take "
            "one tensor; join the parts into one, and let the network split it"
        )


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InputError(f"{name} is a sparse tensor; use {name}.to_dense()")
        return value.detach()
    if np.ma.is_masked(value):
        raise InputError(f"{name} has masked values, which are missing; fill them in")
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise InputError(f"{name} holds no numbers (dtype {array.dtype}): {_remedy(name)}")
        if not array.flags.writeable:  # as pandas gives them: torch would warn
            array = array.copy()
        tensor: Tensor = torch.as_tensor(array)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as a tensor: {error}") from None
    # numpy's own float64 becomes torch's default; a float64 tensor was meant as one
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _remedy(name: str) -> str:
    if name == "y":
        return (
            "number the classes from 0, say by np.unique(y, return_inverse=True)[1], or use "
            "StochasticEnsembleClassifier, which takes any labels"
        )
    return f"use {name}.astype(float), or encode it"


def inputs(given: Any) -> Tensor:
    """Inputs alone, for prediction, checked like those of training.

    Of a Dataset or a DataLoader the inputs of all its batches, (x, y) or x, in order.
    """
    if isinstance(given, (Dataset, DataLoader)):
        blocks = list(input_blocks(given))
        for block in blocks:
            if block.shape[1:] != blocks[0].shape[1:]:
                raise InputError(
                    f"batches of different shapes, {tuple(blocks[0].shape)} and "
                    f"{tuple(block.shape)}, cannot be put together here; predict takes them with "
                    "engine=None"
                )
        return torch.cat(blocks)
    _refuse_several(given, rows=len(given) if isinstance(given, list) else None)
    x = _tensor(given, "x")
    if x.dim() == 0 or len(x) == 0:
        raise InputError(f"x is empty: shape {tuple(x.shape)}")
    _finite(x)
    return x


def input_blocks(data: "Dataset[Any] | DataLoader[Any]") -> Iterator[Tensor]:
    """The inputs of its batches, (x, y) or x, in order, each checked when it is read.

    >>> [tuple(x.shape) for x in input_blocks(DataLoader(torch.zeros(5, 2), batch_size=3))]
    [(3, 2), (2, 2)]
    """
    loader = data if isinstance(data, DataLoader) else _in_order(data)
    _refuse_disorder(loader)
    row = 0
    for batch in loader:
        block = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
        _refuse_several(block, rows=None)
        x = _tensor(block, "x")
        if x.dim() == 0:
            raise InputError(f"each batch of inputs must be [B, ...], got {tuple(x.shape)}")
        _finite(x, row)
        row += len(x)
        if len(x):
            yield x
    if row == 0:
        raise InputError("the data set is empty")


def first_input(given: Any) -> Tensor:
    """One row, [1, ...]; of a Dataset or a DataLoader no more than a batch is read."""
    streamed = isinstance(given, (Dataset, DataLoader))
    return (next(input_blocks(given)) if streamed else inputs(given))[:1]


def _refuse_disorder(loader: "DataLoader[Any]") -> None:
    """Predictions are told apart by their row, so all rows must come, in the order of the data."""
    order: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if getattr(order, "drop_last", False):
        raise InputError("the DataLoader has drop_last=True, which leaves rows out; give False")
    if isinstance(loader.dataset, IterableDataset):
        return  # it has no other order than its own
    order = order.sampler if type(order) is BatchSampler else order
    if not isinstance(order, SequentialSampler):
        raise InputError(
            "the DataLoader must give the rows in their order, or their predictions come in "
            f"another: it has a {type(order).__name__}; build it with shuffle=False"
        )


def _check(x: Tensor, y: Tensor) -> None:
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        raise InputError(
            f"x and y must have the same length, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    inputs(x)


def _finite(x: Tensor, first_row: int = 0) -> None:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        where = tuple(int(i) for i in (~x.isfinite()).nonzero()[0])
        place = [first_row + where[0], *where[1:]]
        raise InputError(f"x must be finite; x{place} is {x[where].item()}")
