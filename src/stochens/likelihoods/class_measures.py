"""How good predictions of classes are, as `compare` shows it."""

from typing import Protocol

import torch
from torch import Tensor

from stochens import metrics
from stochens.errors import InputError
from stochens.likelihoods.draws import Measure
from stochens.metrics import bins, dense

NO_MI = 1e-6  # nats that rounding leaves between two equal entropies in float32


class Predicts(Protocol):
    """What is measured: a `Predictive`."""

    @property
    def mean(self) -> Tensor: ...  # [B, ..., C]

    @property
    def entropy(self) -> Tensor: ...  # [B, ...]

    @property
    def mutual_information(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...

    @property
    def ignore_index(self) -> int | None: ...

    def log_prob(self, y: Tensor) -> Tensor: ...


def flat_measures(p: Predicts, y: Tensor) -> dict[str, Measure]:
    """Of labels y [B]; those that are `ignore_index` are left out."""
    kept = slice(None) if p.ignore_index is None else y != p.ignore_index
    mean, y = p.mean[kept], y[kept]
    if not len(y):
        raise InputError(f"no label is left to measure by: all are ignore_index={p.ignore_index}")
    return {
        "accuracy": (metrics.accuracy, mean, y),
        "NLL": (metrics.nll, mean, y),
        "Brier": (metrics.brier, mean, y),
        "ECE": (metrics.ece, mean, y),
        "AURC": (metrics.aurc, mean, y),
        "entropy": (torch.mean, p.entropy[kept]),
        "MI": (torch.mean, p.mutual_information[kept]),
    }


def closeness(p: Predicts, reference: Predicts) -> dict[str, Tensor]:
    """Example by example, each [B]; of dense predictions the mean over places."""
    near = ("agreement", metrics.agreement), ("total variation", metrics.total_variation)
    means = (*near, ("entropy error", metrics.entropy_error))
    classes = p.mean.shape[-1]
    flat = [one.mean.reshape(-1, classes) for one in (p, reference)]
    found = {name: metrics.per_example(metric, *flat).cpu() for name, metric in means}
    gap = p.mutual_information.cpu().double() - reference.mutual_information.cpu().double()
    found["MI error"] = gap.abs().flatten()
    return {name: t.reshape(len(p.mean), -1).mean(1) for name, t in found.items()}


def told_apart(p: Predicts, far: Predicts) -> dict[str, Measure]:
    """By the largest mean probability, and by mutual information where there is any. Dense
    predictions have the mean over their places of each."""
    here, there = (one.mutual_information for one in (p, far))
    found: dict[str, Measure] = {"OOD AUROC": (metrics.ood_auroc, p.mean, far.mean)}
    if p.mean.dim() > 2:
        here, there = (t.flatten(1).mean(1) for t in (here, there))
        unsure = (1 - one.mean.amax(-1).flatten(1).double().mean(1) for one in (p, far))
        found["OOD AUROC"] = (metrics.ood_auroc_mi, *unsure)
    if max(float(here.max()), float(there.max())) > NO_MI:  # one network alone never disagrees
        found["OOD AUROC (MI)"] = (metrics.ood_auroc_mi, here, there)
    return found


def soft_measures(p: Predicts, y: Tensor) -> dict[str, Measure]:
    """Of probabilities y [B, C]: the expectation of each measure over labels drawn from them."""
    return {
        "accuracy": (torch.mean, y.double().gather(-1, p.labels.unsqueeze(-1)).squeeze(-1)),
        "NLL": (torch.mean, -p.log_prob(y)),
        "total variation": (metrics.total_variation, p.mean, y),
        "entropy": (torch.mean, p.entropy),
        "MI": (torch.mean, p.mutual_information),
    }


def dense_measures(p: Predicts, y: Tensor) -> dict[str, Measure]:
    """Of labels y [B, ...], over all places that are not ignored. Intervals are over examples:
    places of one are not independent of each other."""
    seen = dense.statistics(p.mean, y, ignore_index=p.ignore_index)
    ones = torch.ones(y.shape, dtype=torch.bool) if p.ignore_index is None else y != p.ignore_index
    ones = ones.to(p.mean.device)
    unsure = [
        (t.double() * ones).flatten(1).sum(1).cpu() for t in (p.entropy, p.mutual_information)
    ]
    return {
        "accuracy": (dense.ratio, seen.correct, seen.count),
        "mIoU": (metrics.mean_iou, seen.confusion),
        "macro F1": (dense.macro_f1, seen.confusion),
        "NLL": (dense.ratio, seen.nll, seen.count),
        "Brier": (dense.ratio, seen.brier, seen.count),
        "ECE": (bins.binned_ece, seen.bins),
        "entropy": (dense.ratio, unsure[0], seen.count),
        "MI": (dense.ratio, unsure[1], seen.count),
    }
