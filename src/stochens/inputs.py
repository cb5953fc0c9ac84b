"""Inputs alone, for prediction: tensors, a Dataset, a DataLoader or a stream, with or without y."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from stochens.data import Data, columns_of, in_order, source
from stochens.errors import InputError
from stochens.files.mapped import is_mapped
from stochens.reading import (
    TARGETS,
    finite,
    read_input,
    read_target,
    refuse_empty,
    shapes_of,
    target_of,
)
from stochens.streams import is_stream
from stochens.trees import Input, InputTree, cat, form, leaves_in, map_tree, match, named

BLOCK = 4 << 20  # bytes of a mapped array that are read at a time


class Opened(NamedTuple):
    """Inputs that are read as they are needed."""

    blocks: Iterator[Input]  # each [b, ...]
    rows: int  # in all, where that is known before they are read, else 0
    streamed: bool  # whether the blocks are the parts that they come in, and not all at once


def open_inputs(given: Any, like: Input | None = None, *, target: str | None = None) -> Opened:
    """What `predict` takes. A Dataset, a DataLoader, a stream, an iterator of batches and mapped
    arrays are read a few rows at a time; anything else is here already.

    >>> import torch
    >>> opened = open_inputs(DataLoader(torch.zeros(5, 2), batch_size=3))
    >>> opened.rows, len(list(opened.blocks))
    (5, 2)
    """
    if not isinstance(given, Tensor):
        if isinstance(given, Data) and (_in_parts(given.data) or is_stream(given.data)):
            given, target = given.data, given.target or target
        if _in_parts(given) or is_stream(given):
            return Opened(input_blocks(given, like, target=target), _length(given), True)
        if (arrays := _mapped_arrays(given)) is not None:
            return Opened(_blocks_of_arrays(given, like, target), len(arrays[0]), True)
    x = inputs(given, like, target=target)
    return Opened(iter([x]), len(x), False)


def _in_parts(given: Any) -> bool:
    return isinstance(given, (Dataset, DataLoader, Iterator))


def _length(data: Any) -> int:
    """How many rows it has, where it says so."""
    if isinstance(data, DataLoader):
        data = None if data.batch_sampler is None else data.dataset
    try:
        return len(data)
    except TypeError:
        return 0


def _mapped_arrays(given: Any) -> list[np.ndarray] | None:
    """All arrays of the input, where each is a numpy array of as many rows, and some lie in files;
    None where they do not."""
    parts = leaves_in(given)
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.ndim > 0]
    alike = len(arrays) == len(parts) and len({len(part) for part in arrays}) == 1
    some = alike and any(map(is_mapped, arrays)) and not isinstance(given, (InputTree, Tensor))
    return arrays if some and len(arrays[0]) else None


def _blocks_of_arrays(given: Any, like: Input | None, target: str | None) -> Iterator[Input]:
    """Copies of a few rows, one after the other: what lies in a file is not to be written to."""
    arrays = leaves_in(given)
    of_row = sum(a.itemsize * math.prod(a.shape[1:]) for a in arrays)
    rows = max(1, BLOCK // max(1, of_row))
    for top in range(0, len(arrays[0]), rows):
        part = map_tree(lambda a: np.array(a[top : top + rows]), given)  # noqa: B023, at once
        x = _input(part, like, target)
        finite(x, top)
        yield x


def inputs(given: Any, like: Input | None = None, *, target: str | None = None) -> Input:
    """Inputs alone, for prediction, checked like those of training.

    Of a Dataset or a DataLoader the inputs of all its batches, (x, y) or x, in order. `like`: an
    example of what the network was trained on; `target`: what y was called then. Of a Data the
    inputs alone.
    """
    if isinstance(given, Data):
        return _inputs_of(given, like, target)
    if isinstance(given, Tensor):
        x = _input(given, like, target)
    elif _in_parts(given) or is_stream(given):
        blocks = list(input_blocks(given, like, target=target))
        for block in blocks:
            if form(block) != form(blocks[0]):
                raise InputError(
                    f"batches of different shapes, {shapes_of(blocks[0])} and "
                    f"{shapes_of(block)}, cannot be put together here; predict takes them with "
                    "engine=None"
                )
        joined: Input = cat(blocks)
        return joined
    else:
        x = _input(columns_of(given), like, target)
    refuse_empty(x)
    finite(x)
    return x


def _inputs_of(given: Data, like: Input | None, target: str | None) -> Input:
    """Of all rows, in their order, whatever they weigh."""
    if _in_parts(given.data) or is_stream(given.data):
        return inputs(given.data, like, target=given.target or target)
    x = source(Data(given.data, given.target)).x
    return x if like is None else match(x, like, ())


def _input(given: Any, like: Input | None, target: str | None, *, collated: bool = False) -> Input:
    """A batch of inputs, and nothing else."""
    parts = isinstance(given, (list, tuple)) and len(given)
    if parts and isinstance(like, InputTree) and isinstance(like.tree, (list, tuple)):
        collated = collated or len(given) == len(like.tree)
    rows = len(given) if isinstance(given, list) and not collated else None
    if isinstance(given, Mapping):
        rows = next((len(part) for part in given.values() if isinstance(part, list)), None)
    x = read_input(given, rows=rows, collated=collated)
    targets = TARGETS if target is None else (target,)
    if like is not None:
        return match(x, like, targets)
    if isinstance(x, InputTree) and isinstance(x.tree, dict):
        return InputTree({name: part for name, part in x.tree.items() if name not in targets})
    return x


def input_blocks(
    data: Any, like: Input | None = None, *, target: str | None = None
) -> Iterator[Input]:
    """The inputs of the batches of a Dataset, a DataLoader, a stream or an iterator, (x, y) or x,
    in order, each checked when it is read.

    >>> import torch
    >>> [tuple(x.shape) for x in input_blocks(DataLoader(torch.zeros(5, 2), batch_size=3))]
    [(3, 2), (2, 2)]
    """
    if isinstance(data, DataLoader):
        _refuse_disorder(data)
    row = 0
    ready = isinstance(data, (DataLoader, Iterator))
    for batch in data if ready else in_order(data):
        x = _input(_without_y(batch, like), like, target, collated=True)
        for name, t in named(x).items():
            if t.dim() == 0:
                which = "inputs" if name == "x" else name
                raise InputError(f"each batch of {which} must be [B, ...], got {tuple(t.shape)}")
        finite(x, row)
        row += len(x)
        if len(x):
            yield x
    if row == 0:
        raise InputError("the data set is empty")


def _without_y(batch: Any, like: Input | None) -> Any:
    """x of (x, y); a batch of the parts that the network was trained on is x itself."""
    if not isinstance(batch, (tuple, list)) or not len(batch):
        return batch
    tree = like.tree if isinstance(like, InputTree) else None
    whole = isinstance(tree, (tuple, list)) and len(tree) == len(batch)
    return batch if whole and isinstance(batch[0], Tensor) else batch[0]


def targets(given: Any, like: Input | None = None, *, target: str | None = None) -> Tensor:
    """y of data that hold it, in order: a Dataset or a DataLoader of (x, y), a dictionary with y by
    its name, a Data, or (x, y).

    >>> import torch
    >>> targets({"x": torch.zeros(2, 1), "labels": torch.tensor([0, 1])})
    tensor([0, 1])
    """
    if isinstance(given, Data):
        given, target = given.data, given.target or target
    if isinstance(given, DataLoader):
        _refuse_disorder(given)
    batches: Iterable[Any] = [columns_of(given)]
    if isinstance(given, (Dataset, DataLoader)):
        batches = given if isinstance(given, DataLoader) else in_order(given)
    found = [read_target(_target(batch, like, target)) for batch in batches]
    if not found:
        raise InputError("the data set is empty")
    return torch.cat(found)


def _target(batch: Any, like: Input | None, target: str | None) -> Any:
    if isinstance(batch, Mapping):
        return batch[target_of(batch, target)]
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and _without_y(batch, like) is batch[0]:
        return batch[1]
    raise InputError(f"y is not given, and x, a {type(batch).__name__}, does not hold it; give y")


def pick_rows(
    given: Any, rows: Sequence[int], like: Input | None = None, *, target: str | None = None
) -> list[Input]:
    """The inputs of some rows, each [1, ...]; of a Dataset or a DataLoader no others are held.

    >>> import torch
    >>> pick_rows(torch.arange(5), [3, 0])
    [tensor([3]), tensor([0])]
    """
    if not isinstance(given, (Dataset, DataLoader)):
        x = inputs(given, like, target=target)
        return [x[k : k + 1] for k in rows]
    found: dict[int, Input] = {}
    first = 0
    for block in input_blocks(given, like, target=target):
        found |= {k: block[k - first : k - first + 1] for k in rows if 0 <= k - first < len(block)}
        first += len(block)
        if len(found) == len(set(rows)):
            break
    return [found[k] for k in rows]


def first_input(given: Any, like: Input | None = None, *, target: str | None = None) -> Input:
    """One row, [1, ...]; of a Dataset or a DataLoader no more than a batch is read."""
    return next(open_inputs(given, like, target=target).blocks)[:1]


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
