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


class Tree(NamedTuple):
    """Likewise each tensor of a tree."""

    form: InputTree  # of empty tensors
    parts: list[Array | Tensor]


def pack_input(x: Input) -> Array | Tensor | Tree:
    """A tensor, or a tree of them."""
    if isinstance(x, Tensor):
        return pack_array(x)
    return Tree(x.each(lambda t: torch.empty(0)), [pack_array(t) for t in x.leaves])


def unpack_input(part: Array | Tensor | Tree) -> Input:
    if isinstance(part, Tree):
        return part.form.with_leaves([unpack_array(t) for t in part.parts])
    return unpack_array(part)


Named = dict[str, Any]


def pack_all(named: dict[str, Tensor]) -> Named:
    return {name: pack_array(t) for name, t in named.items()}


def unpack_all(named: Named) -> dict[str, Tensor]:
    return {name: unpack_array(part) for name, part in named.items()}
