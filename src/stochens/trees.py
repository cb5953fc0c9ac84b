"""Inputs of several tensors: a tree of them, whose rows belong together.

An input is one tensor [N, ...], or an `InputTree`: a dictionary, tuple, list or dataclass of
tensors that all have N rows, nested as it may be. It has the few operations of a tensor that are
asked of inputs; whatever else one would do with it fails at once.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError


class InputTree:
    """Tensors [N, ...] in the containers that the network takes them in.

    >>> x = InputTree({"a": torch.zeros(5, 2), "b": torch.ones(5, dtype=torch.long)})
    >>> len(x), x[1:3]
    (5, InputTree(a (2, 2) float32, b (2,) int64))
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def named(self) -> dict[str, Tensor]:
        """Every tensor by its place: "input_ids", "pair.0"."""
        return dict(_leaves(self.tree, ""))

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors, in their order."""
        return list(self.named().values())

    def each(self, change: Callable[[Tensor], Any]) -> "InputTree":
        """The same tree of changed tensors."""
        return InputTree(map_tree(change, self.tree))

    def with_leaves(self, leaves: Sequence[Any]) -> "InputTree":
        """The same tree of these, one for each of `leaves`."""
        given = iter(leaves)
        return self.each(lambda _: next(given))

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, rows: Any) -> "InputTree":
        return self.each(lambda t: t[rows])

    @property
    def device(self) -> torch.device:
        return self.leaves[0].device

    @property
    def is_cuda(self) -> bool:
        return self.leaves[0].is_cuda

    def to(self, device: torch.device | str) -> "InputTree":
        return self.each(lambda t: t.to(device))

    def cpu(self) -> "InputTree":
        return self.to("cpu")

    def clone(self) -> "InputTree":
        return self.each(lambda t: t.clone())

    def unsqueeze(self, dim: int) -> "InputTree":
        return self.each(lambda t: t.unsqueeze(dim))

    def __repr__(self) -> str:
        return f"InputTree({describe(self)})"


Input = Tensor | InputTree


def map_tree(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers, with every tensor changed; None stays None.

    >>> map_tree(lambda t: t + 1, {"a": (torch.tensor(1), None)})
    {'a': (tensor(2), None)}
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map_tree(change, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _like(tree, [map_tree(change, value) for value in tree])
    if is_dataclass(tree):
        return dataclasses.replace(tree, **{n: map_tree(change, v) for n, v in _fields(tree)})
    return change(tree)


def leaves_in(tree: Any) -> list[Any]:
    """What stands in the containers, whatever it is, in its order.

    >>> leaves_in({"a": (1, None), "b": 2})
    [1, 2]
    """
    return [leaf for _, leaf in _leaves(tree, "")]


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    parts: Any = ()
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, (tuple, list)):
        parts = enumerate(tree)
    elif is_dataclass(tree):
        parts = _fields(tree)
    elif tree is not None:
        yield name, tree
    for own, value in parts:
        yield from _leaves(value, f"{name}.{own}" if name else str(own))


def _like(given: Any, parts: list[Any]) -> Any:
    """A list, a tuple, or a NamedTuple of the same class."""
    if isinstance(given, list):
        return parts
    return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)


def is_dataclass(value: Any) -> bool:
    """Whether it is an object of one, and no Mapping, which goes by its names."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, (type, Mapping))
    return plain and not isinstance(value, InputTree)


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


# Reading what the user gave -----------------------------------------------------------------------


def is_several(value: Any, rows: int | None, *, collated: bool = False) -> bool:
    """Whether it is a tree, and not one tensor. `rows`: how many it must have, where that is known.

    A list of N tensors of one shape is the N rows of one tensor, unless a DataLoader has `collated`
    it, whose lists are tuples.

    >>> a, b = torch.zeros(5, 2), torch.zeros(5, 3)
    >>> is_several({"a": a}, 5), is_several((a, b), 5), is_several([a[0]] * 5, 5)
    (True, True, False)
    """
    if isinstance(value, Tensor):
        return False
    if isinstance(value, (InputTree, Mapping)) or is_dataclass(value):
        return True
    if not isinstance(value, (tuple, list)) or not value:
        return False
    tensors = [isinstance(part, (Tensor, np.ndarray)) and part.ndim > 0 for part in value]
    if not all(tensors):
        return all(
            ok or is_several(part, None) for ok, part in zip(tensors, value, strict=True)
        ) and any(is_several(part, None) for part in value)
    shapes = {tuple(part.shape) for part in value}
    aligned = all(shape[0] == rows for shape in shapes)
    if len(shapes) == 1 and len(value) == rows:
        return aligned and (collated or isinstance(value, tuple))
    if len(value) == rows and not aligned:
        raise InputError(
            f"x has {rows} rows of different shapes, {tuple(value[0].shape)} and others. {PAD}"
        )
    return True


PAD = (
    "Pad them to one length (tokenizer(..., padding=True)), or give a DataLoader whose collate_fn "
    "pads each batch (transformers' DataCollatorWithPadding)"
)


