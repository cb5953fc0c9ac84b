"""One table with every metric, method by method, each with its interval."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError, did_you_mean
from stochens.likelihoods import Predicted
from stochens.metrics import Interval, bootstrap
from stochens.reference_noise import stand_ins
from stochens.text_table import GAP, folded, text_table

LEVEL = 0.95
WIDTH = 80  # columns of a terminal that does not say how many it has
OWN_NOISE = ", its own noise"  # ends the name of the row that has the noise of the reference
BESIDE, BELOW = " ", "\n"  # where an interval stands: beside its value, if there is room


class Comparison(NamedTuple):
    """`rows[method][metric]` is an Interval(value, low, high)."""

    rows: dict[str, dict[str, Interval]]

    def tables(self, width: int = WIDTH) -> list[str]:
        """As text: a row for each metric, a column for each method. Several, one below the
        other, where the methods are too many for this width."""
        names = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        left = width - max(map(len, names), default=0) - len(GAP)
        whole = len(self.rows) * (_longest(self.rows, BESIDE) + len(GAP)) <= left
        between = BESIDE if whole else BELOW
        column = _longest(self.rows, between)
        each = max(1, left // (column + len(GAP)))  # methods side by side
        methods = list(self.rows)
        groups = [methods[k : k + each] for k in range(0, len(methods), each)]
        return [_table({m: self.rows[m] for m in some}, names, between, column) for some in groups]

    def __str__(self) -> str:
        return "\n\n".join(self.tables())

    def __repr__(self) -> str:
        metrics = {name for row in self.rows.values() for name in row}
        return f"Comparison({len(self.rows)} methods, {len(metrics)} metrics)"


def _cell(interval: Interval | None, between: str) -> str:
    if interval is None:
        return "-"
    value, low, high = (f"{number:.3f}" for number in interval)
    return f"{value}{between}({low}, {high})"


def _longest(rows: dict[str, dict[str, Interval]], between: str) -> int:
    """The longest line of numbers, which are never broken; a method's name is."""
    cells = (_cell(interval, between) for row in rows.values() for interval in row.values())
    return max((len(line) for cell in cells for line in cell.splitlines()), default=1)


def _table(rows: dict[str, dict[str, Interval]], names: list[str], between: str, width: int) -> str:
    """Of methods that fit side by side, with the metrics that any of them has."""
    heads = ["", *(folded(method, width) for method in rows)]
    cells = [
        [name, *(_cell(row.get(name), between) for row in rows.values())]
        for name in names
        if any(name in row for row in rows.values())
    ]
    return text_table(heads, cells)


def compare(
    predictions: Mapping[str, Predicted],
    y: Tensor,
    *,
    reference: str | None = None,
    ood: Mapping[str, Predicted] | None = None,
    resamples: int = 300,
    seed: int = 0,
    show: bool = True,
) -> Comparison:
    """Measure predictions for the same inputs side by side, and print the table.

    `reference` names the row the others are held against (HMC, say): agreement, total variation,
    and the mean absolute differences of entropy and mutual information. Where the reference has
    chains, one more row, "HMC, its own noise", is the noise of the reference itself: how far its
    mean is from that of infinitely many draws, as the differences between its chains tell. The
    exact posterior would be about as far from the reference. What all chains have wrong is not in
    it.

    `ood` holds predictions by the same names for inputs that are not of this kind, and adds how
    well those are told apart: "OOD AUROC" by the largest mean probability, "OOD AUROC (MI)" by
    mutual information, for which there must be members that can disagree. Intervals are 95 %
    bootstrap intervals over the examples; that of ECE allows for what chance adds to it, as
    `metrics.ece_interval` does, also of dense labels and of several yes or no.

    >>> from stochens import Predictive
    >>> draws = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.4, 0.6]]])  # [S, B, C]
    >>> table = compare({"mine": Predictive.of(draws)}, torch.tensor([0, 1]), show=False)
    >>> table.rows["mine"]["accuracy"].value
    1.0
    """
    if not isinstance(predictions, Mapping):
        raise InputError("predictions must be a dict of names: {'mine': p}")
    if not predictions:
        raise InputError("nothing to compare: predictions is empty")
    given: list[tuple[str, object]] = [*predictions.items(), *(ood or {}).items()]
    for name, one in given:
        if not isinstance(one, Predicted):
            kind = type(one).__name__
            raise InputError(f"{name!r} must be what posterior.predict(x) gives, got a {kind}")
    for asked in (reference, *(ood or {})):
        if asked is not None and asked not in predictions:
            hint = did_you_mean(asked, predictions)
            raise InputError(
                f"{asked!r} is not among the predictions{hint or ':'} {list(predictions)}"
            )
    _refuse_other_kinds([*predictions.values(), *(ood or {}).values()])
    y = torch.as_tensor(y)
    sample = partial(bootstrap, resamples=resamples, level=LEVEL, seed=seed)
    rows: dict[str, dict[str, Interval]] = {}
    for name, p in predictions.items():
        stated = p.measures(y).items()
        rows[name] = {what: sample(metric, *tensors) for what, (metric, *tensors) in stated}
        if reference is not None:
            rows[name] |= _closeness([p], predictions[reference], sample)
        if ood and name in ood:
            stated = p.apart(ood[name]).items()
            rows[name] |= {what: sample(metric, *tensors) for what, (metric, *tensors) in stated}
        if name == reference and len(p.chains) > 1:
            rows[name + OWN_NOISE] = _own_noise(p, sample)
    comparison = Comparison(rows)
    if show:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        print(*comparison.tables(width), sep="\n\n")
    return comparison


Sample = Callable[..., Interval]


def _refuse_other_kinds(given: list[Predicted]) -> None:
    kinds = {type(p) for p in given}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"only predictions of one kind can be compared, got {names}")


def closeness(p: Predicted, reference: Predicted, *, resamples: int | None) -> dict[str, Interval]:
    """How far p is from the reference, as its kind states it: of classes agreement, total
    variation, and mean absolute differences of entropy and mutual information.

    `resamples=None`: the values alone, where replicates will give the intervals.
    """
    return _closeness([p], reference, _sample(resamples))


def own_noise(p: Predicted, *, resamples: int | None) -> dict[str, Interval]:
    """The same of a reference p with two chains or more to the truth: see reference_noise.py."""
    return _own_noise(p, _sample(resamples))


def _sample(resamples: int | None) -> Sample:
    if resamples is None:
        return _value_alone
    return partial(bootstrap, resamples=resamples, level=LEVEL)


def _value_alone(metric: Callable[..., float | Tensor], *arrays: Tensor) -> Interval:
    value = float(metric(*arrays))
    return Interval(value, value, value)


def _own_noise(p: Predicted, sample: Sample) -> dict[str, Interval]:
    return _closeness(list(stand_ins(p)), p, sample)


def _closeness(
    found: Sequence[Predicted], reference: Predicted, sample: Sample
) -> dict[str, Interval]:
    """Of several, the mean over them, example by example."""
    terms = [p.beside(reference) for p in found]
    return {
        name: sample(torch.mean, torch.stack([each[name] for each in terms]).mean(0))
        for name in terms[0]
    }
