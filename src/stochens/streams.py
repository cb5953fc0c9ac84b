"""Data that can only be read from the beginning on: an IterableDataset of torch or Hugging Face."""

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from stochens.errors import InputError, outside
from stochens.randomness.seeds import DATA_ORDER, derive, reseed
from stochens.trees import PAD, Input

log = logging.getLogger("stochens")

Pair = tuple[Input, Tensor]


def is_stream(data: Any) -> bool:
    """Whether its rows come in their own order and no other. Hugging Face's are known by what they
    can do, so that nothing is imported.

    >>> is_stream([1, 2]), is_stream(DataLoader([1, 2]))
    (False, False)
    """
    theirs = hasattr(data, "with_format") and hasattr(data, "column_names")
    in_order = not hasattr(data, "__len__") and not hasattr(data, "__getitem__")
    return isinstance(data, IterableDataset) or (theirs and in_order)


def loader_of(data: Any, rows: int) -> "DataLoader[Any]":
    """Batches of so many rows."""
    if hasattr(data, "with_format"):
        data = _Rows(data.with_format("torch"))
    # A generator of its own, since even this loader draws a number, of torch's where it has none.
    return DataLoader(data, batch_size=rows, generator=torch.Generator())


class _Rows(IterableDataset[Any]):
    """Of Hugging Face, whose class need not be torch's; those columns that hold numbers."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        kept: list[str] | None = None
        for row in self.data:
            if kept is None:
                kept = [name for name in row if not holds_no_numbers(row[name])]
                tell_left_out(row, kept)
            yield {name: row[name] for name in kept}


def holds_no_numbers(column: Any) -> bool:
    """A column of words, or of what torch has no tensors for.

    >>> holds_no_numbers(["a", "b"]), holds_no_numbers([[1, 2]])
    (True, False)
    """
    while isinstance(column, (list, tuple)) and column:
        column = column[0]
    return isinstance(column, (str, bytes, dict)) or column is None


def tell_left_out(columns: Mapping[str, Any], kept: Any) -> None:
    """In the log: the text beside its tokens is no input of a network."""
    if left := [name for name in columns if name not in kept]:
        log.info("columns of the data set that hold no numbers are left out: %s", ", ".join(left))


def refuse_read_once(data: Any) -> None:
    """A stream is read for its first batch, and then once for each pass."""
    begun = iter(data)
    if begun is iter(data):
        raise InputError(
            f"{type(data).__name__} can be read once: its __iter__ returns the same iterator each "
            "time, as for a generator. Let __iter__ begin anew, since training reads the stream "
            "again for each pass"
        )


def begin(loader: "DataLoader[Any]", number: int) -> Iterator[Any]:
    """The pass with that number, from its first batch on. Who shuffles by epochs is told it."""
    data = loader.dataset
    if hasattr(data, "set_epoch"):
        data.set_epoch(number)
    return iter(loader)


@contextlib.contextmanager
def in_one_length() -> Iterator[None]:
    """Inside, rows of different lengths are refused with a remedy."""
    try:
        yield
    except RuntimeError as error:
        if "equal size" not in str(error):  # the words of torch's own collate function
            raise
        raise InputError(f"rows of the data set have different lengths ({error}). {PAD}") from error


class Stream:
    """Batches (x [B, ...], y [B, ...]) of a loader that can only begin at the beginning.

    size: N, the rows that the likelihood counts; `said`: where that number is from. pair: makes x
    and y of a batch. rows: those of the first batch, which the others should have.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        size: int,
        said: str,
        pair: Callable[[Any], Pair],
        rows: int,
    ) -> None:
        self.loader, self.size, self.rows, self._said, self._pair = loader, size, rows, said, pair
        dropped = loader.drop_last and loader.batch_size is not None
        # rows at the end of a pass that may be missing: each worker drops its own
        self.slack = (rows - 1) * max(1, loader.num_workers) if dropped else 0
        self._told: set[str] = set()

    @property
    def batches(self) -> int:
        """Of an epoch, which has N rows: with N of them, the stream is read once in it."""
        if self.slack:
            return max(1, self.size // self.rows)
        return math.ceil(self.size / self.rows)

    def begin(self, number: int) -> Iterator[Pair]:
        """The pass with that number, from its first batch on."""
        return map(self._pair, begin(self.loader, number))

    def once(self) -> Iterator[Pair]:
        """One pass, and no more than N rows of it, but for what is left of the last batch."""
        rows = 0
        with in_one_length():
            for x, y in self.begin(0):
                yield x, y
                rows += len(x)
                if rows >= self.size:
                    return
        self.ended_after(rows)

    def ended_after(self, rows: int) -> None:
        """A pass had so many: a wrong N is a wrong posterior."""
        if self.size - self.slack <= rows <= self.size:
            return
        self._tell(
            "other",
            f"the stream ended after {rows:,} rows, and {self._said} N = {self.size:,}. The "
            f"posterior is that of {self.size:,} examples, in which each of these rows counts "
            f"{self.size / max(rows, 1):.3g} times; give stochens.Data(data, size={rows}) unless "
            "that is meant",
        )

    def goes_on(self) -> None:
        """A pass has more than N rows."""
        self._tell(
            "more",
            f"the stream goes on after {self.size:,} rows, and {self._said} N = {self.size:,}. The "
            f"posterior is that of {self.size:,} examples; an epoch ends after {self.batches:,} "
            "batches, and the next goes on from there. Give stochens.Data(data, size=...) as many "
            "as there are, unless that is meant",
        )

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(text, stacklevel=outside())


class Reader:
    """Where a training is in a stream, pass after pass.

    What a stream draws from torch's generator is a function of (seed, pass) alone: whatever else is
    drawn meanwhile, and whichever members are trained.
    """

    def __init__(self, stream: Stream, seed: int) -> None:
        self._stream, self._seed = stream, seed
        self._passes, self._batches, self._rows = 0, 0, 0  # batches and rows of the pass under way
        self._open: Iterator[Pair] | None = None
        self._ahead: Pair | None = None  # read, to see whether the pass goes on
        self._random = torch.empty(0)

    def take(self, count: int) -> Iterator[Pair]:
        """The next batches. The stream is read again when it ends."""
        for _ in range(count):
            batch = self._next()
            if batch is None and self._rows:
                self._end()
                batch = self._next()
            if batch is None:
                raise InputError(
                    f"the stream cannot be read again: pass {self._passes + 1} over it has no "
                    "rows. Let its __iter__ begin anew each time"
                )
            yield batch
        left = self._stream.size - self._stream.slack - self._rows
        if left < self._stream.rows:  # less than a batch: is the pass at its end?
            self._ahead = self._read()
            if self._ahead is None:
                self._end()
            elif self._rows >= self._stream.size:
                self._stream.goes_on()

    def _next(self) -> Pair | None:
        batch, self._ahead = self._ahead or self._read(), None
        if batch is not None:
            self._batches, self._rows = self._batches + 1, self._rows + len(batch[0])
            if self._rows > self._stream.size:
                self._stream.goes_on()
        return batch

    def _read(self) -> Pair | None:
        with self._own_numbers(), in_one_length():
            if self._open is None:
                reseed(derive(self._seed, DATA_ORDER, self._passes, 1), torch.device("cpu"))
                self._open = self._stream.begin(self._passes)
            return next(self._open, None)

    def _end(self) -> None:
        self._stream.ended_after(self._rows)
        self._passes, self._batches, self._rows, self._open = self._passes + 1, 0, 0, None

    @contextlib.contextmanager
    def _own_numbers(self) -> Iterator[None]:
        before = torch.get_rng_state()
        if self._open is not None:
            torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(before)

    def state(self) -> dict[str, Tensor]:
        """To go on with later."""
        return {"place": torch.tensor([self._passes, self._batches, self._rows])}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Read on to where a run before this one was."""
        self._passes, batches, rows = state["place"].tolist()
        while self._batches < batches and self._next() is not None:
            pass
        if (self._batches, self._rows) != (batches, rows):
            raise InputError(
                f"the stream is another one now: the run was at row {rows:,} of it, after batch "
                f"{batches:,}, and batch {self._batches:,} ends with row {self._rows:,}. Begin in "
                "another checkpoint folder"
            )
