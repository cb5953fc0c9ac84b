"""The members of several CIFAR runs as one ensemble, from the predictions that the runs keep.

The mean over all members is the mean of the runs' means, weighted by their members; likewise the
mean entropy of the draws, so that entropy and mutual information are those of the whole ensemble.
Other seeds make it larger; other methods make it err in fewer common ways.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.posterior.predictive import Predictive
from stochens_lab.experiments.cifar_measures import (
    measure_closeness,
    measure_labelled,
    measure_ood,
)
from stochens_lab.experiments.runs import open_run
from stochens_lab.report.cifar.rows import SETTINGS, is_cifar
from stochens_lab.report.paper import CIFAR, TEST
from stochens_lab.report.run_folder import METRICS, TRAINING, RunFolder, SavedRun
from stochens_lab.report.view import POINTS, RunView

PLACES = (TEST, "cifar10", "cifar100", "svhn")
RESAMPLES = 300  # of the bootstrap over images, as a run has them


class Part(NamedTuple):
    """One run: its row, and those of more inferences by what their names add to it."""

    view: RunView
    set_name: str
    row: str
    endings: frozenset[str]  # "" is the row itself
    members: int
    labels: Tensor  # of the test images

    def predictive(self, ending: str, place: str) -> Predictive | None:
        key = (self.set_name, self.row + ending, place)
        return self.view.run.predictive(key) if key in self.view.predictions else None


def pool(runs: Sequence[Path], out: Path) -> Path:
    """Write the run folder of all their members together; returns it."""
    parts = [_read_part(path) for path in runs]
    _check(parts)
    first, total = parts[0], sum(part.members for part in parts)
    row = " + ".join(dict.fromkeys(part.row for part in parts))
    with open_run(out, CIFAR, _common_config(parts, total, out), "cpu", resume=False) as folder:
        folder.arrays[f"{first.set_name}/{POINTS}/labels-{TEST}"] = first.labels.numpy()
        reference = _copy_reference(first, folder)
        for ending in sorted(frozenset.intersection(*(part.endings for part in parts)), key=_count):
            found = {place: p for place in PLACES if (p := _average(parts, ending, place))}
            for place, p in found.items():
                key = (first.set_name, row + ending, place)
                folder.predictive(key, p)
                if place != TEST:
                    folder.put_row(key, measure_ood(found[TEST].mean, p.mean, RESAMPLES))
                    continue
                folder.put_row(key, measure_labelled(p, first.labels, RESAMPLES))
                if reference is not None:
                    folder.put_row(key, measure_closeness(p.mean, reference, RESAMPLES))
        shares = {part.view.run.name: part.members for part in parts}
        folder.put(TRAINING, (first.set_name, row), {"pooled": shares})
        folder.say(pooled=[_describe(part) for part in parts])
        folder.write(complete=True)
    return folder.path


def _read_part(path: Path) -> Part:
    view = RunView(SavedRun(path), "")
    if not is_cifar(view):
        raise InputError(f"{path} is a run of {view.experiment}; runs of cifar can be pooled")
    set_name = str(view.config.get("name"))
    names = {method for s, method, place in view.predictions if s == set_name and place == TEST}
    names -= set(view.references(set_name)) | {view.reference or ""}
    rows = [name for name in names if not any(name.startswith(f"{other}, ") for other in names)]
    if len(rows) != 1:
        raise InputError(f"{path} keeps predictions of {len(rows)} methods for test images, not 1")
    curve = view.training_of(set_name, rows[0]).get("members curve") or {}
    members = (curve.get("members") or [view.config.get("members")])[-1]
    if not isinstance(members, int):
        raise InputError(f"{path} does not tell how many members it has")
    labels = view.points(set_name, f"labels-{TEST}")
    if labels is None:
        raise InputError(f"{path} keeps no labels of its test images")
    endings = frozenset(name.removeprefix(rows[0]) for name in names)
    return Part(view, set_name, rows[0], endings, members, torch.from_numpy(labels))


def _check(parts: Sequence[Part]) -> None:
    if len(parts) < 2:
        raise InputError("one run is an ensemble already; give two or more to pool")
    first = parts[0]
    for k, part in enumerate(parts):
        path, other = part.view.run.path, first.view.run.path
        if part.set_name != first.set_name:
            raise InputError(f"{path} is of {part.set_name}, {other} of {first.set_name}")
        if not torch.equal(part.labels, first.labels):
            raise InputError(f"{path} was not measured on the test images of {other}")
        if not _same_reference(part, first):
            raise InputError(f"{path} was measured against another reference than {other}")
        for earlier in parts[:k]:
            if _recipe(earlier) == _recipe(part):
                raise InputError(
                    f"{path} has members of {earlier.view.run.path}: their settings are the same, "
                    "and their seed"
                )


def _same_reference(one: Part, other: Part) -> bool:
    """Also where either has none: distances are to that of the first."""
    means = [_reference_mean(part) for part in (one, other)]
    return means[0] is None or means[1] is None or torch.equal(means[0], means[1])


def _reference_mean(part: Part) -> Tensor | None:
    key = (part.set_name, part.view.reference or "", TEST)
    kinds = part.view.predictions.get(key)
    return None if kinds is None else torch.from_numpy(kinds["mean"])


# of a run's settings, what its members do not follow from
MEASURED = {"draws", "inferences", "test_images", "corruptions", "resamples"}
APART = {"members", "block", "minutes", "data", "device", "engine", "address", "out"} | MEASURED


def _recipe(part: Part) -> dict[str, Any]:
    """Runs that agree in it have the same members, as far as their numbers are the same."""
    return {key: value for key, value in part.view.config.items() if key not in APART}


def _average(parts: Sequence[Part], ending: str, place: str) -> Predictive | None:
    found = [part.predictive(ending, place) for part in parts]
    there = [p for p in found if p is not None]
    if len(there) < len(parts):
        return None
    shares = [part.members / sum(part.members for part in parts) for part in parts]
    weights = torch.tensor(shares, dtype=torch.float64)
    mean = torch.einsum("r,rbc->bc", weights, torch.stack([p.mean.double() for p in there]))
    noise = weights @ torch.stack([p.aleatoric.double() for p in there])
    return Predictive(mean.float(), noise.float(), None)


def _copy_reference(part: Part, folder: RunFolder) -> Tensor | None:
    """The reference's row and predictions, as the first run has them."""
    view, name = part.view, part.view.reference
    kinds = view.predictions.get((part.set_name, name or "", TEST))
    if name is None or kinds is None:
        return None
    for kind, array in kinds.items():
        folder.arrays[f"{part.set_name}/{name}/{TEST}/{kind}"] = array
    folder.put(METRICS, (part.set_name, name), view.run.metrics[part.set_name][name])
    return torch.from_numpy(kinds["mean"])


def _common_config(parts: Sequence[Part], total: int, out: Path) -> dict[str, Any]:
    """The settings that all share."""
    first = parts[0].view.config
    same = {
        key: first[key]
        for key in ("name", *SETTINGS)
        if key in first and all(part.view.config.get(key) == first[key] for part in parts)
    }
    return same | {"members": total, "out": str(out)}


def _describe(part: Part) -> dict[str, Any]:
    about = part.view.about
    return {
        "run": part.view.run.name,
        "row": part.row,
        "members": part.members,
        **{key: about.get(key) for key in ("command", "seconds", "machine", "versions")},
    }


def _count(ending: str) -> tuple[int, str]:
    """
    >>> sorted(["", ", 16 inferences", ", 4 inferences"], key=_count)
    ['', ', 4 inferences', ', 16 inferences']
    """
    digits = "".join(filter(str.isdigit, ending))
    return int(digits or 1), ending
