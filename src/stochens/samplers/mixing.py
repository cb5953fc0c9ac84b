"""Whether chains mixed: rank-normalised split R-hat and effective sample sizes, as Vehtari et al.
2021 define them.

Quantities are [chains, draws, K]. Each chain is split in two halves, so that one that drifts
differs from itself. Values are replaced by the normal scores of their ranks, so that heavy tails
do no harm.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_DRAWS = 4  # of a chain: it is split in two halves, and a variance needs two draws
MOST_QUANTITIES = 200  # of which R-hat and ESS are taken, evenly spaced
TAILS = (0.05, 0.95)


class Mixing(NamedTuple):
    """Of K quantities, each [K]: rank-normalised split R-hat, bulk and tail ESS."""

    rhat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor


def mixing(quantities: Tensor) -> Mixing:
    """R-hat and ESS of quantities [chains, draws, K]. One chain alone has no R-hat: NaN.

    >>> draws = torch.randn(4, 100, 3, generator=torch.Generator().manual_seed(0))
    >>> mixing(draws).rhat.shape
    torch.Size([3])
    """
    if quantities.shape[2] > MOST_QUANTITIES:
        quantities = quantities[..., :: -(-quantities.shape[2] // MOST_QUANTITIES)]
    q = quantities.detach().double().cpu()
    halves = split(q)
    bulk = effective(normal_scores(halves))
    ends = [torch.quantile(q.flatten(0, 1), tail, dim=0) for tail in TAILS]  # each [K]
    tails = torch.stack([effective(split((q <= end).double())) for end in ends])
    if len(q) == 1:
        return Mixing(torch.full_like(bulk, torch.nan), bulk, tails.amin(0))
    middle = torch.quantile(halves.flatten(0, 1), 0.5, dim=0)
    scores = normal_scores(halves), normal_scores((halves - middle).abs())
    # fmax: of two values that are as far from the middle, the distances to it have no R-hat
    return Mixing(torch.fmax(*map(rhat, scores)), bulk, tails.amin(0))


def split(q: Tensor) -> Tensor:
    """Two halves of each chain, as chains of their own: [2 chains, draws / 2, K]."""
    half = q.shape[1] // 2
    return torch.cat([q[:, :half], q[:, -half:]])


def normal_scores(q: Tensor) -> Tensor:
    """Phi^-1((rank - 3/8) / (S + 1/4)), the rank among all S values; ties share theirs."""
    flat = q.flatten(0, 1).T.contiguous()  # [K, S]
    ordered = flat.sort(1).values
    first = torch.searchsorted(ordered, flat)
    last = torch.searchsorted(ordered, flat, right=True)
    rank = (first + last + 1).double() / 2
    shares = (rank - 0.375) / (flat.shape[1] + 0.25)
    scores: Tensor = torch.special.ndtri(shares)
    return scores.T.reshape(q.shape)


def rhat(q: Tensor) -> Tensor:
    """sqrt(((n - 1) W + B) / (n W)), with W the mean variance of a chain of n draws and B / n the
    variance of the chains' means: [K]. inf where no chain moves and they differ."""
    n = q.shape[1]
    within = q.var(1).mean(0)
    between = n * q.mean(1).var(0)
    return ((between / within + n - 1) / n).sqrt()


def effective(q: Tensor) -> Tensor:
    """S / tau, tau = 1 + 2 sum_t rho_t, with Geyer's initial monotone sequence: [K].

    A quantity that never changes has S: there is nothing that it could hide.
    """
    M, n, K = q.shape
    covariance = _autocovariance(q).mean(0)  # [n, K]
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (q.mean(1).var(0) if M > 1 else 0.0)
    rho = 1 - (within - covariance) / total  # [n, K]
    rho[0] = 1.0
    last = max(0, (n - 3) // 2)  # pairs (2j, 2j + 1); of the last one rho_2j alone counts
    pairs = rho[: 2 * last + 2].view(last + 1, 2, K).sum(1)
    going = (pairs >= 0).long()
    going[0] = 1
    going[last] = 0
    kept = going.cumprod(0).bool()  # up to the first pair that is negative
    steady = pairs.where(kept, torch.inf).cummin(0).values.where(kept, 0.0)
    beyond = rho.gather(0, 2 * kept.sum(0, keepdim=True))[0].clamp_min(0)
    tau = -1 + 2 * steady.sum(0) + beyond
    size = M * n
    found = size / tau.clamp_min(1 / math.log10(size))
    still = q.flatten(0, 1).amax(0) - q.flatten(0, 1).amin(0) < torch.finfo(q.dtype).resolution
    return torch.where(still, float(size), found)


def _autocovariance(q: Tensor) -> Tensor:
    """mean_t (q_t - mean) (q_{t + lag} - mean), over n whatever the lag: [M, n, K], by FFT."""
    n = q.shape[1]
    length = 1 << (2 * n - 1).bit_length()
    spectrum = torch.fft.rfft(q - q.mean(1, keepdim=True), length, dim=1)
    products: Tensor = torch.fft.irfft(spectrum.abs().square(), length, dim=1)
    return products[:, :n] / n
