"""An operator that counts what goes through it, whatever runs the network that has it."""

from typing import Any

import torch
from torch import Tensor

seen = 0  # numbers


@torch.library.custom_op("stochens_tests::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    """x itself; a backbone that runs it really computes, in whatever way it is run."""
    global seen
    seen += x.numel()
    return x.clone()


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@counted.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
    return counted(x), in_dims[0]


def begin() -> None:
    global seen
    seen = 0


def passes(x: Tensor) -> float:
    """How often as many numbers as x has were seen since `begin`."""
    return seen / x.numel()
