"""What predictions of labels of yes or no show of themselves."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from stochens.figures.views import (
    Amount,
    PartTable,
    Ranking,
    Reliability,
    Risk,
    Views,
    means_of_surest,
    name_of,
    percent,
)
from stochens.likelihoods.targets import present
from stochens.metrics.bins import curve_of, tables

MOST_SAID = 4  # labels of one example


class Answered(Protocol):
    """What is shown: a `MultilabelPredictive`."""

    @property
    def mean(self) -> Tensor: ...  # [B, L]

    @property
    def entropy(self) -> Tensor: ...

    @property
    def mutual_information(self) -> Tensor: ...


class LabelViews(Views):
    """Labels y [B, L] of 0 and 1, NaN where nobody gave one."""

    def __init__(self, p: Answered, check: Callable[[Tensor], Tensor]) -> None:
        self.p, self._check = p, check

    def width(self) -> int:
        return self.p.mean.shape[-1]

    def _read(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P(yes), the truth, and whether it is known; [B, L] in float64 on the CPU."""
        own, there = present(self._check(y).double().cpu())
        return self.p.mean.double().cpu(), own, there

    def reliability(self, y: Tensor) -> Reliability:
        """In the bins that the ECE is measured in."""
        _, own, there = self._read(y)
        curve = curve_of(tables(self.p.mean.cpu(), own, there))
        reading = (
            "On the dashed line a label is there as often as its probability says; below it "
            "probabilities are too high, above it too low."
        )
        return Reliability(*curve, None, "probability of yes", "share of yes", reading)

    def risk(self, y: Tensor) -> Risk:
        mean, own, there = self._read(y)
        sure, wrong = torch.maximum(mean, 1 - mean), ((mean > 0.5).double() != own).double()
        risk = means_of_surest(sure[there], wrong[there])
        coverage = torch.arange(1, len(risk) + 1, dtype=torch.float64) / len(risk)
        reading = (
            "How many labels are wrong if only the surest of all are answered: the lower on the "
            "left, the better uncertainty tells right from wrong."
        )
        return Risk(coverage, risk, "errors among them", reading)

    def amounts(self, y: Tensor | None = None, names: Sequence[str] = ()) -> dict[str, Amount]:
        there = ... if y is None else self._read(y)[2]
        return {
            "entropy": Amount(
                self.p.entropy.cpu()[there],
                "entropy, nats",
                "All of the uncertainty about each label: 0 is sure.",
            ),
            "mutual information": Amount(
                self.p.mutual_information.cpu()[there],
                "mutual information, nats",
                "What the members disagree on: more data of this kind could remove it.",
            ),
        }

    def parts(self, y: Tensor, names: Sequence[str] = ()) -> PartTable:
        mean, own, there = self._read(y)
        said, known = (mean > 0.5).double() * there, there.double()
        hit, yes = (said * own).sum(0), (own * known).sum(0)
        columns = {
            "precision": _share(hit, said.sum(0)),
            "recall": _share(hit, yes),
            "F1": _share(2 * hit, said.sum(0) + yes),
            "share of yes": yes / known.sum(0),
            "mean probability": (mean * known).sum(0) / known.sum(0),
            "known": known.sum(0).long(),
        }
        reading = (
            "Precision is the share of a label's predictions that are right, recall the share of "
            "its yes that are found, F1 their harmonic mean."
        )
        labels = [name_of(k, names) for k in range(self.width())]
        return PartTable("label", labels, columns, reading)

    def rankings(self, y: Tensor) -> list[Ranking]:
        mean, own, there = self._read(y)
        wrong = ((mean > 0.5).double() != own) & there
        sure = torch.maximum(mean, 1 - mean)
        return [
            Ranking(
                "Most uncertain",
                self.p.entropy.double().cpu().sum(1),
                "Those with the largest sum of their labels' entropies: are they hard, or foreign?",
            ),
            Ranking(
                "Most confidently wrong",
                sure.where(wrong, 0.0).amax(1),
                "Those with a wrong label that was thought surest: look for wrong labels and blind "
                "spots.",
            ),
        ]

    def say(self, row: int, y: Tensor, names: Sequence[str] = ()) -> str:
        mean, own, there = (t[row] for t in self._read(y))
        said = [f"{name_of(k, names)} ({percent(mean[k])})" for k in _first(mean > 0.5)]
        true = [name_of(k, names) for k in _first((own > 0.5) & there)]
        return f"says {_listed(said)}; is {_listed(true)}"


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """0 where it is 0 / 0."""
    return part / whole.where(whole > 0, 1.0)


def _first(which: Tensor) -> list[int]:
    found: list[int] = which.nonzero().squeeze(1).tolist()
    return found


def _listed(words: list[str]) -> str:
    more = len(words) - MOST_SAID
    return ", ".join([*words[:MOST_SAID], *([f"{more} more"] if more > 0 else [])]) or "none"
