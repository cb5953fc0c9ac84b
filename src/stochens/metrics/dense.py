"""Metrics of dense labels (pixels, tokens) by statistics of each example: its places are read once,
and resampling examples adds the statistics up again."""

from typing import NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.metrics.bins import tables
from stochens.metrics.per_class import ClassScores, scores_of


class Statistics(NamedTuple):
    """Sums over the places of each example that are not ignored; all float64 on the CPU."""

    count: Tensor  # type: ignore[assignment]  # [B]; hides tuple.count
    correct: Tensor  # [B]
    nll: Tensor  # [B]
    brier: Tensor  # [B]
    confusion: Tensor  # [B, C, C]: label by predicted class
    bins: Tensor  # [B, BINS, 4], as `bins.tables` has them


def statistics(probs: Tensor, labels: Tensor, *, ignore_index: int | None = None) -> Statistics:
    """Of probs [B, ..., C] and labels [B, ...].

    >>> probs = torch.tensor([[[0.9, 0.1], [0.4, 0.6]]])  # one example with two places
    >>> statistics(probs, torch.tensor([[0, -1]]), ignore_index=-1).count
    tensor([1.], dtype=torch.float64)
    """
    classes = probs.shape[-1]
    if labels.shape != probs.shape[:-1]:
        raise InputError(
            f"labels must be {tuple(probs.shape[:-1])} for probs {tuple(probs.shape)}, classes "
            f"last, got {tuple(labels.shape)}"
        )
    kept = torch.ones_like(labels, dtype=torch.bool)
    if ignore_index is not None:
        kept = labels != ignore_index
    if not bool(kept.any()):
        raise InputError(f"no label is left to measure by: all are ignore_index={ignore_index}")
    low, high = int(labels[kept].min()), int(labels[kept].max())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels must lie in 0..{classes - 1} for probs {tuple(probs.shape)}, got {low}..{high}"
            "; places without one are for ignore_index"
        )
    rows = [
        _of_one(p[own.to(p.device)].cpu(), y[own].long().cpu(), classes)
        for p, y, own in zip(probs, labels, kept, strict=True)  # one at a time: they are large
    ]
    return Statistics(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _of_one(probs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, ...]:
    """Of the places [P, C] and [P] of one example."""
    confidence, chosen = probs.max(-1)  # [P], as they came: edges of bins are rounded like them
    probs = probs.double()
    own = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    right = (chosen == labels).double()
    pairs = (labels * classes + chosen).bincount(minlength=classes**2)
    brier = probs.square().sum(-1) - 2 * own + 1
    nll = 0 - own.log()
    return (
        torch.tensor(float(len(labels)), dtype=torch.float64),
        right.sum(),
        nll.sum(),
        brier.sum(),
        pairs.reshape(classes, classes).double(),
        tables(confidence[None], right[None], torch.ones_like(right[None]))[0],
    )


def ratio(sums: Tensor, counts: Tensor) -> float:
    """sum_b sums_b / sum_b counts_b: the mean over places, [B] and [B]; NaN where there are none.

    >>> ratio(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    0.5
    """
    return float(sums.double().sum() / counts.double().sum())


def mean_iou(confusion: Tensor) -> float:
    """mIoU = mean_c TP_c / (TP_c + FP_c + FN_c), over the classes that are there or are predicted.

    confusion [C, C] or [B, C, C] (added up), label by predicted class, as `confusion_matrix` has it

    >>> mean_iou(torch.tensor([[2, 1], [0, 3]]))  # (2 / 3 + 3 / 4) / 2
    0.708...
    """
    total = confusion.double().reshape(-1, *confusion.shape[-2:]).sum(0)
    hit = total.diagonal()
    union = total.sum(0) + total.sum(1) - hit
    return float((hit / union)[union > 0].mean())


def macro_f1(confusion: Tensor) -> float:
    """The mean F1 of the classes that are there or are predicted: [B, C, C]."""
    return scores_of(confusion.double().reshape(-1, *confusion.shape[-2:]).sum(0)).macro.f1


def confusion_matrix(probs: Tensor, labels: Tensor, *, ignore_index: int | None = None) -> Tensor:
    """How often label i was predicted as class j, over all places: probs [B, ..., C] -> [C, C].

    >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    >>> confusion_matrix(probs, torch.tensor([0, 0, 1]))
    tensor([[1, 1],
            [0, 1]])
    """
    return statistics(probs, labels, ignore_index=ignore_index).confusion.sum(0).long()


def class_scores(probs: Tensor, labels: Tensor, *, ignore_index: int | None = None) -> ClassScores:
    """Precision, recall and F1 of each class, as scikit-learn has them: probs [B, ..., C].

    `.macro` has their means over the classes that are there or are predicted.

    >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    >>> class_scores(probs, torch.tensor([0, 0, 1])).precision
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    return scores_of(confusion_matrix(probs, labels, ignore_index=ignore_index))
