"""Image sets as folders: SPLIT/CLASS/*.png or *.webp.

Rows are sorted by class, then by name: this is no original order, and HMC's rows do not fit it.
"""

import re
from pathlib import Path

import numpy as np
import torch

from stochens.errors import InputError
from stochens_lab.data.image_sets import Images, ImageSet, Labels, Progress, check_class_names
from stochens_lab.data.pixels import MOST_BYTES, decode

SUFFIXES = {".png", ".webp"}
FILES_AT_A_TIME = 2000


def find_files(folder: Path, about: ImageSet, split: str) -> list[Path]:
    """The images of a split, class by class, [] if there is none."""
    top = folder / split
    if not top.is_dir():
        return []
    found = (file for file in top.glob("*/*") if file.suffix.lower() in SUFFIXES)
    return sorted(
        found, key=lambda file: (_sort_naturally(file.parent.name), _sort_naturally(file.name))
    )


def read(
    files: list[Path], about: ImageSet, split: str, labels: Labels, progress: Progress
) -> Images:
    """Class k is the k-th folder by name, numbers by value."""
    top = files[0].parent.parent
    folders = sorted((part.name for part in top.iterdir() if part.is_dir()), key=_sort_naturally)
    if len(folders) != labels.classes:
        raise InputError(
            f"{top} has {len(folders)} class folders; {about.name} has {labels.classes} classes"
        )
    numbered = folders == [str(k) for k in range(labels.classes)]
    names = check_class_names(None if numbered else folders, labels, top)
    number = {folder: k for k, folder in enumerate(folders)}
    y = torch.tensor([number[file.parent.name] for file in files])
    x = []
    for start in range(0, len(files), FILES_AT_A_TIME):
        block = files[start : start + FILES_AT_A_TIME]
        x.append(decode([_read_bytes(file) for file in block], block.__getitem__))
        progress(start + len(block), len(files))
    return Images(torch.as_tensor(np.concatenate(x)), y, names)


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _sort_naturally(name: str) -> list[tuple[int, str]]:
    """Sorts 2.png before 10.png."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
