"""Entropy and mutual information of an equal mixture of S distributions of one family, in nats."""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from stochens.randomness.seeds import seeded

DRAWS = 512  # of y, by which what has no closed form is estimated
AT_ONCE = 1 << 22  # probabilities of counts
MOST_COUNTS = 20_000  # that are added up one by one


def information(each: Distribution, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """H[mean p] and H[mean p] - mean H[p] of `each` [S, B, D], in float64: [B, D] each, or [B]
    where the family's log_prob is of all targets together.

    counts: 0, 1, ... as far as they have any probability, where all of it is there: the sums are
    exact then. Otherwise the mutual information is the mean of log p_s(y) - log p(y) over DRAWS y,
    with a standard error of its standard deviation (at most about 1 nat) over the root of DRAWS.
    Where the family knows the entropy of a draw, the error of H is that of the mutual information.
    """
    if counts is not None:
        return _by_sums(each, counts)
    unsure, own = _by_draws(each)
    with contextlib.suppress(NotImplementedError):
        own = each.entropy().double().mean(0)
    unsure = unsure.clamp_min(0.0)
    return own.reshape(unsure.shape) + unsure, unsure


def _by_draws(each: Distribution) -> tuple[Tensor, Tensor]:
    """Mean log p_s(y) - log p(y) and mean -log p_s(y), over y ~ p_s for as many s."""
    count = each.batch_shape[0]
    rounds = math.ceil(DRAWS / count)
    chosen = range(0, count, max(1, count // DRAWS))
    gain, own = torch.zeros(()), torch.zeros(())
    with seeded(0):  # torch.distributions know no generator of one's own
        for _ in range(rounds):
            y = each.sample()  # [S, B, D]
            for s in chosen:
                log_probs = each.log_prob(y[s])  # [S, B, D]
                gain = gain + log_probs[s] - log_probs.logsumexp(0) + math.log(count)
                own = own - log_probs[s]
    total = rounds * len(chosen)
    return gain / total, own / total


def tables(each: Distribution, counts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some counts [K, 1, 1, 1], and the probabilities that each of S gives them, [K, S, B, D]."""
    size = max(1, AT_ONCE // max(1, math.prod(each.batch_shape)))
    for some in counts.split(size):
        k = some.view(-1, *(1 for _ in each.batch_shape))
        yield k, each.log_prob(k.expand(-1, *each.batch_shape)).exp()


def _by_sums(each: Distribution, counts: Tensor) -> tuple[Tensor, Tensor]:
    whole, own = torch.zeros(()), torch.zeros(())
    for _, probs in tables(each, counts):
        whole = whole + torch.special.entr(probs.mean(1)).sum(0)
        own = own + torch.special.entr(probs).mean(1).sum(0)
    return whole, (whole - own).clamp_min(0.0)


def discrete_crps(each: Distribution, counts: Tensor, y: Tensor) -> Tensor:
    """sum_k (P(Y <= k) - 1[y <= k])^2 of the mixture, y [B, D] -> [B, D]."""
    below, total = torch.zeros_like(y), torch.zeros_like(y)
    for k, probs in tables(each, counts):
        cdf = below + probs.mean(1).cumsum(0)  # [K, B, D]
        total = total + (cdf - (y <= k[:, 0]).double()).square().sum(0)
        below = cdf[-1]
    return total + (y - 1 - counts[-1]).clamp_min(0.0)  # counts from there to y: P(Y <= k) is 1
