"""The directions in which mini-batches are noisiest, and the friction that a chain has there.

In the coordinates q / s of the steps the noise of mini-batches has a few directions that hold
hundreds of times the variance of the others: those that all examples pull along. If they were all
that limits the size of steps, a chain would hardly move. But a posterior is narrow there, so that
the chain may have much friction in these directions and loses nothing. With orthonormal v_j, the
noise's variance n_j along each, and V V' = sum_j v_j v_j',

    p <- beta p + sum_j (beta_j - beta) v_j v_j' p - s g + noise,
    1 - beta_j = n_j / (SHARE 2 T), at least 1 - beta and at most 1,

and what is injected along v_j has the variance  2 (1 - beta_j) T - n_j.  Any friction leaves the
posterior as it is, as long as what is injected belongs to it (Chen et al. 2014).

The v_j are the largest principal directions of the differences (g' - g) / sqrt(2), by a sketch that
keeps COUNT of them and takes in as many new ones at a time. Then n_j is measured on further steps,
since along directions that were fitted to noise it would seem to be large.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stochens.randomness.hashed import STIFF, normal

COUNT = 32  # directions of a chain, or fewer:
NUMBERS = 1 << 24  # that they may have together, 64 MB in float32
SHARE = 0.5  # of what friction lets in, that may come from batches


class Noisy(NamedTuple):
    """Of each chain."""

    rows: Tensor  # [M, 2 k, D]: k principal directions times their size, and k new differences
    v: Tensor  # [M, k, D], of length 1, or 0 where there are fewer
    square: Tensor  # [M, k], float64: the sum of squares along each, then the variance
    friction: Tensor  # [M, k], float64: 1 - beta_j
    held: Tensor  # [M, D], the variance of a coordinate's noise that lies in the directions


def none(q: Tensor, friction: float, *, wanted: bool) -> Noisy:
    """Before anything is known; without any directions where they are not wanted."""
    M, D = q.shape
    k = min(COUNT, D, max(1, NUMBERS // D)) if wanted else 0
    square = torch.zeros(M, k, dtype=torch.float64, device=q.device)
    rows, held = q.new_zeros(M, 2 * k, D), q.new_zeros(M, D if wanted else 0)
    return Noisy(rows, q.new_zeros(M, k, D), square, square + friction, held)


def sketched(noisy: Noisy, half: Tensor, looks: int) -> Noisy:
    """With one more difference [M, D], the `looks`-th from 1 on."""
    k = noisy.v.shape[1]
    rows = noisy.rows.clone() if looks == 1 else noisy.rows
    if looks == 1:
        rows.zero_()
    at = (looks - 1) % k
    rows[:, k + at] = half
    if at == k - 1:
        rows = _compressed(rows)
    return noisy._replace(rows=rows)


def _compressed(rows: Tensor) -> Tensor:
    """The k principal directions of 2 k rows, times their size; the other rows are 0."""
    k = rows.shape[1] // 2
    large = rows.double().nan_to_num(0.0, 0.0, 0.0)  # a chain that is lost harms no other
    _, u = torch.linalg.eigh(large @ large.mT)  # ascending
    first = u[:, :, k:].flip(2).mT @ large  # [M, k, D]
    return torch.cat([first, torch.zeros_like(first)], 1).to(rows)


def found(noisy: Noisy) -> Noisy:
    """The directions of all that was sketched; nothing is known of the noise along them yet."""
    first = _compressed(noisy.rows)[:, : noisy.v.shape[1]]
    length = torch.linalg.vector_norm(first, dim=2, keepdim=True)
    largest = length.amax(1, keepdim=True)
    v = torch.where(length > 1e-3 * largest, first / length, 0.0)
    return noisy._replace(v=v, square=torch.zeros_like(noisy.square))


def along(noisy: Noisy, x: Tensor) -> Tensor:
    """v_j . x, [M, D] -> [M, k]."""
    return _products(noisy.v, x.to(noisy.v).unsqueeze(2)).squeeze(2)


def _products(v: Tensor, x: Tensor) -> Tensor:
    """[M, k, D], [M, D, n] -> [M, k, n]. A GPU's batched product gives each chain of such a shape
    to one block of threads, which goes through all D alone."""
    return _by_sums(v, x) if v.is_cuda else v @ x


def _by_sums(v: Tensor, x: Tensor) -> Tensor:
    return torch.stack([(v * one.unsqueeze(1)).sum(2) for one in x.unbind(2)], 2)


def spread_out(noisy: Noisy, parts: Tensor) -> Tensor:
    """sum_j parts_j v_j, [M, k] -> [M, D]."""
    return (noisy.v.mT @ parts.to(noisy.v).unsqueeze(2)).squeeze(2)


def measured(noisy: Noisy, half: Tensor) -> tuple[Noisy, Tensor]:
    """With one more difference [M, D], and what is left of it beside the directions."""
    parts = along(noisy, half)
    square = noisy.square + parts.double().square()
    return noisy._replace(square=square), half - spread_out(noisy, parts)


def averaged(noisy: Noisy, count: int) -> Noisy:
    """With variances in the place of sums of so many squares."""
    return noisy._replace(square=noisy.square / max(1, count))


def share_of(noisy: Noisy, temperature: float) -> Tensor:
    """By how much the noise along the largest is above what any friction takes, [M]."""
    return noisy.square.amax(1) / (2 * temperature * SHARE)


def rubbed(
    noisy: Noisy, factor: Tensor, momentum: float, temperature: float, *, last: bool
) -> Noisy:
    """With the friction for the noise that is left when lr is multiplied by `factor` [M]. last:
    whether nothing more will be sketched."""
    square = noisy.square * factor.unsqueeze(1)
    friction = (square / (2 * temperature * SHARE)).clamp(1 - momentum, 1.0)
    rows = noisy.rows[:, :0] if last else noisy.rows
    held = (square.unsqueeze(1).to(noisy.v) @ noisy.v.square()).squeeze(1)
    return noisy._replace(rows=rows, square=square, friction=friction, held=held)


def turned(
    noisy: Noisy, p: Tensor, kick: Tensor, key: Tensor, step: int, *, momentum: float, T: float
) -> Tensor:
    """beta p + kick, [M, D], as it is with the friction of the directions."""
    both = _products(noisy.v, torch.stack([p, kick], 2).to(noisy.v))  # [M, k, 2]
    width = (2 * noisy.friction * T - noisy.square).clamp_min(0.0).sqrt()
    xi = normal(key, torch.full_like(key, step), STIFF, noisy.v.shape[1])
    other = (1 - momentum - noisy.friction) * both[..., 0] + width * xi - both[..., 1]
    return momentum * p + kick + spread_out(noisy, other)


def as_if_free(noisy: Noisy, p: Tensor, momentum: float) -> Tensor:
    """p with the variance along each direction that it would have with beta: 2 T / (1 + beta)."""
    ratio = ((2 - noisy.friction) / (1 + momentum)).sqrt()
    return p + spread_out(noisy, (ratio - 1) * along(noisy, p))
