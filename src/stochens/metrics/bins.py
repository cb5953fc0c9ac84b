"""Equally wide bins of confidence: which one a probability is in, and what is in each of them.

Dense labels and labels of yes or no have several places for each example, which depend on each
other. So tables of bins are kept example by example, and an interval sees how much these differ.
"""

import torch
from torch import Tensor

from stochens.metrics.ece_noise import bounds

BINS = 20


def place_of(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    """Which of the bins ((k - 1) / bins, k / bins] has each confidence in it, from 0; 0 is in the
    first. Edges are rounded as the probabilities were: 0.6 in float32 is a little above 3 / 5.

    >>> place_of(torch.tensor([0.0, 0.6, 0.61, 1.0]), 5, torch.float32)
    tensor([0, 2, 3, 4])
    """
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(dtype).double()
    return torch.bucketize(confidence.double().contiguous(), edges.to(confidence.device))


def tables(confidence: Tensor, right: Tensor, kept: Tensor) -> Tensor:
    """Of places [B, P] with probabilities as they came, how right they are, and which count: sums
    [B, BINS, 4] in float64 of ones, confidence, right, and (right - confidence)^2.

    >>> one = torch.tensor([[0.6, 0.98]])
    >>> tables(one, torch.tensor([[1.0, 1.0]]), torch.tensor([[True, False]]))[0, 11, 0]
    tensor(1., dtype=torch.float64)
    """
    place = place_of(confidence, BINS, confidence.dtype)
    confidence, right, kept = confidence.double(), right.double(), kept.double()
    columns = (torch.ones_like(kept), confidence, right, (right - confidence).square())
    empty = torch.zeros(len(place), BINS, dtype=torch.float64, device=place.device)
    return torch.stack([empty.scatter_add(1, place, kept * t) for t in columns], -1)


def binned_ece(tables: Tensor) -> float:
    """sum_k n_k / n |accuracy_k - confidence_k| over the bins of tables [B, bins, 4]."""
    count, confidence, right, _ = tables.double().sum(0).unbind(-1)
    return float((right - confidence).abs().sum() / count.sum())


def curve_of(tables: Tensor) -> tuple[Tensor, Tensor]:
    """Mean confidence and accuracy of the bins that are not empty."""
    count, confidence, right, _ = tables.sum(0).unbind(-1)
    full = count > 0
    return confidence[full] / count[full], right[full] / count[full]


def binned_bounds(tables: Tensor, *, level: float) -> tuple[float, float]:
    """The ends of an interval for the error that `binned_ece` estimates; see ece_noise.py."""
    tables = tables.double()
    tables = tables[:, tables[..., 0].sum(0) > 0]
    count, confidence, right, _ = tables.sum(0).unbind(-1)
    alike, together = design_effects(tables)
    return bounds(
        confidence / count, right / count, count, level=level, alike=alike, together=together
    )


def design_effects(tables: Tensor) -> tuple[Tensor, float]:
    """How many places tell as much as one would alone: in each bin [bins], and of the whole error.

    With e the error, right - confidence, of a place and d_k its mean in bin k,

        effect_k = sum_b (sum_(p in b) (e_p - d_k))^2 / sum_p (e_p - d_k)^2,

    each sum divided by what it is on average for independent places of variance 1. For the whole
    error, sum_k |sum_(p in k) e_p| / n, e_p - d_k is sign(d_k) e_p minus that error.
    """
    count, confidence, right, squares = tables.unbind(-1)  # [B, bins]
    error, n = right - confidence, count.sum(0)
    mean = error.sum(0) / n
    alike = _effect(error - count * mean, count, squares.sum(0) - n * mean.square())
    signed, of_each = (error * mean.sign()).sum(1), count.sum(1)  # [B]
    whole = signed.sum() / of_each.sum()
    left = squares.sum() - of_each.sum() * whole.square()
    return alike, float(_effect(signed - whole * of_each, of_each, left))


def _effect(residual: Tensor, count: Tensor, squares: Tensor) -> Tensor:
    """Of residuals and counts [B, ...] of examples, and squares [...] of residuals of places.

    It is from 1, as where each example has one place, to the size of an example, all of whose
    places are alike then. Few examples tell it badly, and one not at all: so one more is added that
    has the latter, as Laplace's rule adds examples.
    """
    n = count.sum(0)
    size = count.square().sum(0) / n  # of the example that a place is in, on average
    examples = n / size
    found = residual.square().sum(0) / (n - size) * (n - 1) / squares
    found = torch.where(found.isfinite(), found, size).clamp_min(1).minimum(size)
    return (examples * found + size) / (examples + 1)
