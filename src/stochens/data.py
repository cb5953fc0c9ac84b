"""`Data`: tensors, a torch Dataset or a DataLoader, as one kind of thing."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from stochens.checks import whole_or_none
from stochens.errors import InputError
from stochens.files.mapped import take_rows
from stochens.randomness.seeds import seeded
from stochens.reading import check_pair, read_pair, read_tensor, shapes_of
from stochens.run.checkpoints import digest
from stochens.streams import (
    Stream,
    begin,
    holds_no_numbers,
    in_one_length,
    is_stream,
    loader_of,
    refuse_read_once,
    tell_left_out,
)
from stochens.trees import Input, cat, floating_dtype

# (x [B, ...], y [B, ...]) -> others of as many rows
Augment = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

READ = 1024  # rows of a Dataset at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Training data with what is to be known of them, wherever data are taken.

    data: (x [N, ...], y [N]), a Dataset, a DataLoader, a dictionary, Replicas or a stream, as in
        `fit`.
    target: what y is called in dictionaries, if not "labels", "label" or "y".
    weights: [N], not negative: a row of weight w counts as w equal rows, so N becomes their sum;
        batches are drawn row by row whatever the weights. They are for data in memory. Kernels do
        not serve them, and samplers refuse them.
    augment: a function of a batch (x [B, ...], y [B, ...]) that gives another one of as many rows,
        on the device that trains: crops, noise, mixup. `fit` calls it for each member and step,
        with torch's generator seeded by (seed, member, step): members draw different numbers, the
        same in blocks of any size and after a checkpoint. x is one tensor; samplers refuse it.
    size: N, how many rows a stream has (an IterableDataset of torch or Hugging Face, or a
        DataLoader of one), where it has no length itself. The likelihood counts so many examples,
        so that a wrong N is a wrong posterior: `fit` warns where the stream has more or fewer.

    >>> x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    >>> source(Data((x, y), weights=[1.0, 2.0, 2.0])).examples
    5.0
    >>> source(Data({"x": x, "kind": y}, target="kind")).y
    tensor([0, 1, 1])
    """

    data: Any
    target: str | None = None
    weights: Any = None
    augment: Augment | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.data, Data):
            raise InputError("Data in Data: say target and weights once, Data(data, target=...)")
        if self.target is not None and not isinstance(self.target, str):
            raise InputError(f"target must be the name of y in the data, got {self.target!r}")
        if self.augment is not None and not callable(self.augment):
            raise InputError(f"augment must be a function of a batch x, y, got {self.augment!r}")
        whole_or_none(size=self.size)

    @classmethod
    def of(cls, given: Any) -> "Data":
        """What a user gave as data, which need not be such an object."""
        return given if isinstance(given, Data) else cls(given)


class Source(NamedTuple):
    """Where training batches come from.

    `x`, `y` are the whole data set on the device; with a `loader` they are its first batch, and
    every member sees the loader's batches in the loader's order. Where that reads a `stream`, it
    goes on until the stream ends. Of several `sets` they are one after the other, and member k sees
    the set k mod `sets`.
    """

    x: Input  # [sets * N, ...]
    y: Tensor  # [sets * N] or [sets * N, D]
    size: int  # N
    loader: "DataLoader[Any] | None" = None
    sets: int = 1
    weights: Tensor | None = None  # [N], of mean 1; None: all rows count the same
    total: float | None = None  # the sum of the weights as they were given
    bootstrap: bool = False  # whether each member has its own resample (training/bootstrap.py)
    odds: Tensor | None = None  # [N], of the rows in it; None: the same for all
    target: str | None = None  # what y is called among the entries of the loader's batches
    augment: Augment | None = None  # of each member's batches
    stream: Stream | None = None  # what the loader reads, where that has no other order

    @property
    def examples(self) -> float:
        """How many examples the likelihood is of: N, or the sum of the weights."""
        return float(self.size) if self.total is None else self.total

    def to(self, device: torch.device) -> "Source":
        weights = None if self.weights is None else self.weights.to(device)
        return self._replace(x=self.x.to(device), y=self.y.to(device), weights=weights)

    def batches(self) -> Iterator[tuple[Input, Tensor]]:
        """Of one epoch."""
        if self.stream is not None:
            yield from self.stream.once()
            return
        assert self.loader is not None
        for batch in self.loader:
            x, y = read_pair(batch, self.target, collated=True)
            check_pair(x, y)
            yield x, y


