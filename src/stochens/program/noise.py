"""Noise as an operator: its numbers depend on (seed of the pass, member, site) and nothing else.

The seed of a pass is the run's seed plus the number of the step, and a site is the number of a draw
within the pass. A prediction has two seeds: that of noise which all examples share is the same for
all of its batches. So a traced network holds one node for each draw, and whatever runs the program
(eager, torch.compile, a CUDA graph) draws the numbers that `randomness.noise.member_noise` draws.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stochens.kernels.noise import words
from stochens.randomness.noise import Shape, below, hashed_words, normal_numbers


@torch.library.custom_op("stochens::noise_mask", mutates_args=())
def noise_mask(
    members: Tensor, seed: Tensor, site: int, shape: Sequence[int], below: int
) -> Tensor:
    """members [] or [M] and seed [1], int64 -> [*shape] or [M, *shape] bool: whether the random
    word there is below a number.

    >>> ids, seed = torch.tensor([3, 8]), torch.tensor([5])
    >>> torch.equal(noise_mask(ids, seed, 0, [4], 0)[1], noise_mask(ids[1], seed, 0, [4], 0))
    True
    """
    return by_kernel(members, seed, site, shape) < below


@torch.library.custom_op("stochens::noise_normal", mutates_args=())
def noise_normal(
    members: Tensor, seed: Tensor, site: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Likewise numbers from N(0, 1)."""
    return normal_numbers(by_kernel(members, seed, site, shape), dtype)


@noise_mask.register_fake
def _(members: Tensor, seed: Tensor, site: int, shape: Sequence[int], below: int) -> Tensor:
    return members.new_empty((*members.shape, *shape), dtype=torch.bool)


@noise_normal.register_fake
def _(members: Tensor, seed: Tensor, site: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return members.new_empty((*members.shape, *shape), dtype=dtype)


# What a program calls: the operators, or inside torch.compile formulas that it can fuse with what
# the numbers are used for, so that they need no memory.


def draw_mask(members: Tensor, seed: Tensor, site: int, shape: Sequence[int], below: int) -> Tensor:
    if torch.compiler.is_compiling():
        return plain(members, seed, site, shape) < below
    drawn: Tensor = noise_mask(members, seed, site, shape, below)
    return drawn


def draw_normal(
    members: Tensor, seed: Tensor, site: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    if torch.compiler.is_compiling():
        return normal_numbers(plain(members, seed, site, shape), dtype)
    drawn: Tensor = noise_normal(members, seed, site, shape, dtype)
    return drawn


def by_kernel(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """Random words, [*shape] or [M, *shape] int32.

    >>> ids, seed = torch.tensor([3, 8]), torch.tensor([5])
    >>> torch.equal(by_kernel(ids, seed, 1, [5]), plain(ids, seed, 1, [5]))
    True
    """
    drawn = words(members.reshape(-1).contiguous(), seed, site, tuple(shape))
    return drawn.view((*members.shape, *shape))


def plain(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """Likewise in plain torch."""
    return hashed_words(members, seed.view(()), site, tuple(shape))


class TracedNoise:
    """Where the layers of one member take their noise from while they are traced."""

    def __init__(self, member: Tensor, seed: Tensor) -> None:
        self.member = member  # []
        self.fresh, self.shared = seed[:1], seed[1:]  # of each example; of all that a pass has
        self.draws = 0

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor:
        seed = self.fresh if fresh else self.shared
        drawn: Tensor = noise_mask(self.member, seed, self._site(), list(shape), below(keep))
        return drawn

    def normal(self, like: Tensor, *, fresh: bool) -> Tensor:
        seed, shape = self.fresh if fresh else self.shared, list(like.shape)
        drawn: Tensor = noise_normal(self.member, seed, self._site(), shape, like.dtype)
        return drawn

    def _site(self) -> int:
        self.draws += 1
        return self.draws - 1
