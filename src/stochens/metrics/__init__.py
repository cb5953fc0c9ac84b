"""Metrics: pure functions of (probs, labels), (probs, reference), draws, or Gaussian mixtures.

Axes: S draws, B examples, C classes, D outputs. Inputs are checked here and computed with in
float64; scalars come back as Python floats, curves as CPU tensors. The predicted class is the
argmax, and of equally probable classes the first.
"""

from collections.abc import Callable
from functools import partial
from math import inf, log, pi
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.metrics.bins import binned_bounds, binned_ece, place_of
from stochens.metrics.dense import class_scores, confusion_matrix, mean_iou
from stochens.metrics.ece_noise import bounds
from stochens.metrics.information import entropy, mutual_information
from stochens.metrics.inputs import (
    Pair,
    checked_real,
    with_labels,
    with_reference,
    with_targets,
)
from stochens.metrics.numbers import (
    crps,
    gaussian_crps,
    interval_score,
    laplace_crps,
    pinball,
)
from stochens.metrics.ood import ood_auroc, ood_auroc_mi
from stochens.metrics.per_class import ClassScores
from stochens.metrics.terms import PER_EXAMPLE, averages, per_example

__all__ = [
    "CalibrationCurve",
    "ClassScores",
    "Interval",
    "RiskCoverage",
    "accuracy",
    "agreement",
    "aurc",
    "bootstrap",
    "brier",
    "calibration_curve",
    "class_scores",
    "confusion_matrix",
    "coverage",
    "crps",
    "ece",
    "ece_interval",
    "entropy",
    "entropy_error",
    "gaussian_crps",
    "gaussian_nll",
    "interval_score",
    "laplace_crps",
    "mean_iou",
    "mi_error",
    "mutual_information",
    "nll",
    "ood_auroc",
    "ood_auroc_mi",
    "per_example",
    "pinball",
    "ranked_probability_score",
    "risk_coverage",
    "rmse",
    "total_variation",
]

Binning = Literal["equal-mass", "equal-width"]


class CalibrationCurve(NamedTuple):
    """Mean confidence and accuracy of each bin (NaN where empty) and its count; all [bins]."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class RiskCoverage(NamedTuple):
    """Error rate `risk` among the most confident share `coverage` of the examples; both [B]."""

    coverage: Tensor
    risk: Tensor


class Interval(NamedTuple):
    """A metric's value on the sample and the ends of its interval."""

    value: float
    low: float
    high: float


@averages
def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Accuracy = mean_b 1[argmax_c p_bc = y_b].    probs [B, C], labels [B]

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    probs, labels = with_labels(probs, labels)
    return (probs.argmax(-1) == labels).double()


@averages
def nll(probs: Tensor, labels: Tensor) -> Tensor:
    """NLL = mean_b -log p_b,y_b in nats; inf where a label has probability 0.

    probs [B, C], labels [B]

    >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0])), 4)
    0.3466
    """
    probs, labels = with_labels(probs, labels)
    return 0 - probs.gather(-1, labels[:, None]).squeeze(-1).log()  # 0 - 0 is 0, not -0


