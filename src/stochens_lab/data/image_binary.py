"""CIFAR's binary files: data_batch_1.bin ... 5 and test_batch.bin; train.bin and test.bin.

A row is one byte for each label and then the pixels. The same images come as pickles, too
(cifar-10-batches-py); those are not read, since a pickle is a program.
"""

from pathlib import Path

import numpy as np
import torch

from stochens.errors import InputError
from stochens.files.storage import reading
from stochens_lab.data.image_sets import (
    SIDE,
    Images,
    ImageSet,
    check_class_names,
    check_labels,
)

PARTS = {
    "cifar10": {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]},
    "cifar100": {"train": ["train.bin"], "test": ["test.bin"]},
}
COLUMNS = {"cifar10": ("label",), "cifar100": ("coarse_label", "fine_label")}


def find_files(folder: Path, about: ImageSet, split: str) -> list[Path]:
    """The files of a split, [] if none is there; one that is missing is an error."""
    wanted = [folder / part for part in PARTS.get(about.name, {}).get(split, [])]
    missing = [file for file in wanted if not file.is_file()]
    if missing and len(missing) < len(wanted):
        raise InputError(f"{missing[0]} is missing; the other batches are there: put it back")
    return [] if missing else wanted


def read(files: list[Path], about: ImageSet, split: str) -> Images:
    """The rows of the files, one after the other."""
    columns = COLUMNS[about.name]
    width = len(columns) + 3 * SIDE * SIDE
    for file in files:
        size = file.stat().st_size
        if not size or size % width or size > width * about.rows[split]:
            raise InputError(f"{file} has {size} bytes, no rows of {width}; get the file again")
    with reading(files[0].parent):
        content = np.concatenate([np.fromfile(file, np.uint8) for file in files])
    rows = torch.from_numpy(content).view(-1, width)
    y = rows[:, columns.index(about.column)].long()
    check_labels(y, about, files[0].parent)
    names, told = None, files[0].with_name(f"{about.column}_names.txt")
    if told.is_file():  # CIFAR-100 has them; those of CIFAR-10 are known
        with reading(told):
            names = told.read_text("ascii").split()
    x = rows[:, len(columns) :].reshape(-1, 3, SIDE, SIDE)
    return Images(x, y, check_class_names(names, about, told))
