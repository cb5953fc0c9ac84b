"""Exact bounds on a rate, from counts: n trials, k of which came true."""

import math

import torch

HALVINGS = 60  # of a bracket in [0, 1]: beyond float64's precision


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k), by the sum of its terms in logarithms.

    >>> round(binomial_cdf(1, 2, 0.5), 12), binomial_cdf(0, 10, 0.0), binomial_cdf(9, 10, 1.0)
    (0.75, 1.0, 0.0)
    """
    if k >= n or p <= 0:
        return 1.0 if k >= 0 else 0.0
    if k < 0 or p >= 1:
        return 0.0
    j = torch.arange(k + 1, dtype=torch.float64)
    rest = n - j
    ways = math.lgamma(n + 1) - (j + 1).lgamma() - (rest + 1).lgamma()
    return min(1.0, (ways + j * math.log(p) + rest * math.log1p(-p)).logsumexp(0).exp().item())


def upper_bound(k: int, n: int, delta: float) -> float:
    """Clopper and Pearson's: the rate p with P(Bin(n, p) <= k) = delta. Of whatever rate there is,
    the bound is below it with probability delta at most.

    >>> round(upper_bound(0, 58, 0.05), 4), upper_bound(5, 5, 0.05)  # the "rule of three"
    (0.0503, 1.0)
    """
    if k >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(k, n, middle) > delta else (low, middle)
    return high


def tolerance_rank(n: int, rate: float, delta: float) -> int:
    """The largest r with P(U_(r) <= rate) >= 1 - delta, of the r-th smallest of n numbers from
    U(0, 1), which is Beta(r, n + 1 - r); 0 where there is none.

    P(U_(r) <= rate) = P(Bin(n, rate) >= r)

    >>> tolerance_rank(100, 0.1, 0.05), tolerance_rank(20, 0.1, 0.05)
    (5, 0)
    """
    low, high = 0, n  # P falls with r; at r = 0 it is 1
    while low < high:
        r = (low + high + 1) // 2
        fits = 1 - binomial_cdf(r - 1, n, rate) >= 1 - delta
        low, high = (r, high) if fits else (low, r - 1)
    return low
