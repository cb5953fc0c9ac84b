"""Distances to the reference over data draws and seeds, and the intervals that follow from both."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes a second to import

from stochens.comparison import LEVEL
from stochens.metrics import Interval, total_variation
from stochens.posterior.predictive import Predictive
from stochens_lab.report.closeness import closeness, own_noise
from stochens_lab.report.run_folder import TRAINING, RunFolder

Key = tuple[str, str, str]  # set, method, domain
RESAMPLES = 200


class Replicates:
    """Collects them. Where there will be several, no interval over test points is needed."""

    def __init__(self, *, several: bool) -> None:
        self._resamples = None if several else RESAMPLES
        self._found: dict[Key, list[tuple[int, dict[str, Interval]]]] = {}  # with the data draw
        self._curves: dict[Key, dict[int, list[float]]] = {}
        self._distances: dict[str, dict[int, list[float]]] = {}

    def add(
        self, key: Key, p: Predictive, reference: Predictive, *, draw: int, alone: bool = False
    ) -> None:
        """One prediction against the reference of the same data draw; `alone`: the only one."""
        row = closeness(p, reference, resamples=RESAMPLES if alone else self._resamples)
        self._found.setdefault(key, []).append((draw, row))

    def add_noise(self, key: Key, reference: Predictive, *, draw: int, alone: bool) -> None:
        """How far the reference of a data draw is from the truth, by its own chains."""
        row = own_noise(reference, resamples=RESAMPLES if alone else self._resamples)
        self._found.setdefault(key, []).append((draw, row))

    def add_curve(self, key: Key, steps: int, p: Predictive, reference: Predictive) -> None:
        """Its distance after so many steps of training."""
        distance = total_variation(p.mean, reference.mean)
        self._curves.setdefault(key, {}).setdefault(steps, []).append(distance)

    def add_distance(self, set_name: str, steps: int, value: float) -> None:
        """Between SE3's two sets after so many steps."""
        self._distances.setdefault(set_name, {}).setdefault(steps, []).append(value)

    def write(self, folder: RunFolder) -> None:
        """Put them in their tables, and write the folder."""
        for key, rows in self._found.items():
            means = {m: average_draws([(draw, row[m]) for draw, row in rows]) for m in rows[0][1]}
            folder.put_row(key, means)
        for (set_name, method, domain), curve in self._curves.items():
            folder.put(TRAINING, (set_name, method, "curve", domain), _average_curve(curve))
        for set_name, distances in self._distances.items():
            folder.put(TRAINING, (set_name, "SE3", "set distance"), _average_curve(distances))
        folder.write()


def _average_curve(curve: dict[int, list[float]]) -> dict[str, Any]:
    steps = sorted(curve)
    return {
        "step": steps,
        "mean": [float(np.mean(curve[s])) for s in steps],
        "sd": [float(np.std(curve[s])) for s in steps],
    }


def average_draws(rows: list[tuple[int, Interval]]) -> Interval:
    """The mean, with Student's 95 % interval over data draws, each the mean over its seeds.

    With one draw, over its seeds; with one of both, the interval over test points stays.

    >>> average_draws([(0, Interval(1.0, 0, 0)), (1, Interval(3.0, 0, 0))]).value
    2.0
    """
    if len(rows) == 1:
        return rows[0][1]
    by_draw: dict[int, list[float]] = {}
    for draw, interval in rows:
        by_draw.setdefault(draw, []).append(interval.value)
    groups = [statistics.fmean(values) for values in by_draw.values()]
    return over_seeds(next(iter(by_draw.values())) if len(groups) == 1 else groups)


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean and Student's 95 % interval for it.

    >>> [round(v, 3) for v in over_seeds([0.7, 0.8, 0.9])]
    [0.8, 0.552, 1.048]
    """
    mean, n = statistics.fmean(values), len(values)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)
