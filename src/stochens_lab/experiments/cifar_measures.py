"""What is measured of CIFAR predictions, each with its interval over images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochens import metrics
from stochens.comparison import compare
from stochens.metrics import Interval, bootstrap
from stochens.posterior.predictive import Predictive

BOOTSTRAPS = 1000  # over corruptions, of which there are few: cheap


def measure_labelled(p: Predictive, labels: Tensor, resamples: int) -> dict[str, Interval]:
    return dict(compare({"": p}, labels, resamples=resamples, show=False).rows[""])


def measure_closeness(probs: Tensor, reference: Tensor, resamples: int) -> dict[str, Interval]:
    """probs, reference [B, C]: of the published reference only the mean is known."""
    measures = {
        "agreement": metrics.agreement,
        "variance": metrics.total_variation,
        "entropy error": metrics.entropy_error,
    }
    return {
        name: bootstrap(measure, probs, reference, resamples=resamples)
        for name, measure in measures.items()
    }


def measure_ood(known: Tensor, unknown: Tensor, resamples: int) -> dict[str, Interval]:
    """AUROC of the highest probability, known [B, C] against unknown [B', C]."""
    return {
        "OOD AUROC": bootstrap(metrics.ood_auroc, known, unknown, resamples=min(resamples, 100))
    }


def measure_corrupted(probs: Tensor, labels: Tensor) -> dict[str, Interval]:
    """Values alone: the interval that counts is over the 80 sets."""
    values = {
        "accuracy": metrics.accuracy(probs, labels),
        "NLL": metrics.nll(probs, labels),
        "ECE": metrics.ece(probs, labels),
    }
    return {name: Interval(float(v), float(v), float(v)) for name, v in values.items()}


def average_corrupted(
    found: Mapping[tuple[str, int], Mapping[str, Interval]],
) -> dict[str, Interval]:
    """The mean over all sets, with a 95 % bootstrap interval over corruptions, which are the unit:
    the intensities of one go together."""
    names = sorted({name for name, _ in found})
    rows: dict[str, Interval] = {}
    for metric in next(iter(found.values())):
        by_corruption = torch.tensor(
            [
                float(np.mean([row[metric].value for (n, _), row in found.items() if n == name]))
                for name in names
            ]
        )
        rows[metric] = bootstrap(torch.mean, by_corruption.double(), resamples=BOOTSTRAPS)
    return rows


# Curves -------------------------------------------------------------------------------------------


def trace_members(
    probs: Tensor,  # [S, B, C], the first inference of every member first
    members: int,
    labels: Tensor,
    reference: Tensor | None,
    counts: Sequence[int],
) -> dict[str, Any]:
    """Ensembles of fewer members: the mean over all disjoint ones of each size."""
    sizes = [k for k in counts if k < members] + [members]
    parts = [[probs[k : k + size] for k in range(0, members - size + 1, size)] for size in sizes]
    return {"members": sizes, **_trace(parts, labels, reference)}


def trace_inferences(
    probs: Tensor,  # [S, B, C], inference after inference, of all members each
    members: int,
    labels: Tensor,
    reference: Tensor | None,
    counts: Sequence[int],
) -> dict[str, Any]:
    """All members with fewer inferences each."""
    sizes = [k for k in counts if k * members <= len(probs)]
    parts = [[probs[: size * members]] for size in sizes]
    return {"draws": sizes, **_trace(parts, labels, reference)}


def _trace(
    parts: Sequence[Sequence[Tensor]], labels: Tensor, reference: Tensor | None
) -> dict[str, list[float]]:
    """Of each size the mean over its ensembles, measure by measure."""
    found = [[_measure_mean(p.mean(0), labels, reference) for p in size] for size in parts]
    return {
        name: [float(np.mean([one[name] for one in size])) for size in found]
        for name in found[0][0]
    }


def _measure_mean(mean: Tensor, labels: Tensor, reference: Tensor | None) -> dict[str, float]:
    found = {
        "accuracy": float(metrics.accuracy(mean, labels)),
        "NLL": float(metrics.nll(mean, labels)),
    }
    if reference is not None:
        found["agreement"] = float(metrics.agreement(mean, reference))
        found["variance"] = float(metrics.total_variation(mean, reference))
    return found
