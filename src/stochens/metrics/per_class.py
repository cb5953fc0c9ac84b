"""Precision, recall and F1 of each class, by scikit-learn's definitions."""

from typing import NamedTuple

import torch
from torch import Tensor


class Macro(NamedTuple):
    """Means over classes, each with the same weight."""

    precision: float
    recall: float
    f1: float


class ClassScores(NamedTuple):
    """Of each class, [C]; 0 where a score is 0 / 0. `support` is how many labels it has."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    support: Tensor

    @property
    def macro(self) -> Macro:
        """Over the classes that are there or are predicted: the others have no score."""
        seen = ~self.precision.isnan()
        return Macro(*(float(t[seen].mean()) for t in self[:3]))


def scores_of(confusion: Tensor) -> ClassScores:
    """From how often label i was predicted as class j, [C, C].

    A class that is neither there nor predicted has NaN.

    >>> scores_of(torch.tensor([[2, 1], [0, 3]])).recall
    tensor([0.6667, 1.0000], dtype=torch.float64)
    """
    total = confusion.double()
    return scores_from(total.diagonal(), total.sum(1), total.sum(0))


def scores_from(hit: Tensor, labelled: Tensor, predicted: Tensor) -> ClassScores:
    """From how often each class was rightly predicted, is there, and was predicted; all [C]."""
    hit, labelled, predicted = hit.double(), labelled.double(), predicted.double()
    nowhere = (labelled + predicted) == 0

    def share(of: Tensor) -> Tensor:
        value = torch.where(of > 0, hit / of.where(of > 0, 1.0), 0.0)
        return value.masked_fill(nowhere, torch.nan)

    precision, recall = share(predicted), share(labelled)
    f1 = share((labelled + predicted) / 2)  # 2 TP / (2 TP + FP + FN)
    return ClassScores(precision, recall, f1, labelled.long())
