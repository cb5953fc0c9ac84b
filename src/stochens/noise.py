"""Where layers take their noise from: torch's stream, or one stream for each member.

Inside `member_noise` a draw depends only on (member, seed of the pass, how many draws came before),
so that a member sees the same noise in whatever block it is trained. Elsewhere (on a GPU, through
torch.compile, in prediction) torch draws for all members at once.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from stochens.hashed import GOLDEN, mix

# (members [M], seed, number of the draw, count) -> [M, count] int64, every bit random
Bits = Callable[[Tensor, int, int, int], Tensor]
Shape = torch.Size | tuple[int, ...]

_functorch: Any = torch._C._functorch


def hashed_bits(members: Tensor, seed: int, draw: int, count: int) -> Tensor:
    """splitmix64, in plain torch; kernels/noise.cpp is the same function."""
    stream = torch.tensor(draw + 1) * GOLDEN  # a tensor, since a Python number does not wrap round
    keys = mix(mix(members * GOLDEN + seed) + stream)  # [M]
    return mix(keys.unsqueeze(1) + (torch.arange(count) + 1) * GOLDEN)


class _Pass:
    """One forward pass of all members."""

    def __init__(self, members: Tensor, seed: int, bits: Bits) -> None:
        self.members, self.seed, self.bits = members, seed, bits
        self.draws = 0  # made so far
        self.level: int | None = None  # of the vmap over members
        self.rows = slice(None)  # whose turn it is, where there is no vmap

    def words(self, shape: Shape) -> Tensor:
        """int32 of the shape, every bit random, for the member whose layer asks."""
        count = math.prod(shape)
        members = self.members[self.rows]
        pairs = self.bits(members, self.seed, self.draws, (count + 1) // 2)  # [m, count / 2]
        self.draws += 1
        words = pairs.view(torch.int32)[:, :count].reshape(len(members), *shape)
        if self.level is None:
            return words.squeeze(0)
        batched: Tensor = _functorch._add_batch_dim(words, 0, self.level)
        return batched


_pass: _Pass | None = None


@contextlib.contextmanager
def member_noise(members: Tensor, seed: int, bits: Bits = hashed_bits) -> Iterator[None]:
    """Inside, members [M] of a pass with this seed draw from streams of their own, on the CPU."""
    global _pass
    before, _pass = _pass, _Pass(members, seed, bits)
    try:
        yield
    finally:
        _pass = before


def over_members(call: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """vmap over the member axis; "different": each member draws its own noise."""

    def at_level(*args: Any) -> Any:
        if _pass is None:
            return call(*args)
        before, _pass.level = _pass.level, _functorch.maybe_current_level()
        try:
            return call(*args)
        finally:
            _pass.level = before

    mapped: Callable[..., Any] = vmap(at_level, in_dims=in_dims, randomness="different")
    return mapped


def one_by_one(call: Callable[[int], Tensor], count: int) -> Tensor:
    """call(k) for each of so many members, stacked; each draws what it would draw under vmap."""
    if _pass is None:
        return torch.stack([call(k) for k in range(count)])
    first, outputs = _pass.draws, []
    for k in range(count):
        _pass.draws, _pass.rows = first, slice(k, k + 1)
        outputs.append(call(k))
    _pass.rows = slice(None)
    return torch.stack(outputs)


def bernoulli(keep: float, shape: Shape, like: Tensor) -> Tensor:
    """z ~ Bernoulli(keep), as a boolean mask; fresh for each member under vmap."""
    if _pass is None:
        return torch.rand(shape, device=like.device) < keep
    return _pass.words(shape) < min(round(keep * 2**32) - 2**31, 2**31 - 1)


def normal(like: Tensor) -> Tensor:
    """eps ~ N(0, 1) of the shape and type of `like`, likewise; by the Box-Muller transform."""
    if _pass is None:
        return torch.randn_like(like)
    words = _pass.words((2, *like.shape)).double()
    u = (words + (2**31 + 0.5)) * 2.0**-32  # in (0, 1)
    return ((-2 * u[0].log()).sqrt() * (2 * math.pi * u[1]).cos()).to(like.dtype)
