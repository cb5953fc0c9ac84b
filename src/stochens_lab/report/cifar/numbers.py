"""What the charts and the figures of CIFAR runs draw: histograms, gaps, boxes and curves."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from stochens.metrics import calibration_curve
from stochens_lab.report.cifar.rows import Row, Rows, parse_corruption
from stochens_lab.report.paper import CIFAR, TEST, paper_value
from stochens_lab.report.view import unique

BINS = 25  # of entropy
CUT = 2.5  # times the highest of the other bins
CONFIDENCE_BINS = 10
LEAST_IN_BIN = 20  # images: the accuracy of fewer is noise
CURVES = {"members curve": "members", "inferences curve": "draws"}  # its key -> that of its x


def compute_entropies(row: Row, place: str = TEST) -> np.ndarray | None:
    """Of the predictions [B]; from the mean where only that was published."""
    found = row.array(place, "entropy")
    mean = row.array(place, "mean")
    if found is None and mean is not None:
        p = np.clip(mean.astype(np.float64), 1e-30, 1)
        found = -(p * np.log(p)).sum(1)
    return None if found is None else found.astype(np.float64)


def compute_edges(rows: Sequence[Row]) -> np.ndarray:
    """From 0 to the most that any row has, or could have by its classes."""
    tops = [1e-6]
    for row in rows:
        mean, values = row.array(TEST, "mean"), compute_entropies(row)
        if mean is not None:
            tops.append(float(np.log(mean.shape[1])))
        elif values is not None:
            tops.append(float(values.max()))
    return np.linspace(0, max(tops), BINS + 1)


def compute_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Of all values, how large a share lies in each bin; what is above counts in the last."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return counts / max(len(values), 1)


def choose_height(histograms: Iterable[np.ndarray]) -> tuple[float, bool]:
    """How high the axis goes, and whether that cuts the first bin, which may hold most images and
    would make the others too small to see."""
    found = [h for h in histograms if len(h)]
    whole, rest = (max(float(h[first:].max()) for h in found) for first in (0, 1))
    cut = 0 < CUT * rest < whole
    return (CUT * rest, True) if cut else (1.04 * whole, False)


def measure_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Wasserstein: how far values move, on average, to make one distribution of the other.

    >>> measure_distance(np.array([0.0, 1.0]), np.array([1.5, 0.5]))
    0.5
    """
    if len(one) != len(other):
        levels = (np.arange(1000) + 0.5) / 1000
        one, other = np.quantile(one, levels), np.quantile(other, levels)
    return float(np.abs(np.sort(one) - np.sort(other)).mean())


class Calibration(NamedTuple):
    confidence: list[float]
    gap: list[float]  # accuracy - confidence


def compute_calibration(row: Row) -> Calibration | None:
    """In bins of equal width, those with enough images."""
    mean, labels = row.array(TEST, "mean"), row.labels(TEST)
    if mean is None or labels is None:
        return None
    probs, y = torch.from_numpy(mean.astype(np.float64)), torch.from_numpy(labels)
    curve = calibration_curve(probs, y, bins=CONFIDENCE_BINS, binning="equal-width")
    full = curve.count >= min(LEAST_IN_BIN, len(labels) / CONFIDENCE_BINS)
    gap = (curve.accuracy - curve.confidence)[full]
    return Calibration(curve.confidence[full].tolist(), gap.tolist())


def read_corrupted(row: Row, metric: str) -> dict[str, dict[int, float]]:
    """Corruption -> intensity -> value."""
    found: dict[str, dict[int, float]] = {}
    for domain in row.domains:
        at, interval = parse_corruption(domain), row.interval(domain, metric)
        if at is not None and interval is not None:
            found.setdefault(at[0], {})[at[1]] = interval.value
    return found


def find_intensities(rows: Sequence[Row]) -> list[int]:
    found = [parse_corruption(domain) for row in rows for domain in row.domains]
    return sorted({at[1] for at in found if at is not None})


def list_corrupted(row: Row, metric: str, intensity: int) -> list[float]:
    """The values of all corruptions of an intensity."""
    return [v[intensity] for v in read_corrupted(row, metric).values() if intensity in v]


def read_curve(row: Row, which: str, metric: str) -> tuple[list[float], list[float]] | None:
    """Values over the number of members, or of inferences."""
    found = row.training.get(which) or {}
    x, y = found.get(CURVES[which]) or [], found.get(metric) or []
    pairs = [(float(a), float(b)) for a, b in zip(x, y, strict=False) if b is not None and a > 0]
    return ([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def list_curve_metrics(rows: Sequence[Row], which: str) -> list[str]:
    """Agreement and variance first, then what else is there."""
    found = [name for row in rows for name in row.training.get(which) or {}]
    first = [name for name in ("agreement", "variance") if name in found]
    return [name for name in unique([*first, *found]) if name != CURVES[which]]


class Level(NamedTuple):
    """What to hold a curve against."""

    name: str
    value: float
    of_paper: bool


def find_level(rows: Rows, metric: str) -> Level | None:
    """The reference's own value, or that of the paper's SE1 where it is 1 or 0 by definition."""
    if metric in ("agreement", "variance"):
        paper = paper_value(CIFAR, rows.set_name, "SE1", TEST, metric)
        return None if paper is None else Level("SE1, paper", paper, True)
    found = ((row.name, row.interval(TEST, metric)) for row in rows.references)
    return next((Level(name, i.value, False) for name, i in found if i is not None), None)