@averages
def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Brier = mean_b sum_c (p_bc - 1[y_b = c])^2, in [0, 2].    probs [B, C], labels [B]

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0]))
    1.25
    """
    probs, labels = with_labels(probs, labels)
    target = torch.nn.functional.one_hot(labels, probs.shape[-1])  # [B, C]
    return (probs - target).square().sum(-1)


@averages
def ranked_probability_score(probs: Tensor, labels: Tensor) -> Tensor:
    """RPS = mean_b sum_k (P_b(Y <= k) - 1[y_b <= k])^2, for classes in an order, in [0, C - 1].

    probs [B, C], labels [B]

    >>> ranked_probability_score(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([2]))
    1.25
    """
    probs, labels = with_labels(probs, labels)
    places = torch.arange(probs.shape[-1], device=probs.device)
    return (probs.cumsum(-1) - (labels[:, None] <= places).double()).square().sum(-1)


@averages
def agreement(probs: Tensor, reference: Tensor) -> Tensor:
    """Agreement = mean_b 1[argmax_c p_bc = argmax_c r_bc].    probs, reference [B, C]

    >>> agreement(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]]))
    0.5
    """
    probs, reference = with_reference(probs, reference)
    return (probs.argmax(-1) == reference.argmax(-1)).double()


@averages
def total_variation(probs: Tensor, reference: Tensor) -> Tensor:
    """Total variation = mean_b 1/2 sum_c |p_bc - r_bc|, in [0, 1].    probs, reference [B, C]

    >>> total_variation(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.75, 0.25]]))
    0.25
    """
    probs, reference = with_reference(probs, reference)
    return (probs - reference).abs().sum(-1) / 2


@averages
def entropy_error(probs: Tensor, reference: Tensor) -> Tensor:
    """Entropy error = mean_b |H[p_b] - H[r_b]| in nats.    probs, reference [B, C]

    >>> round(entropy_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])), 4)
    0.6931
    """
    probs, reference = with_reference(probs, reference)
    return (entropy(probs) - entropy(reference)).abs()


@averages
def mi_error(draws: Tensor, reference_draws: Tensor) -> Tensor:
    """MI error = mean_b |MI_b - MI'_b| in nats.    draws [S, B, C], reference_draws [S', B, C]

    >>> opposed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> round(mi_error(opposed, opposed[:1]), 4)
    0.6931
    """
    draws, reference_draws = with_reference(draws, reference_draws, "[S, B, C]")
    return (mutual_information(draws) - mutual_information(reference_draws)).abs()


@averages
def gaussian_nll(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """NLL of the equal mixture = mean_b -log 1/S sum_s prod_d N(y_bd; mean_sbd, variance_sbd).

    means, variances [S, B, D], y [B, D]

    >>> round(gaussian_nll(torch.zeros(3, 1, 1), torch.ones(3, 1, 1), torch.zeros(1, 1)), 4)
    0.9189
    """
    means, y = with_targets(means, y)
    variances = checked_real(variances, "variances", means)
    if variances.min() <= 0:
        raise InputError(f"variances must be > 0, got {variances.min():.4g}; did you pass logs?")
    log_density = -0.5 * ((y - means).square() / variances + variances.log() + log(2 * pi)).sum(-1)
    log_density = log_density.nan_to_num(-inf, inf, -inf)  # of inf / inf: infinitely wide, or far
    return log(len(means)) - log_density.logsumexp(0)  # [B], from [S, B]


@partial(averages, average=lambda squares: squares.mean().sqrt())
def rmse(means: Tensor, y: Tensor) -> Tensor:
    """RMSE = sqrt mean_bd (mean_s mean_sbd - y_bd)^2, of the mixture's mean.

    means [S, B, D], y [B, D]

    >>> rmse(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[3.0]]))
    2.0
    """
    means, y = with_targets(means, y)
    return (means.mean(0) - y).square().mean(-1).nan_to_num(inf, inf)  # of inf - inf: far


@averages
def coverage(low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """Coverage = mean_bd 1[low_bd <= y_bd <= high_bd].    low, high, y all [B] or all [B, D]

    >>> coverage(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.5
    """
    low, high, y = (checked_real(t, n, y) for t, n in ((low, "low"), (high, "high"), (y, "y")))
    if (low > high).any():
        raise InputError(f"low must not exceed high, got {int((low > high).sum())}; swapped?")
    return ((low <= y) & (y <= high)).double().reshape(len(y), -1).mean(-1)


def _ranked(probs: Tensor, labels: Tensor) -> Pair:
    """Confidences max_c p in ascending order, and whether each example was right; both [B].

    Examples tied in confidence each get the accuracy of their group, the mean over all orders of
    the group: nothing that follows depends on the order of the input.
    """
    probs, labels = with_labels(probs, labels)
    confidence, order = probs.amax(-1).cpu().sort()
    correct = (probs.argmax(-1) == labels).cpu()[order]
    _, group, size = torch.unique_consecutive(confidence, return_inverse=True, return_counts=True)
    return confidence, (group.bincount(correct.double()) / size)[group]


def calibration_curve(
    probs: Tensor, labels: Tensor, *, bins: int = 20, binning: Binning = "equal-mass"
) -> CalibrationCurve:
    """Mean confidence and accuracy per bin of confidence max_c p.    probs [B, C], labels [B]

    equal-mass: the sorted confidences in `bins` groups whose sizes differ by at most one, the
    larger first; ties across an edge share their accuracy, so that input order does not matter.
    As in Izmailov et al. 2021, but their code leaves out the examples that lie on the edges.
    equal-width: bin k is ((k - 1) / bins, k / bins] as in Guo et al. 2017, its edges in the dtype
    of probs; 1.0 is in the last.

    >>> probs, labels = torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([1, 0])
    >>> calibration_curve(probs, labels, bins=2).accuracy
    tensor([0., 1.], dtype=torch.float64)
    >>> calibration_curve(probs, labels, bins=2, binning="equal-width").count
    tensor([0, 2])
    """
    confidence, correct = _ranked(probs, labels)
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if binning == "equal-mass":
        sizes = [(len(correct) + bins - 1 - k) // bins for k in range(bins)]
    elif binning == "equal-width":
        sizes = place_of(confidence, bins, probs.dtype).bincount(minlength=bins).tolist()
    else:
        raise InputError(f"binning must be 'equal-mass' or 'equal-width', got {binning!r}")
    return CalibrationCurve(
        torch.stack([part.mean() for part in torch.split(confidence, sizes)]),
        torch.stack([part.mean() for part in torch.split(correct, sizes)]),
        torch.tensor(sizes),
    )


def ece(probs: Tensor, labels: Tensor, *, bins: int = 20, binning: Binning = "equal-mass") -> float:
    """ECE = sum_k n_k / B |accuracy_k - confidence_k| over the bins of `calibration_curve`.

    Papers report it. It is above the true error, most with few examples: a calibrated model has
    gaps by chance. `ece_interval` allows for them.

    >>> ece(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([1, 0]), bins=2)
    0.375
    """
    curve = calibration_curve(probs, labels, bins=bins, binning=binning)
    gap = (curve.accuracy - curve.confidence).abs()  # [bins]
    return ((curve.count * gap).nansum() / curve.count.sum()).item()


def ece_interval(
    probs: Tensor,
    labels: Tensor,
    *,
    bins: int = 20,
    binning: Binning = "equal-mass",
    level: float = 0.95,
) -> Interval:
    """ece and an interval for the error of calibration that it estimates (see ece_noise.py).

    The lower end is free of what chance adds to ece, and 0 if the model may be calibrated. The
    true error of the bins is inside at least as often as `level` says.

    >>> probs, labels = torch.tensor([[0.75, 0.25]] * 400), torch.tensor([0, 1] * 200)
    >>> value, low, high = ece_interval(probs, labels, bins=1)
    >>> f"{value:.2f} ({low:.2f} to {high:.2f})"
    '0.25 (0.20 to 0.30)'
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level!r}")
    curve = calibration_curve(probs, labels, bins=bins, binning=binning)
    low, high = bounds(*(column[curve.count > 0] for column in curve), level=level)
    return Interval(ece(probs, labels, bins=bins, binning=binning), low, high)


