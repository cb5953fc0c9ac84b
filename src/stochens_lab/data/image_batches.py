"""The classic python batches: data_batch_1 ... 5 and test_batch; train and test of CIFAR-100."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochens.errors import InputError
from stochens_lab.data.image_sets import (
    SIDE,
    Images,
    ImageSet,
    Labels,
    Progress,
    check_class_names,
    check_labels,
)
from stochens_lab.data.plain_pickle import read_pickle

MOST_BYTES = 400_000_000  # of a file; CIFAR-100's train has 155 million
PIXELS = 3 * SIDE * SIDE
PARTS = {
    "cifar10": {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
META = {"cifar10": "batches.meta", "cifar100": "meta"}


def find_files(folder: Path, about: ImageSet, split: str) -> list[Path]:
    """The batches of a split, [] if none is there; one that is missing is an error."""
    wanted = [folder / part for part in PARTS.get(about.name, {}).get(split, [])]
    missing = [file for file in wanted if not file.is_file()]
    if missing and len(missing) < len(wanted):
        raise InputError(f"{missing[0]} is missing; the other batches are there: put it back")
    return [] if missing else wanted


def read(
    files: list[Path], about: ImageSet, split: str, labels: Labels, progress: Progress
) -> Images:
    """The rows of the files, one after the other."""
    x, y = [], []
    for k, file in enumerate(files):
        images, label = _read_batch(file, labels)
        x.append(images)
        y.append(label)
        progress(k + 1, len(files))
    names = None
    meta = files[0].with_name(META[about.name])
    if meta.is_file():
        found = _read_contents(meta).get(f"{labels.column}_names")
        names = [_decode_name(name, meta) for name in found] if isinstance(found, list) else found
    return Images(torch.cat(x), torch.cat(y), check_class_names(names, labels, meta))


def _read_batch(file: Path, labels: Labels) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [n, 3, 32, 32] and labels [n] of one file."""
    batch = _read_contents(file)
    data, given = batch.get("data"), batch.get(f"{labels.column}s")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        shape = list(data.shape) if isinstance(data, np.ndarray) else type(data).__name__
        raise InputError(f"{file}: data must be an array [n, {PIXELS}], got {shape}")
    if not isinstance(given, list) or any(type(label) is not int for label in given):
        raise InputError(
            f"{file} has no list of whole numbers {labels.column}s, but {', '.join(batch)}: "
            "this is another set, or labels of another kind"
        )
    if len(given) != len(data) or not given:
        raise InputError(f"{file} has {len(data)} images and {len(given)} labels; it is damaged")
    try:
        y = torch.tensor(given, dtype=torch.int64)
    except (RuntimeError, ValueError, OverflowError):
        raise InputError(f"{file} has a label that is no class; it is damaged") from None
    check_labels(y, labels, file)
    return torch.tensor(data).view(-1, 3, SIDE, SIDE), y  # a copy: what was read is read-only


def _read_contents(file: Path) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise InputError(f"{file} has {size} bytes, more than any batch; it is another file")
        return read_pickle(file.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    except InputError as error:
        said = str(error)
        about = said if str(file) in said else f"{file} cannot be read: {said}; get the file again"
        raise InputError(about) from None


def _decode_name(name: object, file: Path) -> str:
    if not isinstance(name, bytes | str):
        raise InputError(f"{file}: a class name is a {type(name).__name__}; get the file again")
    return name.decode("latin-1") if isinstance(name, bytes) else name
