"""What a user gives as x and y becomes tensors, or an InputError that says why it cannot."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.mapped import is_mapped, mapped_tensor
from stochens.trees import PAD, Input, InputTree, check_rows, is_several, named, read_tree

LOOKED_AT = 4 << 20  # bytes of x at a time, in which numbers that are none are looked for
TARGETS = ("labels", "label", "y")  # what y is called in a dictionary, unless `target` says


def read_pair(
    data: Any, target: str | None = None, *, collated: bool = False
) -> tuple[Input, Tensor]:
    """x and y of (x, y), or of a dictionary that holds y by its name."""
    if isinstance(data, Mapping):
        name = target_of(data, target)
        y = read_tensor(data[name], name)
        rest = {key: value for key, value in data.items() if key != name}
        return read_input(rest, rows=len(y) if y.dim() else None, collated=collated), y
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    if target is not None and not (pair and isinstance(data[0], InputTree)):  # read by us before
        raise InputError(
            f"target={target!r} is the name of y in a dictionary, and the data is a "
            f"{type(data).__name__}; leave target out"
        )
    if not pair:
        raise InputError(
            "data must be (x, y), a dictionary that holds y as 'labels', 'label' or 'y', or a "
            f"Dataset or DataLoader of such, got {type(data).__name__}"
        )
    y = read_tensor(data[1], "y")
    return read_input(data[0], rows=len(y) if y.dim() else None, collated=collated), y


def target_of(data: Mapping[str, Any], target: str | None) -> str:
    """What y is called there."""
    found = [name for name in (TARGETS if target is None else (target,)) if name in data]
    if len(found) == 1:
        return found[0]
    have = ", ".join(map(repr, data)) or "nothing"
    if target is not None:
        raise InputError(f"target={target!r} is not in the data, which has {have}")
    what = f"several targets, {' and '.join(map(repr, found))}" if found else "no target"
    raise InputError(
        f"the data has {what}: it has {have}. y is taken from 'labels', 'label' or 'y'; "
        "stochens.Data(data, target='name') says which entry it is"
    )


def read_input(value: Any, *, rows: int | None, collated: bool = False) -> Input:
    """One tensor, or a tree of them with as many rows each."""
    if not is_several(value, rows, collated=collated):
        return read_tensor(value, "x")
    x = InputTree(read_tree(value, _part, rows=rows))
    check_rows(x)
    return x


def _part(value: Any, name: str) -> Tensor:
    """A tensor of a tree."""
    rows = isinstance(value, (tuple, list)) and all(isinstance(row, Tensor) for row in value)
    if rows and value:  # those of a column, one by one
        if len({tuple(row.shape) for row in value}) > 1:
            raise InputError(f"rows of {name!r} have different lengths. {PAD}")
        return torch.stack(list(value)).detach()
    return read_tensor(value, name)


def read_target(value: Any) -> Tensor:
    """y as a tensor, or an InputError that says why it is none."""
    return read_tensor(value, "y")


def read_tensor(value: Any, name: str) -> Tensor:
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
        if is_mapped(array):
            return mapped_tensor(array)
        if not array.flags.writeable:  # as pandas gives them: torch would warn
            array = array.copy()
        tensor: Tensor = torch.as_tensor(array)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        pad = f". {PAD}" if "inhomogeneous" in str(error) else ""
        raise InputError(f"{name} cannot be read as a tensor: {error}{pad}") from None
    # numpy's own float64 becomes torch's default; a float64 tensor was meant as one
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _remedy(name: str) -> str:
    if name == "y":
        return (
            "number the classes from 0, say by np.unique(y, return_inverse=True)[1], or use "
            "StochasticEnsembleClassifier, which takes any labels"
        )
    return f"use {name}.astype(float), or encode it"


def refuse_empty(x: Input) -> None:
    for name, t in named(x).items():
        if t.dim() == 0 or len(t) == 0:
            raise InputError(f"{name} is empty: shape {tuple(t.shape)}")


def check_pair(x: Input, y: Tensor) -> None:
    if isinstance(x, InputTree):
        check_rows(x, len(y) if y.dim() else None)
    if y.dim() == 0 or any(t.dim() == 0 or len(t) != len(y) for t in named(x).values()):
        raise InputError(
            f"x and y must have the same length, got {shapes_of(x)} and {tuple(y.shape)}"
        )
    refuse_empty(x)
    finite(x)


def finite(x: Input, first_row: int = 0) -> None:
    """Refuse numbers that are none, a few rows at a time."""
    for name, t in named(x).items():
        if not t.is_floating_point():
            continue
        some = max(1, LOOKED_AT * len(t) // max(1, t.nbytes))
        for top in range(0, len(t), some):
            block = t[top : top + some]
            # All are finite if their sum is. It may overflow, and then they are looked at.
            if not math.isfinite(block.sum()) and not bool(block.isfinite().all()):
                where = tuple(int(i) for i in (~block.isfinite()).nonzero()[0])
                place = [first_row + top + where[0], *where[1:]]
                raise InputError(f"{name} must be finite; {name}{place} is {block[where].item()}")


def shapes_of(x: Input) -> Any:
    if isinstance(x, Tensor):
        return tuple(x.shape)
    return {name: tuple(t.shape) for name, t in x.named().items()}