class Replicas(tuple[Any, ...]):
    """Several training sets of one size, side by side: member k learns from set k mod D.

    So D data draws cost one training. `posterior.replica(d, D)` is the ensemble of set d.

    >>> x, y = torch.randn(2, 30, 1), torch.zeros(2, 30, dtype=torch.long)
    >>> len(Replicas(zip(x, y)))
    2
    """

    __slots__ = ()


def _side_by_side(data: Replicas, target: str | None) -> Source:
    if not data:
        raise InputError("Replicas holds no data set")
    if any(isinstance(part, Data) for part in data):
        raise InputError("Data goes around Replicas, not into it: Data(Replicas(...), target=...)")
    parts = [_source(part, target) for part in data]
    x, y = [part.x for part in parts], [part.y for part in parts]
    for k, part in enumerate(parts):
        if part.loader is not None:
            raise InputError("Replicas must hold data sets in memory, not DataLoaders")
        if shapes_of(part.x) != shapes_of(x[0]) or part.y.shape != y[0].shape:
            raise InputError(
                "Replicas must hold data sets of one size: the first has x "
                f"{shapes_of(x[0])} and y {tuple(y[0].shape)}, number {k} x "
                f"{shapes_of(part.x)} and y {tuple(part.y.shape)}"
            )
    return parts[0]._replace(x=cat(x), y=torch.cat(y), sets=len(parts))


OF_ALL_ROWS = (RandomSampler, SequentialSampler, WeightedRandomSampler)


def source(given: Any, *, batch_size: int | None = READ) -> Source:
    """Read what the user gave, as it is or in a Data. A Dataset is read once into memory; a
    DataLoader is streamed, and so is an IterableDataset, in batches of that size. Rows of weight 0
    are left out.

    >>> source((torch.zeros(6, 2), torch.zeros(6, dtype=torch.long))).size
    6
    """
    asked = Data.of(given)
    if reads_stream(asked.data):
        found = _stream_of(asked, batch_size)
    elif asked.size is not None:
        raise InputError(
            f"size={asked.size} is how many rows a stream has, and the data is a "
            f"{type(asked.data).__name__}, which knows that itself; leave size out"
        )
    else:
        found = _source(asked.data, asked.target)
    found = found._replace(augment=asked.augment)
    return found if asked.weights is None else _weighted(found, asked.weights)


def _source(data: Any, target: str | None) -> Source:
    if isinstance(data, Replicas):
        return _side_by_side(data, target)
    if reads_stream(data):
        raise InputError("Replicas must hold data sets in memory, not streams")
    if isinstance(data, DataLoader):
        return _streamed(data, target)
    if isinstance(data, Dataset):
        x, y = _read(data, target)
    else:
        x, y = read_pair(columns_of(data), target)
    check_pair(x, y)
    return Source(x, y, len(x), target=target)


def columns_of(data: Any) -> Any:
    """The columns of a Hugging Face Dataset; anything else as it is.

    It is known by what it can do, so that nothing is imported. Columns that hold no numbers (the
    text beside its tokens) are left out, and the log says so.
    """
    if not hasattr(data, "with_format") or not hasattr(data, "column_names"):
        return data
    if isinstance(data, Mapping):
        raise InputError(
            f"a {type(data).__name__} holds several data sets; give one of them: "
            f"{', '.join(map(repr, data))}"
        )
    chosen = (getattr(data, "format", None) or {}).get("columns")
    columns = data.with_format("torch", columns=chosen)[:]
    kept = {name: column for name, column in columns.items() if not holds_no_numbers(column)}
    tell_left_out(columns, kept)
    return kept


def reads_stream(data: Any) -> bool:
    """Whether it is one, or a DataLoader of one."""
    return is_stream(data.dataset if isinstance(data, DataLoader) else data)