def read_tree(
    value: Any, leaf: Callable[[Any, str], Tensor], name: str = "", rows: int | None = None
) -> Any:
    """Plain containers of what `leaf` makes of each part: any Mapping becomes a dict. `rows`: how
    many each has, where that is known.

    >>> read_tree({"a": [1, 2]}, lambda value, name: torch.tensor(value))
    {'a': tensor([1, 2])}
    """

    def part(own: Any, value: Any) -> Any:
        return read_tree(value, leaf, f"{name}.{own}" if name else str(own), rows)

    if value is None or isinstance(value, InputTree):
        return None if value is None else read_tree(value.tree, leaf, name, rows)
    if isinstance(value, Mapping):
        return {str(key): part(key, value[key]) for key in value}
    if is_dataclass(value):
        return dataclasses.replace(value, **{own: part(own, v) for own, v in _fields(value)})
    if isinstance(value, (tuple, list)) and (not name or is_several(value, rows)):
        return _like(value, [part(k, v) for k, v in enumerate(value)])
    return leaf(value, name)


def check_rows(x: InputTree, rows: int | None = None) -> None:
    """Refuse tensors that have no rows, or not as many as each other."""
    named = x.named()
    if not named:
        raise InputError("x holds no tensor")
    lengths = {len(t) if t.dim() else None for t in named.values()}
    if len(lengths) > 1 or None in lengths or (rows is not None and lengths != {rows}):
        y = "" if rows is None else f"; y has {rows}"
        raise InputError(f"all inputs must have the same number of rows, got {describe(x)}{y}")


def match(x: Input, like: Input, targets: Sequence[str]) -> Input:
    """x with the entries that the training had, `like`; `targets` are left out, others refused."""
    if isinstance(x, Tensor) and isinstance(like, Tensor):
        return x
    if isinstance(x, InputTree) and isinstance(x.tree, dict) and isinstance(like, InputTree):
        wanted = like.tree if isinstance(like.tree, dict) else {}
        x = InputTree({n: v for n, v in x.tree.items() if n in wanted or n not in targets})
    ours, theirs = named(x), named(like)
    if ours.keys() != theirs.keys():
        then, now = (
            "one tensor" if isinstance(t, Tensor) else ", ".join(t.named()) for t in (like, x)
        )
        raise InputError(f"the network was trained on {then}, and x has {now}; give it the same")
    return x


# What is asked of one tensor or of many -----------------------------------------------------------


def named(x: Input) -> dict[str, Tensor]:
    """{"x": x}, or "x.NAME" of each part."""
    if isinstance(x, Tensor):
        return {"x": x}
    return {f"x.{name}": t for name, t in x.named().items()}


def cat(parts: Sequence[Any]) -> Any:
    """Their rows one after the other."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    each = [part.named() for part in parts]
    return parts[0].with_leaves([torch.cat([own[name] for own in each]) for name in each[0]])


def split(x: Input) -> tuple[Any, Callable[[Any], Input]]:
    """What torch.vmap takes, a tensor or a list of them, and how to put that together again."""
    if isinstance(x, Tensor):
        return x, lambda t: t
    return x.leaves, x.with_leaves


def leaves_of(x: Input) -> list[Tensor]:
    """Its tensors, in their order.

    >>> leaves_of(torch.zeros(2)), leaves_of(InputTree({"a": torch.zeros(1)}))
    ([tensor([0., 0.])], [tensor([0.])])
    """
    return [x] if isinstance(x, Tensor) else x.leaves


def leaves_by_name(x: Input, like: Input) -> list[Tensor]:
    """Likewise in the order of `like`, for two dictionaries may have the same names in two orders.

    >>> a, b = torch.zeros(1), torch.ones(1)
    >>> leaves_by_name(InputTree({"a": a, "b": b}), InputTree({"b": b, "a": a}))
    [tensor([1.]), tensor([0.])]
    """
    if isinstance(x, Tensor) or isinstance(like, Tensor):
        return leaves_of(x)
    named = x.named()
    return [named[name] for name in like.named()]


def like_leaves(x: Input, leaves: Sequence[Any]) -> Any:
    """These tensors as x has its own: one of them, or the same tree."""
    return leaves[0] if isinstance(x, Tensor) else x.with_leaves(leaves)


def of_each_member(x: Input) -> list[Any]:
    """x [M, B, ...] -> [B, ...] of every member."""
    if isinstance(x, Tensor):
        return list(x.unbind())
    return [x[k] for k in range(len(x))]


def for_members(x: Input, count: int) -> Any:
    """The same rows for each of `count` members, [M, B, ...]."""
    if isinstance(x, Tensor):
        return x.expand(count, *x.shape)
    return x.each(lambda t: t.expand(count, *t.shape))


def with_dtype(x: Any, dtype: torch.dtype | None) -> Any:
    """Its floating-point numbers in another precision; None: as they are."""
    if isinstance(x, InputTree):
        return x.each(lambda t: with_dtype(t, dtype))
    return x.to(dtype) if dtype is not None and x.is_floating_point() else x


def floating_dtype(x: Input) -> torch.dtype:
    """Of its floating-point numbers; torch's default where it has none."""
    for t in named(x).values():
        if t.is_floating_point():
            return t.dtype
    return torch.get_default_dtype()


def form(x: Input) -> Hashable:
    """Shape and dtype of a row: batches of one form can be put together."""
    return tuple((name, t.shape[1:], t.dtype) for name, t in named(x).items())


def row_bytes(x: Input) -> int:
    """Of one row."""
    each = named(x).values()
    return sum(math.prod(t.shape[1:]) * t.element_size() for t in each)


def describe(x: Input) -> str:
    """Shapes and dtypes in words: "(4, 2) of torch.float32", or of each part by its name."""
    if isinstance(x, Tensor):
        return f"{tuple(x.shape)} of {x.dtype}"
    kinds = {name: str(t.dtype).removeprefix("torch.") for name, t in x.named().items()}
    return ", ".join(f"{n} {tuple(t.shape)} {kinds[n]}" for n, t in x.named().items())
