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

Shape = torch.Size | tuple[int, ...]
# (members [M], seed, number of the draw, shape) -> [M, *shape] int32, every bit random
Words = Callable[[Tensor, int, int, Shape], Tensor]

_functorch: Any = torch._C._functorch


def hashed_words(members: Tensor, seed: int, draw: int, shape: Shape) -> Tensor:
    """splitmix64, in plain torch; kernels/noise.cpp is the same function."""
    stream = torch.tensor(draw + 1) * GOLDEN  # a tensor, since a Python number does not wrap round
    keys = mix(mix(members * GOLDEN + seed) + stream)  # [M]
    count = math.prod(shape)
    pairs = mix(keys.unsqueeze(1) + (torch.arange((count + 1) // 2) + 1) * GOLDEN)  # two in each
    return pairs.view(torch.int32)[:, :count].reshape(len(members), *shape)


class _Pass:
    """One forward pass of all members."""

    def __init__(self, members: Tensor, seed: int, source: Words) -> None:
        self.members, self.seed, self.source = members, seed, source
        self.draws = 0  # made so far
        self.level: int | None = None  # of the vmap over members
        self.turn = members  # whose it is: all members', but where there is no vmap

    def words(self, shape: Shape) -> Tensor:
        """int32 of the shape, every bit random, for the member whose layer asks."""
        words = self.source(self.turn, self.seed, self.draws, shape)  # [m, *shape]
        self.draws += 1
        if self.level is None:
            return words.squeeze(0)
        batched: Tensor = _functorch._add_batch_dim(words, 0, self.level)
        return batched


_pass: _Pass | None = None


@contextlib.contextmanager
def member_noise(members: Tensor, seed: int, source: Words = hashed_words) -> Iterator[None]:
    """Inside, members [M] of a pass with this seed draw from streams of their own, on the CPU."""
    global _pass
    before, _pass = _pass, _Pass(members, seed, source)
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
        _pass.draws, _pass.turn = first, _pass.members[k : k + 1]
        outputs.append(call(k))
    _pass.turn = _pass.members
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
