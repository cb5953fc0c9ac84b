"""How good predictions are, and how close to a reference; each number with its interval."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stochens.comparison import closeness, compare
from stochens.errors import InputError
from stochens.files.storage import reading
from stochens.metrics import Interval
from stochens.metrics.information import entropy
from stochens.metrics.inputs import checked_probs
from stochens.posterior.predictive import Predicted, Predictive
from stochens_lab.data import columns_csv, columns_parquet
from stochens_lab.npz import NUMBERS_AND_TEXT, read_file

RESAMPLES = 300


def measure(
    p: Predicted,
    y: Tensor,
    *,
    reference: Predictive | None = None,
    ood: Predicted | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, Interval]:
    """Every measure of one prediction."""
    far = None if ood is None else {"p": ood}
    rows = compare({"p": p}, y, ood=far, resamples=resamples, show=False).rows["p"]
    if reference is None:
        return rows
    near = closeness(p, reference, resamples=resamples)
    if reference.draws is None and not reference.mutual_information.any():
        del near["MI error"]  # probabilities alone do not tell it
    return rows | near


def read_interval(numbers: Mapping[str, float | None]) -> Interval:
    """As JSON has it, which has no infinity: null."""
    found = (numbers[end] for end in Interval._fields)
    return Interval(*(math.inf if number is None else float(number) for number in found))


def read_reference(path: Path, classes: tuple[str, ...], rows: int) -> Predictive:
    """Probabilities [B, C] or draws [S, B, C] in .npy, or what `stochens predict` wrote."""
    if not path.is_file():
        raise InputError(f"{path} is not there")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with reading(path):
            probs = torch.from_numpy(read_file(path)["x"])
        if probs.dim() == 3:
            found = Predictive.of(checked_probs(probs, str(path), "[S, B, C]"))
        else:
            found = _from_mean(probs, None, path)
    elif suffix == ".npz":
        with reading(path):  # texts, and numbers in another byte order, are no tensors
            arrays = read_file(path, NUMBERS_AND_TEXT)
            named = tuple(str(name) for name in arrays.pop("classes", []))
            if named and named != classes:
                raise InputError(
                    f"{path} is of the classes {', '.join(named[:8])}, the run of others"
                )
            if "prob" not in arrays:
                raise InputError(f"{path} has no array prob; was it written by stochens predict?")
            mi = arrays.get("mutual_information")
            found = _from_mean(
                torch.from_numpy(arrays["prob"]), None if mi is None else torch.from_numpy(mi), path
            )
    elif suffix in (".csv", ".parquet"):
        names = [*(f"prob_{name}" for name in classes), "mutual_information"]
        reader = columns_csv if suffix == ".csv" else columns_parquet
        table = torch.from_numpy(reader.read(path, names, ()).x)
        found = _from_mean(table[:, :-1], table[:, -1], path)
    else:
        raise InputError(f"{path}: a reference is .npy, or what stochens predict wrote")
    if found.mean.shape != (rows, len(classes)):
        raise InputError(
            f"{path} is {list(found.mean.shape)}; for these data it must be "
            f"[{rows}, {len(classes)}], row by row the same examples"
        )
    return found


def _from_mean(mean: Tensor, mi: Tensor | None, path: Path) -> Predictive:
    mean = checked_probs(mean, str(path))
    whole = entropy(mean)
    return Predictive(mean, whole if mi is None else whole - mi.double(), None)
