"""A Gaussian around each member: diagonal plus low rank, one covariance across all layers (SWAG).

Sigma = 1/2 (diag(variance) + D D^T / (rank - 1))   (Maddox et al., 2019, equation 1)
Sigma = diag(variance)                              where D has no columns (natural gradients)
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from stochens.members import Params, join, size, take
from stochens.randomness.seeds import LOW_RANK, derive


class LowRankGaussian(NamedTuple):
    variance: Params  # diag, [M, ...]
    deviations: Params  # the columns of D, [M, rank, ...]

    def rank(self) -> int:
        return next(iter(self.deviations.values())).shape[1]

    def diagonal(self) -> bool:
        """Whether there are no columns, and the variance is all of it."""
        return self.rank() == 0

    def each(self, change: Callable[[Params], Params]) -> "LowRankGaussian":
        return LowRankGaussian(change(self.variance), change(self.deviations))

    def take(self, members: slice | Sequence[int]) -> "LowRankGaussian":
        return self.each(lambda part: take(part, members))


def draw(mean: Params, low_rank: LowRankGaussian, generator: torch.Generator) -> Params:
    """theta = mean + sqrt(variance / 2) z1 + D z2 / sqrt(2 (rank - 1)), one draw for each member;
    mean + sqrt(variance) z1 without columns.

    z2 is one vector of length rank for the whole network, so that layers covary as D says.
    """
    rank = low_rank.rank()
    first = next(iter(mean.values()))
    z2 = torch.randn(size(mean), rank, generator=generator).to(first)  # [M, rank]
    theta = {}
    for name, centre in mean.items():
        z1 = torch.randn(centre.shape, generator=generator).to(centre)
        half = low_rank.variance[name] / (1 if rank == 0 else 2)
        theta[name] = centre + half.sqrt() * z1
        if rank > 1:
            correlated = torch.einsum("mr,mr...->m...", z2, low_rank.deviations[name])
            theta[name] = theta[name] + correlated / math.sqrt(2 * (rank - 1))
    return theta


def params_of_draw(
    mean: Params, low_rank: LowRankGaussian | None, number: int, *, seed: int
) -> Params:
    """Every member's parameters for one draw of a prediction; noise of layers comes on top."""
    if low_rank is None:
        return mean
    return draw(mean, low_rank, torch.Generator().manual_seed(derive(seed, LOW_RANK, number)))


def join_low_rank(blocks: list[LowRankGaussian]) -> LowRankGaussian:
    return LowRankGaussian(join([b.variance for b in blocks]), join([b.deviations for b in blocks]))
