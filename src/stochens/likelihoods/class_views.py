"""What predictions of classes show of themselves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochens import metrics
from stochens.figures.views import (
    Amount,
    Map,
    PartTable,
    Ranking,
    Reliability,
    Risk,
    Views,
    few,
    means_of_surest,
    name_of,
    percent,
    wilson,
)
from stochens.likelihoods.class_measures import Predicts
from stochens.metrics import dense
from stochens.metrics.bins import curve_of, tables
from stochens.metrics.per_class import scores_from

MOST_CONFUSED = 12  # classes of a confusion matrix
MOST_PLACES = 1_000_000  # of dense labels, whose risk is drawn
ON_THE_LINE = "On the dashed line the model is as often right as it says"
ABOVE = "below the line it is too sure of itself, above it not sure enough"


class Answers(NamedTuple):
    """The likeliest class of each place [B, P]: how likely, how right (0 to 1), whether it counts;
    P is 1 where labels are not dense."""

    confidence: Tensor
    right: Tensor
    kept: Tensor


class ClassViews(Views):
    """Of a `Predictive`: labels y [B], dense ones [B, ...], or soft ones [B, ..., C]."""

    def __init__(self, p: Predicts, check: Callable[[Tensor], Tensor]) -> None:
        self.p, self.check = p, check  # labels as whole numbers, or soft ones as they are
        self.dense = p.mean.dim() > 2

    def width(self) -> int:
        return self.p.mean.shape[-1]

    def _is_soft(self, y: Tensor) -> bool:
        return y.is_floating_point() and y.shape == self.p.mean.shape

    def _kept(self, y: Tensor) -> Tensor:
        """Which places count, [B, ...]."""
        if self._is_soft(y) or self.p.ignore_index is None:
            return torch.ones(self.p.mean.shape[:-1], dtype=torch.bool)
        return y.cpu() != self.p.ignore_index

    def _answers(self, y: Tensor, rows: slice = slice(None)) -> Answers:
        confidence, chosen = self.p.mean[rows].cpu().max(-1)
        own, kept = y[rows].cpu(), self._kept(y)[rows]
        if self._is_soft(y):
            right = own.double().gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        else:
            right = (chosen == own).double()
        return Answers(*(t.reshape(len(t), -1) for t in (confidence, right, kept)))

    def reliability(self, y: Tensor) -> Reliability:
        """In the bins that the ECE is measured in."""
        y = self.check(y)
        soft = self._is_soft(y)
        reading = f"{ON_THE_LINE}; {ABOVE}."
        if self.dense and not soft:
            seen = dense.statistics(self.p.mean, y, ignore_index=self.p.ignore_index)
            curve = curve_of(seen.bins)
            return Reliability(*curve, None, "confidence", "accuracy of places", reading)
        if soft:
            found = self._answers(y)
            curve = curve_of(tables(*found))
            return Reliability(*curve, None, "confidence", "expected accuracy", reading)
        kept = self._kept(y)
        flat = metrics.calibration_curve(self.p.mean[kept.to(self.p.mean.device)], y[kept])
        full = flat.count > 0
        confidence, accuracy, count = (column[full] for column in flat)
        bars = " Bars are 95 % intervals of each bin."
        ends = wilson(accuracy, count)
        return Reliability(confidence, accuracy, ends, "confidence", "accuracy", reading + bars)

    def risk(self, y: Tensor) -> Risk:
        found = self._answers(self.check(y))
        confidence, error = found.confidence[found.kept], 1 - found.right[found.kept]
        some = few(len(error), MOST_PLACES)
        risk = means_of_surest(confidence[some], error[some])
        coverage = torch.arange(1, len(risk) + 1, dtype=torch.float64) / len(risk)
        of = "places" if self.dense else "examples"
        reading = (
            f"How many answers are wrong if only the surest {of} are answered: the lower on the "
            "left, the better uncertainty tells right from wrong."
        )
        return Risk(coverage, risk, "errors among them", reading)

    def amounts(self, y: Tensor | None = None, names: Sequence[str] = ()) -> dict[str, Amount]:
        kept = None if y is None else self._kept(self.check(y))
        of = "place" if self.dense else "example"

        def values(t: Tensor) -> Tensor:
            return t.cpu() if kept is None else t.cpu()[kept]

        return {
            "entropy": Amount(
                values(self.p.entropy),
                "entropy, nats",
                f"All of the uncertainty about each {of}: 0 is sure.",
            ),
            "mutual information": Amount(
                values(self.p.mutual_information),
                "mutual information, nats",
                "What the members disagree on: more data of this kind could remove it.",
            ),
        }

    def parts(self, y: Tensor, names: Sequence[str] = ()) -> PartTable | None:
        y, classes = self.check(y), self.width()
        if self._is_soft(y):
            return None
        kept = self._kept(y)
        true, chosen = y.cpu()[kept], self.p.mean.argmax(-1).cpu()[kept]
        hit, labelled, predicted = (
            t.bincount(minlength=classes) for t in (true[true == chosen], true, chosen)
        )
        scores = scores_from(hit, labelled, predicted)
        columns = {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
        if self.dense:
            columns["IoU"] = hit.double() / (labelled + predicted - hit)
        columns["labels"] = scores.support
        reading = (
            "Precision is the share of a class's predictions that are right, recall the share of "
            "its labels that are found, F1 their harmonic mean."
        )
        confusion = None
        if classes <= MOST_CONFUSED:
            pairs = (true * classes + chosen).bincount(minlength=classes**2)
            confusion = pairs.reshape(classes, classes)
        listed = [name_of(k, names) for k in range(classes)]
        return PartTable("class", listed, columns, reading, confusion)

    def rankings(self, y: Tensor) -> list[Ranking]:
        found = self._answers(self.check(y))
        count = found.kept.sum(1).clamp_min(1)
        unsure = self.p.entropy.double().cpu().reshape(found.kept.shape)
        wrong = found.confidence * (1 - found.right)
        mean = [(t * found.kept).sum(1) / count for t in (unsure, wrong)]
        of = "mean entropy of their places" if self.dense else "entropy"
        return [
            Ranking(
                "Most uncertain",
                mean[0],
                f"Those with the largest {of}: are they hard, or foreign?",
            ),
            Ranking(
                "Most confidently wrong",
                mean[1],
                "Those that are wrong and sure of it: look for wrong labels and blind spots.",
            ),
        ]

    def say(self, row: int, y: Tensor, names: Sequence[str] = ()) -> str:
        y = self.check(y)
        if self.dense:
            _, right, kept = self._answers(y, slice(row, row + 1))
            return f"{percent(right[kept].mean())} of its places right" if kept.any() else ""
        probs = self.p.mean[row]
        chosen = int(probs.argmax())
        said = f"says {name_of(chosen, names)} ({percent(probs[chosen])})"
        if self._is_soft(y):
            likeliest = int(y[row].argmax())
            return f"{said}, truth {name_of(likeliest, names)} ({percent(y[row, likeliest])})"
        return f"{said}, is {name_of(y[row], names)}"

    def maps(self, row: int, y: Tensor) -> list[Map]:
        """Of dense labels: the truth, the prediction and its entropy, [H, W]; tokens are one line,
        of volumes it is the middle slice."""
        if not self.dense:
            return []
        y = self.check(y)
        truth = y[row].argmax(-1) if self._is_soft(y) else y[row]
        truth = truth.cpu().masked_fill(~self._kept(y)[row], -1)
        top = float(torch.tensor(float(self.width())).log())
        return [
            Map("truth", _plane(truth), None),
            Map("predicted", _plane(self.p.mean[row].argmax(-1).cpu()), None),
            Map("entropy", _plane(self.p.entropy[row].cpu()), top),
        ]


def _plane(values: Tensor) -> Tensor:
    """[H, W] of any axes."""
    while values.dim() > 2:
        values = values[len(values) // 2]
    return values if values.dim() == 2 else values.unsqueeze(0)
