"""How good predictions of numbers are, as `compare` shows it."""

import math

import torch
from torch import Tensor

from stochens import metrics
from stochens.errors import InputError
from stochens.likelihoods.draws import Measure
from stochens.metrics import dense

LEVEL = 0.95  # of the intervals that are measured
PERCENT = f"{LEVEL:.0%}".replace("%", " %")


def number_measures(
    mean: Tensor, y: Tensor, nll: Tensor, crps: Tensor, interval: tuple[Tensor, Tensor] | None
) -> dict[str, Measure]:
    """Of mean, y, crps [B, ...] and nll [B]; interval: low and high, as y, where there are such.

    NaN in y is left out: means are over the targets that are there, intervals over examples.
    """
    mean, y, crps = (_columns(t) for t in (mean, y.to(mean), crps))
    there = (~y.isnan()).double()
    count = there.sum(1)
    y = y.where(y == y, mean)
    if bool((count == 0).any()):  # rows of which nothing is known
        some = count > 0
        if not bool(some.any()):
            raise InputError("no target is left to measure by: all are NaN")
        mean, y, crps, there, count, nll = (t[some] for t in (mean, y, crps, there, count, nll))
        interval = interval and (_columns(interval[0])[some], _columns(interval[1])[some])
    whole = bool((there == 1).all())

    def over(terms: Tensor) -> Measure:
        """The mean of terms [B, D] over the targets that are there."""
        if whole:
            return torch.mean, terms.double().mean(1)
        return dense.ratio, (terms.double().nan_to_num(0.0) * there).sum(1), count

    squares = metrics.per_example(metrics.rmse, mean[None], y) * y.shape[1]
    found: dict[str, Measure] = {
        "RMSE": (metrics.rmse, mean[None], y) if whole else (_root, squares, count),
        "NLL": (torch.mean, nll),
        "CRPS": over(crps),
    }
    if interval is None:
        return found
    low, high = (_columns(t) for t in interval)
    inside = ((low <= y) & (y <= high)).double()
    beyond = (low - y).clamp_min(0) + (y - high).clamp_min(0)
    return found | {
        f"{PERCENT} coverage": (metrics.coverage, low, high, y) if whole else over(inside),
        f"{PERCENT} width": over(high - low),
        f"{PERCENT} interval score": over(high - low + 2 / (1 - LEVEL) * beyond),
    }


def _columns(values: Tensor) -> Tensor:
    """[B, ...] as [B, D]."""
    return values.reshape(len(values), -1)


def _root(squares: Tensor, counts: Tensor) -> float:
    return math.sqrt(dense.ratio(squares, counts))
