"""Predictions whose probabilities hold: a temperature, and conformal sets and intervals.

All of it is fitted on held-out examples: none that the members were trained on.

>>> import stochens
>>> x, y = stochens.toy_set("a", n=200)
>>> posterior = stochens.fit(stochens.MLP(2, 5, 2), (x[:100], y[:100]), members=3, epochs=5)
>>> held_out = x[100:150], y[100:150]
>>> posterior = stochens.calibration.fit_temperature(posterior, held_out)
>>> posterior.calibration.nll <= posterior.calibration.nll_before
True
>>> sets = stochens.calibration.conformal_sets(posterior.predict(x[150:180]), y[150:180], alpha=0.1)
>>> sets(posterior.predict(x[180:])).shape  # [B, C], whether each class is in the set
torch.Size([20, 2])
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stochens.checks import whole, whole_seed
from stochens.data import Data, Replicas, source
from stochens.errors import InputError, outside
from stochens.likelihoods import Likelihood
from stochens.posterior.conformal import smallest_calibration_set
from stochens.posterior.conformal_intervals import ConformalIntervals, conformal_intervals
from stochens.posterior.conformal_sets import ConformalSets, conformal_sets
from stochens.posterior.outputs import outputs_of
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Sums
from stochens.posterior.temperature import Calibration
from stochens.trees import Input, cat

__all__ = [
    "Calibration",
    "ConformalIntervals",
    "ConformalSets",
    "conformal_intervals",
    "conformal_sets",
    "fit_temperature",
    "outputs_of",
    "smallest_calibration_set",
]

OCTAVES = 10  # temperatures from 2^-10 to 2^10 are looked at, first by half octaves
SHRINKS = 30  # of the bracket then, each by the golden ratio: to 1e-6 of an octave
BLOCK = 1 << 24  # numbers of outputs at a time


def fit_temperature(posterior: Posterior, data: Any, *, draws: int = 1, seed: int = 0) -> Posterior:
    """The posterior with the temperature T that suits held-out data (x, y) best.

    For classes every member's logits are divided by one T, and T minimises the NLL of what is
    predicted, the mean probability of all members:

        NLL(T) = -1/B sum_b log 1/S sum_s softmax(logits_sb / T)_{y_b}

    Members' logits and not the logarithm of the mean: the mean of tempered members is still an
    average of distributions, so that mutual information and draws keep their meaning. Not a T that
    suits each member alone: the mean of calibrated members is less sure than they are.
    For regression T is a factor of the predictive standard deviation, about the same mean.

    T = 1 is one of the temperatures that are tried, and the best is taken: the NLL of
    `predict(x, draws=draws, seed=seed)` on these examples never rises. `predict`, `export`, `save`
    and `load` keep T, and `posterior.calibration` and `summary()` tell it;
    `posterior.uncalibrated()` is without.

    data: (x, y), a Dataset or a DataLoader, of examples that were not trained on. The outputs of
        all draws [S, B, C] are held at once; a few thousand examples are enough.

    >>> import stochens
    >>> x, y = stochens.toy_set("a", n=200)
    >>> posterior = stochens.fit(stochens.MLP(2, 5, 2), (x[:100], y[:100]), members=3, epochs=5)
    >>> found = fit_temperature(posterior, (x[100:], y[100:])).calibration
    >>> found.nll <= found.nll_before, found.examples
    (True, 100)
    """
    whole(draws=draws)
    whole_seed(seed)
    x, y = _held_out(posterior, data)
    y = posterior.likelihood.check_targets(y)
    outputs = outputs_of(posterior, x, draws=draws, seed=seed)  # [S, B, C]
    if not bool(outputs.isfinite().all()):
        raise InputError(
            "outputs at the held-out examples are NaN or inf; drop the members that diverged"
        )

    def nll(log_temperature: float) -> float:
        return _nll(posterior.likelihood, outputs, y, math.exp(log_temperature))

    before = nll(0.0)
    best, least = minimise(nll, before)
    coldest, hottest = (nll(sign * OCTAVES * math.log(2)) for sign in (-1, 1))
    if hottest == before == least:
        warnings.warn(
            f"every temperature gives these {len(y)} held-out examples the same NLL: outputs are "
            "alike for all classes, or too large for a temperature to matter. It stays 1",
            stacklevel=outside(),
        )
    elif coldest <= least:
        warnings.warn(
            f"the NLL of these {len(y)} held-out examples falls as long as the temperature does: "
            "all of them are predicted right, and they cannot tell how sure to be. The temperature "
            "stays 1; give more held-out examples",
            stacklevel=outside(),
        )
        best, least = 0.0, before
    elif best > (OCTAVES - 0.5) * math.log(2):
        warnings.warn(
            f"the NLL of these {len(y)} held-out examples falls as long as the temperature rises: "
            f"they are predicted no better than by chance. At T = {2**OCTAVES} predictions say "
            "next to nothing; are the labels of these examples right?",
            stacklevel=outside(),
        )
    found = Calibration(math.exp(best), len(y), before, least)
    return dataclasses.replace(posterior, calibration=found)


def _held_out(posterior: Posterior, data: Any) -> tuple[Input, Tensor]:
    """All of x [B, ...] and y [B, ...]."""
    calling, asked = posterior.recipe.calling, Data.of(data)
    target = asked.target or (None if calling is None else calling.target)
    if asked.weights is not None or isinstance(asked.data, Replicas):
        raise InputError(
            "held-out examples have no weights and are one data set: give (x, y), a Dataset or a "
            "DataLoader"
        )
    given = source(Data(asked.data, target=target, size=asked.size))
    if given.loader is None:
        return given.x, given.y
    xs, ys = zip(*given.batches(), strict=True)
    x: Input = cat(list(xs))
    return x, torch.cat(ys)


def _nll(likelihood: Likelihood, outputs: Tensor, y: Tensor, temperature: float) -> float:
    """By the steps that `predict` takes, so that both see the same rounding."""
    count, rows = outputs.shape[:2]
    sums = Sums(likelihood, count, rows, keep=True, groups=1, of_rows=rows, temperature=temperature)
    some = max(1, BLOCK // max(1, outputs[0].numel()))
    for first in range(0, count, some):
        block = outputs[first : first + some]
        sums.add(block, rows=slice(0, rows), first_draw=first)
    return -sums.result().log_prob(y).mean().item()


def minimise(f: Callable[[float], float], at_zero: float) -> tuple[float, float]:
    """(log T, f) of the least f found, and (0, f(0)) where none is below that.

    f may have several minima, as the NLL of a mixture may: a grid first, then a golden section
    between the neighbours of its best point. Every value that was seen is a candidate.

    >>> log_t, least = minimise(lambda t: (t - 0.3) ** 2, 0.09)
    >>> round(log_t, 5), least < 1e-10
    (0.3, True)
    """
    half = math.log(2) / 2
    grid = [half * k for k in range(-2 * OCTAVES, 2 * OCTAVES + 1) if k != 0]
    seen = {0.0: at_zero} | {t: value for t in grid if (value := f(t)) == value}
    middle = min(seen, key=lambda t: (seen[t], abs(t)))
    low, high = max(middle - half, grid[0]), min(middle + half, grid[-1])
    golden = (math.sqrt(5) - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    seen[a], seen[b] = f(a), f(b)
    for _ in range(SHRINKS):
        if seen[a] <= seen[b]:
            high, b = b, a
            a = high - golden * (high - low)
            seen[a] = f(a)
        else:
            low, a = a, b
            b = low + golden * (high - low)
            seen[b] = f(b)
    best = min(seen, key=lambda t: (seen[t], abs(t)))
    return best, seen[best]
