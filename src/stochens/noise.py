"""Where the noise of layers comes from: torch's stream of random numbers, or tensors given before.

Layers ask `uniform` and `normal`. While tensors are given, each request takes the next of them, so
that a stochastic network is a plain function of its inputs and its noise.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from stochens.errors import InputError

Kind = Literal["uniform", "normal"]


class Request(NamedTuple):
    """What a layer asked for: numbers from U(0, 1) or N(0, 1), of some shape."""

    kind: Kind
    shape: tuple[int, ...]


class Source(Protocol):
    def __call__(self, kind: Kind, shape: Sequence[int], like: Tensor) -> Tensor: ...


_source: Source | None = None  # a plain global: torch.compile looks through it


def uniform(shape: Sequence[int], like: Tensor) -> Tensor:
    """u ~ U(0, 1) on the device of `like`; fresh for each member under vmap."""
    if _source is None:
        return torch.rand(tuple(shape), device=like.device)
    return _source("uniform", shape, like)


def normal(like: Tensor) -> Tensor:
    """eps ~ N(0, 1) of the shape, dtype and device of `like`."""
    return torch.randn_like(like) if _source is None else _source("normal", like.shape, like)


@contextlib.contextmanager
def _from(source: Source) -> Iterator[None]:
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


@contextlib.contextmanager
def given(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the k-th request gets the k-th tensor, which must broadcast to what is asked for.

    >>> with given([torch.tensor([[0.2, 0.7]])]):
    ...     uniform((3, 2), torch.zeros(3, 2))
    tensor([[0.2000, 0.7000]])
    """
    left = iter(tensors)

    def source(kind: Kind, shape: Sequence[int], like: Tensor) -> Tensor:
        tensor = next(left, None)
        if tensor is None:
            raise InputError(f"the network asks for noise more than {len(tensors)} times")
        pairs = zip(reversed(tensor.shape), reversed(tuple(shape)), strict=False)
        if tensor.dim() > len(shape) or any(a != 1 and a != b for a, b in pairs):
            raise InputError(
                f"noise {tuple(tensor.shape)} of one example does not fit {tuple(shape)}: the "
                "network merges the batch with other axes, so its examples cannot share noise"
            )
        return tensor.to(like.dtype) if kind == "normal" else tensor

    with _from(source):
        yield


@contextlib.contextmanager
def recorded() -> Iterator[list[Request]]:
    """Inside, noise is drawn as ever, and what is asked for is noted."""
    found: list[Request] = []

    def source(kind: Kind, shape: Sequence[int], like: Tensor) -> Tensor:
        found.append(Request(kind, tuple(shape)))
        return (
            torch.rand(tuple(shape)).to(like.device)
            if kind == "uniform"
            else torch.randn_like(like)
        )

    with _from(source):
        yield found


def drawn(requests: Sequence[Request], count: int, *, seed: int) -> list[Tensor]:
    """`count` draws of everything that was asked for, each [count, *shape], float32 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"uniform": torch.rand, "normal": torch.randn}
    return [
        draw[kind](count, *shape, generator=generator, dtype=torch.float32)
        for kind, shape in requests
    ]
