"""Tensors, as Ray's object store holds them: all workers of a machine read the same memory."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Array(NamedTuple):
    """A tensor whose numbers Ray hands out without a copy."""

    numbers: Any  # numpy's


def packed(t: Tensor) -> Array | Tensor:
    """
    >>> unpacked(packed(torch.ones(2)))
    tensor([1., 1.])
    """
    try:
        return Array(t.detach().cpu().numpy())
    except TypeError:  # bfloat16 and others that numpy has not
        return t.detach().cpu()


def unpacked(part: Array | Tensor) -> Tensor:
    if isinstance(part, Tensor):
        return part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written to, which nobody does
        return torch.from_numpy(part.numbers)


Named = dict[str, Any]


def packed_all(named: dict[str, Tensor]) -> Named:
    return {name: packed(t) for name, t in named.items()}


def unpacked_all(named: Named) -> dict[str, Tensor]:
    return {name: unpacked(part) for name, part in named.items()}
