"""Tensors, as Ray's object store holds them: all workers of a machine read the same memory."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.trees import Input, InputTree


class Array(NamedTuple):
    """A tensor whose numbers Ray hands out without a copy."""

    numbers: Any  # numpy's


def pack_array(t: Tensor) -> Array | Tensor:
    """
    >>> unpack_array(pack_array(torch.ones(2)))
    tensor([1., 1.])
    """
    try:
        return Array(t.detach().cpu().numpy())
    except TypeError:  # bfloat16 and others that numpy has not
        return t.detach().cpu()


def unpack_array(part: Array | Tensor) -> Tensor:
    if isinstance(part, Tensor):
        return part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written to, which nobody does
        return torch.from_numpy(part.numbers)


def pack_input(x: Input) -> Any:
    """A tensor, or each of a tree."""
    return x.each(pack_array) if isinstance(x, InputTree) else pack_array(x)


def unpack_input(part: Any) -> Input:
    return part.each(unpack_array) if isinstance(part, InputTree) else unpack_array(part)


Named = dict[str, Any]


def pack_all(named: dict[str, Tensor]) -> Named:
    return {name: pack_array(t) for name, t in named.items()}


def unpack_all(named: Named) -> dict[str, Tensor]:
    return {name: unpack_array(part) for name, part in named.items()}
