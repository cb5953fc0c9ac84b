"""One table with every metric, method by method, each with its bootstrap interval."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stochens import metrics
from stochens.errors import InputError, did_you_mean
from stochens.metrics import Interval, bootstrap
from stochens.predict.predictive import GaussianPredictive, Predictive

LEVEL = 0.95


class Comparison(NamedTuple):
    """`rows[method][metric]` is an Interval(value, low, high)."""

    rows: dict[str, dict[str, Interval]]

    def table(self) -> Table:
        """A rich table: a row for each metric, a column for each method."""
        names = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
        table.add_column("", no_wrap=True)
        for method in self.rows:
            table.add_column(method, justify="right", no_wrap=True)
        gap = " " if len(self.rows) <= 2 else "\n"  # what fits a terminal of 80 columns
        for name in names:
            table.add_row(name, *(_cell(row.get(name), gap) for row in self.rows.values()))
        return table

    def __str__(self) -> str:
        console = Console(width=200, color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()


def _cell(interval: Interval | None, gap: str) -> str:
    if interval is None:
        return "-"
    value, low, high = (f"{number:.3f}" for number in interval)
    return f"{value}{gap}[dim]({low}, {high})[/dim]"


def compare(
    predictions: Mapping[str, Predictive] | Mapping[str, GaussianPredictive],
    y: Tensor,
    *,
    reference: str | None = None,
    ood: Mapping[str, Predictive] | None = None,
    resamples: int = 300,
    seed: int = 0,
    show: bool = True,
) -> Comparison:
    """Measure predictions for the same inputs side by side, and print the table.

    `reference` names the row the others are held against (HMC, say): agreement, variance, and the
    mean absolute differences of entropy and mutual information. Where the reference has chains, one
    more row tells what it reaches against itself, half of its chains against the other half: the
    ceiling, since no approximation can be seen to be nearer than that. `ood` holds predictions by
    the same names for inputs that are not of this kind: AUROC. Intervals are 95 % bootstrap
    intervals over the examples.

    >>> draws = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.4, 0.6]]])  # [S, B, C]
    >>> table = compare({"mine": Predictive.of(draws)}, torch.tensor([0, 1]), show=False)
    >>> table.rows["mine"]["accuracy"].value
    1.0
    """
    if not predictions:
        raise InputError("nothing to compare: predictions is empty")
    for given in (reference, *(ood or {})):
        if given is not None and given not in predictions:
            hint = did_you_mean(given, predictions)
            raise InputError(f"{given!r} is not among the predictions{hint} {list(predictions)}")
    y = torch.as_tensor(y)
    sample = partial(bootstrap, resamples=resamples, level=LEVEL, seed=seed)
    rows: dict[str, dict[str, Interval]] = {}
    for name, p in predictions.items():
        if isinstance(p, GaussianPredictive):
            rows[name] = _regression(p, y, sample)
            continue
        rows[name] = _classification(p, y, sample)
        if reference is not None:
            against = predictions[reference]
            assert isinstance(against, Predictive)
            rows[name] |= _closeness(p, against, sample)
        if ood and name in ood:
            rows[name]["OOD AUROC"] = sample(metrics.ood_auroc, p.mean, ood[name].mean)
        if name == reference and len(p.chains) > 1:
            rows[f"{name}, chain to chain"] = _closeness(*halves(p), sample)
    comparison = Comparison(rows)
    if show:
        Console(file=sys.stdout).print(comparison.table())
    return comparison


Sample = Callable[..., Interval]


def _classification(p: Predictive, y: Tensor, sample: Sample) -> dict[str, Interval]:
    return {
        "accuracy": sample(metrics.accuracy, p.mean, y),
        "NLL": sample(metrics.nll, p.mean, y),
        "Brier": sample(metrics.brier, p.mean, y),
        "ECE": sample(metrics.ece, p.mean, y),
        "AURC": sample(metrics.aurc, p.mean, y),
        "entropy": sample(torch.mean, p.entropy),
        "MI": sample(torch.mean, p.mutual_information),
    }


def closeness(
    p: Predictive, reference: Predictive, *, resamples: int | None = 300, seed: int = 0
) -> dict[str, Interval]:
    """Agreement, variance, and mean absolute differences of entropy and mutual information.

    `resamples=None`: the values alone, where replicates will give the intervals.
    """
    if resamples is None:
        return _closeness(p, reference, _value_alone)
    return _closeness(p, reference, partial(bootstrap, resamples=resamples, level=LEVEL, seed=seed))


def _value_alone(metric: Callable[..., float | Tensor], *arrays: Tensor) -> Interval:
    value = float(metric(*arrays))
    return Interval(value, value, value)


def _closeness(p: Predictive, reference: Predictive, sample: Sample) -> dict[str, Interval]:
    mi_gap = (p.mutual_information - reference.mutual_information).abs()
    return {
        "agreement": sample(metrics.agreement, p.mean, reference.mean),
        "variance": sample(metrics.variance, p.mean, reference.mean),
        "entropy error": sample(metrics.entropy_error, p.mean, reference.mean),
        "MI error": sample(torch.mean, mi_gap),
    }


def halves(p: Predictive) -> tuple[Predictive, Predictive]:
    """What the first half of a sampler's chains says, and what the others say."""
    middle = len(p.chains) // 2
    parts = []
    for chains in (p.chains[:middle], p.chains[middle:]):
        means, aleatorics = ([c.mean for c in chains], [c.aleatoric for c in chains])
        mean, aleatoric = torch.stack(means).mean(0), torch.stack(aleatorics).mean(0)
        parts.append(Predictive(mean, aleatoric, None))
    return parts[0], parts[1]


def _regression(p: GaussianPredictive, y: Tensor, sample: Sample) -> dict[str, Interval]:
    y = y.unsqueeze(1) if y.dim() == 1 else y
    means, variances = p.components()
    low, high = p.interval(LEVEL)
    return {
        "RMSE": sample(metrics.rmse, means, y),
        "NLL": sample(metrics.gaussian_nll, means, variances, y),
        "95 % coverage": sample(metrics.coverage, low, high, y),
        "95 % width": sample(torch.mean, (high - low).mean(-1)),
    }
