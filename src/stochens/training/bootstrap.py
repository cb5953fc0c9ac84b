"""`fit(bootstrap=True)`: each member learns from its own resample of the data."""

import torch
from torch import Tensor

from stochens.data import Source
from stochens.errors import InputError
from stochens.randomness.seeds import BOOTSTRAP, member_seed


def resampled(given: Source) -> Source:
    """The same data, of which each member draws N rows with replacement.

    The likelihood counts as many examples as before. Weighted rows are drawn with probability
    w_i / sum(w), and each counts sum(w) / N then, so that a member's loss is on average

        E[(1/N) sum_j nll_{i_j}] = sum_i w_i nll_i / sum(w),   as it is without the resample.
    """
    if given.loader is not None:
        raise InputError(
            "bootstrap=True draws rows of data in memory, and a DataLoader gives its own; give "
            "(x, y) or a Dataset"
        )
    return given._replace(weights=None, bootstrap=True, odds=given.weights)


def bootstrap_rows(data: Source, *, members: tuple[int, ...], seed: int) -> Tensor:
    """The rows of each member's resample, [M, N], by (seed, member) alone; of its set, where there
    are several.

    >>> data = Source(torch.zeros(5, 2), torch.zeros(5), 5)
    >>> rows = bootstrap_rows(data, members=(0, 7), seed=0)
    >>> rows.shape, torch.equal(rows[1:], bootstrap_rows(data, members=(7,), seed=0))
    (torch.Size([2, 5]), True)
    """
    rows = torch.empty(len(members), data.size, dtype=torch.int64)
    until = None if data.odds is None else data.odds.double().cpu().cumsum(0)  # [N]
    for own, member in zip(rows, members, strict=True):
        generator = torch.Generator().manual_seed(member_seed(seed, member, BOOTSTRAP))
        if until is None:
            torch.randint(data.size, own.shape, generator=generator, out=own)
        else:
            at = torch.rand(own.shape, generator=generator, dtype=torch.float64) * until[-1]
            own.copy_(torch.searchsorted(until, at, right=True).clamp(max=data.size - 1))
    return rows
