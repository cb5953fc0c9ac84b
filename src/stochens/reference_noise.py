"""The noise of a reference: how far a sampler's mean is from the truth, since its draws are finite.

K chains with means m_k = mu + e_k, where mu is the truth and the e_k are independent and alike.
Autocorrelation makes them larger and no more: each is the error of a whole chain. The reference is
m = 1/K sum_k m_k, and its error m - mu has the variance Var(e) / K. Take another average of the
same chains, h = sum_k w_k m_k with sum_k w_k = 1. Its distance to m is known, and

    Var(h - m) = (sum_k w_k^2 - 1 / K) Var(e)  =  Var(e) / K    where    sum_k w_k^2 = 2 / K.

So h is as far from the reference as the reference is from the truth, in law where the e_k are
Gaussian, as averages of many draws are. For an even K, h is the mean of half of the chains. Half
against the other half is twice as far.
"""

import itertools
import math
from collections.abc import Iterator
from typing import TypeVar

import torch

from stochens.likelihoods import Predicted

P = TypeVar("P", bound=Predicted)

MOST = 35  # ways to choose half of the chains, as many as 8 chains have beside their complements


def stand_ins(p: P) -> Iterator[P]:
    """Averages h of the chains, each as far from their mean as that is from the truth."""
    K = len(p.chains)
    a = K // 2  # chains that count more than the others; for an even K, alone
    more, less = 1 + math.sqrt((K - a) / a), 1 - math.sqrt(a / (K - a))
    for chosen in _choices(K, a):
        weights = [(more if k in chosen else less) / K for k in range(K)]
        yield p.of_chains(weights)


def _choices(K: int, a: int) -> list[tuple[int, ...]]:
    """Sets of a of the K chains: all that there are, or as many as are enough, at random."""
    if math.comb(K, a) <= 2 * MOST:
        return list(itertools.combinations(range(K), a))
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randperm(K, generator=generator)[:a].tolist()) for _ in range(2 * MOST)]


def as_if_apart(p: P) -> P:
    """The reference for some draws f of its own first K // 2 chains, as though they were others.

    f = m_A + (what so few draws leave), with m_A the mean of those a chains, m_B that of the b
    others. f - m would be too small, since f is in m; f - m_B is too large, since m_B has more
    noise than m. With r = (1 - u) m_A + u m_B, f - r has the variance that it would have with an
    m of other chains, Var(f) + Var(e) / K,  where  u^2 (1 / a + 1 / b) = 1 / a + 1 / K.
    """
    K = len(p.chains)
    a, b = K // 2, K - K // 2
    u = math.sqrt((1 / a + 1 / K) / (1 / a + 1 / b))
    return p.of_chains([(1 - u) / a] * a + [u / b] * b)