def _stream_of(asked: Data, batch_size: int | None) -> Source:
    """Its first batch, and a way to read all of them."""
    given, target = asked.data, asked.target
    rows = given.dataset if isinstance(given, DataLoader) else given
    size, said = asked.size, "Data(size=...) says"
    if size is None and not _in_batches(given) and hasattr(rows, "__len__"):
        size, said = len(rows), f"the length of {type(rows).__name__} is"
    if size is None:
        raise InputError(
            f"{type(rows).__name__} is a stream without a length, and the prior is weighed against "
            "the number of its rows, N: give stochens.Data(data, size=N), or the data set a "
            "__len__. A wrong N is a wrong posterior"
        )
    if batch_size is None and not isinstance(given, DataLoader):
        raise InputError(
            "batch_size=None is all of the data at once, which a stream does not hold; give a "
            "batch_size"
        )
    refuse_read_once(rows)
    loader = given if isinstance(given, DataLoader) else loader_of(given, batch_size or READ)

    def pair(batch: Any) -> tuple[Input, Tensor]:
        if isinstance(batch, Mapping):
            batch = {name: v for name, v in batch.items() if not holds_no_numbers(v)}
        x, y = read_pair(batch, target, collated=True)
        check_pair(x, y)
        return x, y

    with seeded(0), in_one_length():
        first = next(begin(loader, 0), None)
    if first is None:
        raise InputError("the stream is empty")
    x, y = pair(first)
    stream = Stream(loader, size, said, pair, len(x))
    return Source(x, y, size, loader, target=target, stream=stream)


def _in_batches(data: Any) -> bool:
    """Whether its data set makes the batches, so that its length counts these."""
    return isinstance(data, DataLoader) and data.batch_sampler is None


def _streamed(loader: "DataLoader[Any]", target: str | None) -> Source:
    with seeded(0):  # a shuffle draws from torch's generator, which threads share
        batch = next(iter(loader), None)
    if batch is None:
        raise InputError("the DataLoader is empty")
    x, y = read_pair(batch, target, collated=True)
    check_pair(x, y)
    return Source(x, y, _rows(loader), loader, target=target)


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
        if isinstance(sampler, OF_ALL_ROWS):
            return len(data)
        return min(len(data), len(sampler))
    except TypeError:
        raise InputError(
            "the DataLoader's data set must have a length, the number of its rows, which the prior "
            "is weighed against; give it a __len__"
        ) from None


def _weighted(given: Source, weights: Any) -> Source:
    if given.loader is not None or given.sets > 1:
        what = "a DataLoader" if given.loader is not None else "Replicas"
        raise InputError(f"weights need one data set in memory, not {what}")
    weights = read_tensor(weights, "weights").to(torch.float64)
    if tuple(weights.shape) != (given.size,):
        raise InputError(
            f"weights must be [N] = ({given.size},), one for each row of x, got "
            f"{tuple(weights.shape)}"
        )
    wrong = ~weights.isfinite() | (weights < 0)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"weights must be finite and not negative; row {row} has {weights[row].item()}"
        )
    rows = weights > 0
    if not bool(rows.any()):
        raise InputError("weights are 0 for every row, so there is nothing to learn from")
    x, y = given.x, given.y
    if not bool(rows.all()):  # those of weight 0 say nothing
        x, y, weights = rows_of(x, rows.nonzero().flatten()), y[rows], weights[rows]
    total = math.fsum(weights.tolist())  # the same on every machine, unlike a sum in parallel
    if bool((weights == weights[0]).all()):
        return given._replace(x=x, y=y, size=len(x), total=total)
    mean_one = (weights * (len(x) / total)).to(floating_dtype(x))
    return given._replace(x=x, y=y, size=len(x), weights=mean_one, total=total)


def weighting(weights: Any) -> str | None:
    """A word for weights, which members of one ensemble share; None where all rows count the same.

    >>> weighting([2.0, 2.0]) is None, weighting([0, 1]) == weighting([1, 0])
    (True, False)
    """
    if weights is None:
        return None
    weights = read_tensor(weights, "weights").to(torch.float64)
    same = bool((weights == weights.flatten()[0]).all())
    return None if same else digest({"weights": weights})[:16]


def _read(data: "Dataset[Any]", target: str | None) -> tuple[Input, Tensor]:
    blocks = [read_pair(batch, target, collated=True) for batch in in_order(data)]
    if not blocks:
        raise InputError("the data set is empty")
    return cat([x for x, _ in blocks]), torch.cat([y for _, y in blocks])


def in_order(data: "Dataset[Any]") -> Iterator[Any]:
    """Its rows as batches."""
    with in_one_length():
        yield from loader_of(data, READ)


def rows_of(x: Input, rows: Tensor) -> Input:
    """x[rows], in files where x lies in files."""
    return take_rows(x, rows) if isinstance(x, Tensor) else x.each(lambda t: take_rows(t, rows))
