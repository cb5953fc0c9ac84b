"""IMDB's reviews as Keras encodes them, and the published HMC predictions for its test reviews.

imdb.npz has x_train and x_test [N, 100], word numbers below 20,000 (0 is padding, which stands in
front), y_train and y_test [N], 1 for a positive review, and hmc_probs [N, 2] for the test reviews.
These come from the NeurIPS 2021 competition on approximate inference, in Keras's order.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import reading
from stochens_lab.npz import read_file

FILES = ("imdb.npz", "imdb/imdb.npz")
WORDS, CLASSES = 20_000, 2
SUM = 1e-3  # how far the sum of a distribution may be from 1
BLOCK = 500  # rows; HMC is right on at least 0.83 of each
ALIGNED = 0.75  # share of right rows; HMC has 0.876, chance 0.5
NEEDED = ("x_train", "y_train", "x_test", "y_test", "hmc_probs")


class Reviews(NamedTuple):
    x: Tensor  # [N, T] word numbers
    y: Tensor  # [N]
    x_test: Tensor
    y_test: Tensor
    hmc: Tensor  # [N test, 2]


def load_reviews(folder: str | Path) -> Reviews:
    """The file in a folder, or the file itself; what is not as above is refused.

    reviews = load_reviews("data")
    """
    path = _find_file(Path(folder))
    with reading(path):
        arrays = read_file(path)
    if absent := [name for name in NEEDED if name not in arrays]:
        raise InputError(f"{path} has no {absent[0]}; it needs {', '.join(NEEDED)}")
    x, y = _pairs(arrays, "train", path)
    x_test, y_test = _pairs(arrays, "test", path)
    if x.shape[1] != x_test.shape[1]:
        raise InputError(f"{path}: reviews of {x.shape[1]} words and of {x_test.shape[1]}")
    hmc = _distributions(arrays["hmc_probs"], y_test, path)
    return Reviews(x, y, x_test, y_test, hmc)


def _find_file(path: Path) -> Path:
    found = [path] if path.is_file() else [path / name for name in FILES]
    for file in found:
        if file.is_file():
            return file
    raise InputError(f"{path} has no {FILES[0]}: IMDB as Keras encodes it, with HMC's predictions")


def _pairs(arrays: dict[str, np.ndarray], part: str, path: Path) -> tuple[Tensor, Tensor]:
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.dtype.kind not in "iu" or x.ndim != 2 or not x.size:
        raise InputError(f"{path}: x_{part} must be whole numbers [N, T], got {x.dtype} {x.shape}")
    if x.min() < 0 or x.max() >= WORDS:
        raise InputError(f"{path}: x_{part} has {x.min()} to {x.max()}, not 0 to {WORDS - 1}")
    if y.dtype.kind not in "biu" or y.shape != x.shape[:1] or not np.isin(y, (0, 1)).all():
        raise InputError(f"{path}: y_{part} must be 0 or 1, one for each of {len(x)} reviews")
    return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))


def _distributions(probs: np.ndarray, labels: Tensor, path: Path) -> Tensor:
    """Checked to be distributions, and to belong to the labels."""
    if probs.shape != (len(labels), CLASSES) or probs.dtype.kind != "f":
        expected = f"numbers [{len(labels)}, {CLASSES}]"
        raise InputError(f"{path}: hmc_probs must be {expected}, got {probs.dtype} {probs.shape}")
    with np.errstate(invalid="ignore"):  # NaN is no distribution
        good = (probs >= 0).all(1) & (np.abs(probs.sum(1, dtype=np.float64) - 1) <= SUM)
    if not good.all():
        raise InputError(f"{path}: row {int((~good).argmax())} of hmc_probs is no distribution")
    found = torch.from_numpy(probs.astype(np.float32))
    right = (found.argmax(1) == labels).double()
    for start, block in zip(range(0, len(right), BLOCK), right.split(BLOCK), strict=True):
        if float(block.mean()) < ALIGNED:
            raise InputError(
                f"{path}: hmc_probs and y_test are misaligned, as row {start} to "
                f"{start + len(block) - 1} are right on {100 * float(block.mean()):.1f} % only "
                "(HMC: 88 %, chance: 50 %); bring both into Keras's order"
            )
    return found
