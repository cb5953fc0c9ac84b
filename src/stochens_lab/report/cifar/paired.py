"""Two rows on the same test images: which is closer to the reference, and by how much.

Every measure is a distance to the reference r, 0 for its own predictions:

    accuracy            |accuracy(p) - accuracy(r)|
    NLL                 |NLL(p) - NLL(r)|
    agreement           1 - agreement(p, r)
    variance            variance(p, r)
    entropy histogram   integral |F_p(h) - F_r(h)| dh, the Wasserstein-1 distance in nats between
                        the distributions of predictive entropy over images, F cumulative shares

Images are drawn anew with replacement, the same for both rows and for the reference: what makes an
image hard is then in both distances, and not in their difference.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from stochens import metrics
from stochens.metrics import Interval
from stochens.metrics.information import entropy
from stochens_lab.report.cifar.rows import Row, Rows
from stochens_lab.report.paper import TEST

ENTROPY = "entropy histogram"
MEASURES = ("accuracy", "NLL", "agreement", "variance", ENTROPY)
RESAMPLES = 1000
LEVEL = 0.95


class Images(NamedTuple):
    """Predictions of a row and of its reference for the same images."""

    probs: torch.Tensor  # [B, C]
    reference: torch.Tensor  # [B, C]
    labels: torch.Tensor  # [B]


def find_images(rows: Rows, row: Row) -> Images | None:
    """None where something is missing."""
    reference = rows.reference_of(row)
    if reference is None:
        return None
    found = row.array(TEST, "mean"), reference.array(TEST, "mean"), row.labels(TEST)
    if any(array is None for array in found):
        return None
    probs, other, labels = (torch.from_numpy(np.asarray(array)) for array in found)
    return Images(probs.double(), other.double(), labels)


class Distances(NamedTuple):
    """By measure: on all images, and on each of the resamples [R]."""

    images: Images
    value: dict[str, float]
    resampled: dict[str, np.ndarray]


def compute_distances(given: Images, *, resamples: int = RESAMPLES, seed: int = 0) -> Distances:
    """The same seed draws the same images for every row."""
    p, r, y = given
    terms = [
        metrics.per_example(metrics.accuracy, p, y) - metrics.per_example(metrics.accuracy, r, y),
        metrics.per_example(metrics.nll, p, y) - metrics.per_example(metrics.nll, r, y),
        1 - metrics.per_example(metrics.agreement, p, r),
        metrics.per_example(metrics.total_variation, p, r),
    ]
    columns = torch.stack(terms, 1).numpy()  # [B, 4]
    wasserstein = _Wasserstein(entropy(p).numpy(), entropy(r).numpy())
    size = len(y)
    found = np.array(
        [
            [*np.abs(times @ columns / size), wasserstein(times)]
            for times in (np.ones(size), *_draw_resamples(size, resamples, seed))
        ]
    )  # [1 + R, 5]; the first is of all images, once each
    return Distances(
        given,
        dict(zip(MEASURES, found[0].tolist(), strict=True)),
        dict(zip(MEASURES, found[1:].T, strict=True)),
    )


def _draw_resamples(size: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each image is drawn [B]."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(size, size=size), minlength=size).astype(float)


class _Wasserstein:
    """Wasserstein-1 between weighted samples: sorted once, whatever the weights."""

    def __init__(self, one: np.ndarray, other: np.ndarray) -> None:
        both = np.concatenate([one, other])
        self.order = np.argsort(both, kind="stable")
        self.steps = np.diff(both[self.order])  # dh

    def __call__(self, times: np.ndarray) -> float:
        signed = np.concatenate([times, -times])[self.order] / times.sum()
        return float(np.abs(np.cumsum(signed)[:-1]) @ self.steps)  # |F_p - F_r| dh


class Difference(NamedTuple):
    """By how much the first of two rows is closer, and the distances of both."""

    by: Interval
    pair: tuple[float, float]


class Paired:
    """Differences between the rows of a table; what one row needs is computed once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._known: dict[str, Distances | None] = {}

    def look_up(self, row: Row) -> Distances | None:
        if row.name not in self._known:
            given = find_images(self.rows, row)
            self._known[row.name] = None if given is None else compute_distances(given)
        return self._known[row.name]

    def compare(self, one: Row, other: Row) -> dict[str, Difference]:
        """By measure, how much smaller the distance of `one` is; empty if images differ."""
        first, second = self.look_up(one), self.look_up(other)
        if first is None or second is None or not _share_images(first.images, second.images):
            return {}
        found = {}
        for name in MEASURES:
            pair = first.value[name], second.value[name]
            values = second.resampled[name] - first.resampled[name]
            if np.isfinite([*pair, *values]).all():
                found[name] = Difference(_interval(pair[1] - pair[0], values), pair)
        return found


def _share_images(one: Images, other: Images) -> bool:
    return torch.equal(one.labels, other.labels) and torch.equal(one.reference, other.reference)


def _interval(value: float, values: np.ndarray) -> Interval:
    """Percentiles; distances are never negative, which can move them all past the value: it is
    taken in, so that nothing is called clear that the images themselves do not show."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))
