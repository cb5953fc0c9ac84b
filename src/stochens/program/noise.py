"""Noise as an operator: its numbers depend on (seed of the pass, member, site) and nothing else.

The seed of a pass is the run's seed plus the number of the step, and a site is the number of a draw
within the pass. So a traced network holds one node for each draw, and whatever runs the program
(eager, torch.compile, a CUDA graph) draws the numbers that `randomness.noise.member_noise` draws.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stochens.kernels.noise import words
from stochens.randomness.hashed import GOLDEN, mix, wrapped
from stochens.randomness.noise import FromWords, Shape


@torch.library.custom_op("stochens::noise_words", mutates_args=())
def noise_words(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """members [] or [M] and seed [1], int64 -> [*shape] or [M, *shape] int32, every bit random.

    >>> ids, seed = torch.tensor([3, 8]), torch.tensor([5])
    >>> torch.equal(noise_words(ids, seed, 0, [4])[1], noise_words(ids[1], seed, 0, [4]))
    True
    """
    drawn = words(members.reshape(-1).contiguous(), seed, site, tuple(shape))
    return drawn.view((*members.shape, *shape))


@noise_words.register_fake
def _(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    return members.new_empty((*members.shape, *shape), dtype=torch.int32)


def draw_words(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """The same: by the operator, or inside torch.compile by a formula that it can fuse with what
    the numbers are used for, so that they need no memory.

    >>> ids, seed = torch.tensor([3, 8]), torch.tensor([5])
    >>> torch.equal(noise_words(ids, seed, 1, [5]), words_by_index(ids, seed, 1, [5]))
    True
    """
    if torch.compiler.is_compiling():
        return words_by_index(members, seed, site, shape)
    drawn: Tensor = noise_words(members, seed, site, shape)
    return drawn


def words_by_index(members: Tensor, seed: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """splitmix64 with one operation for each word: word i is the lower half of number i // 2 of the
    stream where i is even, and the upper half where it is odd."""
    seed = seed.view(()) if members.dim() == 0 else seed
    keys = mix(mix(members * GOLDEN + seed) + wrapped((site + 1) * GOLDEN))  # [] or [M]
    index = torch.arange(math.prod(shape), device=members.device).reshape(tuple(shape))
    keys = keys.reshape((*members.shape, *[1] * len(shape)))
    # shifts, not divisions: torch.compile works out what it can of an index in whole numbers that
    # do not wrap round
    pair = mix(keys + ((index >> 1) + 1) * GOLDEN)  # [M, *shape]
    return torch.where((index & 1) == 0, pair, pair >> 32).to(torch.int32)


class TracedNoise(FromWords):
    """Where the layers of one member take their noise from while they are traced."""

    def __init__(self, member: Tensor, seed: Tensor) -> None:
        self.member, self.seed = member, seed  # [] and [1]
        self.draws = 0

    def draw_words(self, shape: Shape) -> Tensor:
        drawn: Tensor = noise_words(self.member, self.seed, self.draws, list(shape))
        self.draws += 1
        return drawn
