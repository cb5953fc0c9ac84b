"""Intervals over data draws and seeds, against their definition."""

import numpy as np
import pytest
from scipy import stats

from stochens.metrics import Interval
from stochens_lab.experiments.replicates import average_draws


def rows(*values):
    return [(draw, Interval(v, v - 1, v + 1)) for draw, v in values]


def test_one_replicate_keeps_its_interval_over_points():
    assert average_draws(rows((0, 5.0))) == Interval(5.0, 4.0, 6.0)


def test_draws_are_the_unit_not_seeds():
    found = average_draws(rows((0, 1.0), (0, 3.0), (1, 4.0), (1, 6.0), (2, 8.0), (2, 10.0)))
    means = np.array([2.0, 5.0, 9.0])
    low, high = stats.t.interval(0.95, 2, loc=means.mean(), scale=stats.sem(means))
    assert found.value == pytest.approx(means.mean())
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_draw_has_an_interval_over_its_seeds():
    found = average_draws(rows((0, 1.0), (0, 3.0), (0, 8.0)))
    low, high = stats.t.interval(0.95, 2, loc=4, scale=stats.sem([1, 3, 8]))
    assert (found.low, found.high) == pytest.approx((low, high))
