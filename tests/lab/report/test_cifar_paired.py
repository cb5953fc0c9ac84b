"""Differences of distances to HMC, against loops over repeated images and scipy's distance."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from tests.lab.report.cifar_sample import SET, cifar_run

from stochens import metrics
from stochens.metrics.information import entropy
from stochens_lab.report.cifar.claims import UNCLEAR, judge
from stochens_lab.report.cifar.numbers import measure_distance
from stochens_lab.report.cifar.paired import (
    ENTROPY,
    MEASURES,
    Images,
    Paired,
    _draw_resamples,
    _interval,
    compute_distances,
)
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.view import RunView

ROUNDING = 1e-12  # sums of some hundred doubles in another order


def sharp(rng: torch.Generator, logits: torch.Tensor) -> torch.Tensor:
    return (logits + 0.4 * torch.randn(logits.shape, generator=rng, dtype=torch.double)).softmax(1)


def problem(seed: int, size: int = 200) -> tuple[Images, Images]:
    """Two rows whose predictions are two draws of the same distribution about the reference."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=rng)
    logits = torch.randn(size, 4, generator=rng, dtype=torch.double)
    logits[torch.arange(size), labels] += 1.5
    reference = logits.softmax(1)
    one, other = (Images(sharp(rng, logits), reference, labels) for _ in range(2))
    return one, other


def test_distances_are_those_of_the_metrics_and_scipy():
    given, _ = problem(0)
    p, r, y = given
    found = compute_distances(given, resamples=1).value
    assert found["accuracy"] == pytest.approx(abs(metrics.accuracy(p, y) - metrics.accuracy(r, y)))
    assert found["NLL"] == pytest.approx(abs(metrics.nll(p, y) - metrics.nll(r, y)))
    assert found["agreement"] == pytest.approx(1 - metrics.agreement(p, r))
    assert found["variance"] == pytest.approx(metrics.total_variation(p, r))
    pair = entropy(p).numpy(), entropy(r).numpy()
    assert found[ENTROPY] == pytest.approx(wasserstein_distance(*pair), abs=ROUNDING)
    assert found[ENTROPY] == pytest.approx(measure_distance(*pair), abs=ROUNDING)


def test_a_resample_is_the_images_that_were_drawn():
    given, _ = problem(1)
    found = compute_distances(given, resamples=3, seed=7).resampled
    for k, times in enumerate(_draw_resamples(200, 3, 7)):
        index = torch.from_numpy(np.repeat(np.arange(200), times.astype(int)))
        assert len(index) == 200
        again = compute_distances(Images(*(array[index] for array in given)), resamples=1).value
        for name in MEASURES:
            assert found[name][k] == pytest.approx(again[name], abs=ROUNDING)


def test_the_interval_of_a_difference_is_that_of_its_terms():
    """Agreement and variance are means, so the normal interval of the differences is known."""
    one, other = problem(2, size=2000)
    a, b = compute_distances(one, resamples=4000), compute_distances(other, resamples=4000)
    for name, metric in (("agreement", metrics.agreement), ("variance", metrics.total_variation)):
        terms = metrics.per_example(metric, one[0], one[1])
        gain = terms - metrics.per_example(metric, other[0], other[1])
        gain = gain if name == "agreement" else -gain
        interval = _interval(b.value[name] - a.value[name], b.resampled[name] - a.resampled[name])
        half = 1.96 * gain.std().item() / math.sqrt(2000)
        # The end of a 95 % interval is known to about 0.04 standard errors from 4000 resamples
        # (sqrt(0.025 * 0.975 / 4000) / 0.058); 4 of those.
        slack = 0.17 * half / 1.96
        assert interval.value == pytest.approx(gain.mean().item(), abs=ROUNDING)
        assert interval.high - interval.value == pytest.approx(half, abs=slack)
        assert interval.value - interval.low == pytest.approx(half, abs=slack)


def test_rows_that_are_alike_are_seldom_told_apart():
    """Of 100 pairs without a difference about 5 are called clear; 14 is 4 standard deviations
    (sqrt(100 * 0.05 * 0.95) = 2.2) above that."""
    clear = dict.fromkeys(MEASURES, 0)
    for seed in range(100):
        a, b = (compute_distances(one, resamples=200) for one in problem(100 + seed))
        for name in MEASURES:
            values = b.resampled[name] - a.resampled[name]
            by = _interval(b.value[name] - a.value[name], values)
            clear[name] += judge(by) != UNCLEAR
    assert max(clear.values()) <= 14, clear


def paired(*runs):
    rows = gather([RunView(run, f"run{i}") for i, run in enumerate(runs)])[0]
    return Paired(rows), rows.methods


def test_a_row_is_no_closer_than_itself_and_pairing_takes_away_what_rows_share(tmp_path):
    runs = [
        cifar_run(tmp_path / f"{i}", name, closeness=c, images=1000, seed=3)
        for i, (name, c) in enumerate((("regular", 0.80), ("SE1 0.1", 0.85)))
    ]
    pair, (regular, se1) = paired(*runs)
    for same, _ in pair.compare(se1, se1).values():
        assert same == (0, 0, 0)
    found, turned_round = pair.compare(se1, regular), pair.compare(regular, se1)
    assert list(found) == list(MEASURES)
    by, back = ({name: one.by for name, one in each.items()} for each in (found, turned_round))
    for name, interval in by.items():
        turned = (-interval.value, -interval.high, -interval.low)
        assert back[name] == pytest.approx(turned, abs=ROUNDING)
    own = [pair.look_up(row).resampled["variance"] for row in (se1, regular)]
    apart = 2 * 1.96 * math.hypot(*(values.std() for values in own))
    assert by["variance"].high - by["variance"].low < 0.5 * apart  # one seed, so nearly one noise
    assert judge(by["variance"]) == "holds"


def test_rows_of_other_images_are_not_compared(tmp_path):
    few, many = cifar_run(tmp_path / "few", "SE3", images=100), cifar_run(tmp_path / "many")
    pair, (one, other) = paired(many, few)
    assert pair.compare(one, other) == {}
    many.arrays[f"{SET}/points/labels-test"] = np.full(300, 7)
    pair, (one, other) = paired(many, cifar_run(tmp_path / "more", "SE3"))
    assert pair.compare(one, other) == {}
    pair, (one, other) = paired(
        *(cifar_run(tmp_path / name, name, reference=False) for name in ("SE1 0.1", "SE3"))
    )
    assert pair.compare(one, other) == {}