def risk_coverage(probs: Tensor, labels: Tensor) -> RiskCoverage:
    """risk_k = error rate of the k most confident examples, at coverage_k = k / B, k = 1..B.

    probs [B, C], labels [B]. Ties: the mean over their orders.

    >>> risk_coverage(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([1, 0])).risk
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    error = 1 - _ranked(probs, labels)[1].flip(0)
    rank = torch.arange(1, len(error) + 1, dtype=torch.double)
    return RiskCoverage(rank / len(error), error.cumsum(0) / rank)


def aurc(probs: Tensor, labels: Tensor) -> float:
    """AURC = 1/B sum_k risk_k, the area under `risk_coverage`.    probs [B, C], labels [B]

    >>> aurc(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([1, 0]))
    0.25
    """
    return risk_coverage(probs, labels).risk.mean().item()


def bootstrap(
    metric: Callable[..., float | Tensor],
    *arrays: Tensor,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of metric(*arrays) over examples drawn anew with replacement.

    A metric that averages terms (see `per_example`) takes its usual arrays; the terms are computed
    once and resampled. Any other function gets arrays with B as first axis, all resampled alike,
    but the two sets of `ood_auroc` and `ood_auroc_mi` are resampled apart. The ends are order
    statistics of the resamples, rounded outwards; the indices are drawn on the CPU, so that a seed
    means the same anywhere. For `ece` the answer is that of `ece_interval`, without resampling:
    repeated examples raise ece, which lies too high already. Likewise for the ECE of dense labels.

    >>> probs, labels = torch.tensor([[0.75, 0.25], [0.5, 0.5]] * 50), torch.tensor([0, 1] * 50)
    >>> bootstrap(accuracy, probs, labels).value
    0.5
    >>> other = torch.full((100, 2), 0.5)  # the difference of two methods, example by example
    >>> gain = per_example(brier, other, labels) - per_example(brier, probs, labels)
    >>> bootstrap(torch.mean, gain).low > 0
    True
    """
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples >= 1 and 0 < level < 1 must hold, got {resamples}, {level}")
    if metric in PER_EXAMPLE:
        terms, metric = PER_EXAMPLE[metric]
        arrays = (terms(*arrays).cpu(),)
    shapes = [tuple(array.shape) for array in arrays]
    sizes = [shape[0] if shape else 0 for shape in shapes]
    apart = metric in (ood_auroc, ood_auroc_mi)
    if not arrays or 0 in sizes or (len(set(sizes)) > 1 and not apart):
        raise InputError(f"arrays must share a first axis B >= 1, got {shapes}; use movedim(1, 0)")
    if getattr(metric, "func", metric) is ece:  # with other bins it is a partial
        return ece_interval(*arrays, level=level, **getattr(metric, "keywords", {}))
    if metric is binned_ece:
        return Interval(binned_ece(*arrays), *binned_bounds(*arrays, level=level))
    generator = torch.Generator().manual_seed(int(seed))
    values = torch.empty(resamples, dtype=torch.double)
    for r in range(resamples):
        drawn = [torch.randint(n, (n,), generator=generator) for n in sizes[: 2 if apart else 1]]
        indices = drawn if apart else drawn * len(arrays)
        values[r] = float(metric(*(a[index] for a, index in zip(arrays, indices, strict=True))))
    value = float(metric(*arrays))
    low = values.quantile((1 - level) / 2, interpolation="lower").item()
    high = values.quantile((1 + level) / 2, interpolation="higher").item()
    return Interval(value, low, high)
