"""The published HMC predictions for CIFAR-10's test images, row i for image i.

They come from the starter kit of the NeurIPS 2021 competition on approximate inference, as
`probs.csv`. That file is in the order of TensorFlow Datasets, which sorts examples by a hash:

    order = argsort_i md5("test" + str(i)),      row j of the file is original image order[j]

Compared with images in the usual order, such rows agree by chance only. So the order is not
believed: with the labels at hand, accuracy shows which one it is.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import reading
from stochens_lab.npz import FLOATS, read_file

ROWS, CLASSES = 10_000, 10
MOST_BYTES = 20_000_000  # the published CSV has 2.5 million
ALIGNED = 0.8  # share of right rows; HMC has 0.914, chance 0.1
BLOCK = 500  # rows; HMC is right on at least 0.896 of each
SUM = 1e-3  # how far the sum of a row may be from 1
FILES = ("hmc_probs.npy", "cifar10/hmc_probs.npy", "probs.csv", "cifar10/probs.csv")


def load_hmc_reference(path: str | Path, labels: Tensor | None = None) -> Tensor:
    """Probabilities [10000, 10] float32, row i for test image i.

    `path` is the CSV, an .npy file in the original order, or a folder with one of them. With the
    images' labels [10000] the order is proved: rows that fit in neither order are an error.
    Without, a CSV is taken to be in its published order and an .npy in the original one.

    probs = load_hmc_reference("data", labels=y_test)
    """
    file = _find_file(Path(path))
    with reading(file):
        probs = _read_csv(file) if file.suffix == ".csv" else read_file(file, FLOATS)["x"]
    _check(probs, file)
    as_given = torch.as_tensor(np.array(probs, np.float32))
    reordered = torch.empty_like(as_given)
    reordered[tfds_order()] = as_given
    likely = [reordered, as_given] if file.suffix == ".csv" else [as_given, reordered]
    return likely[0] if labels is None else _choose_order(likely, labels, file)


def tfds_order() -> Tensor:
    """[10000]: test example j of TensorFlow Datasets is original example order[j].

    >>> tfds_order()[:4]
    tensor([9933, 5669,  163, 6686])
    """
    return torch.tensor(
        sorted(range(ROWS), key=lambda i: hashlib.md5(f"test{i}".encode()).digest())
    )


def accuracy(probs: Tensor, labels: Tensor) -> float:
    return float((probs.argmax(1) == labels).double().mean())


def check_aligned(probs: Tensor, labels: Tensor) -> None:
    """Raise unless row i of the reference [N, C] belongs to label i, in every block of rows.

    >>> check_aligned(torch.eye(10), torch.arange(10).roll(1))
    Traceback (most recent call last):
    stochens.errors.InputError: rows and images are misaligned: the reference is right on 0.0 % of
    rows 0 to 9 (HMC: 91 %, chance: 10 %); bring both into the original test order
    """
    right = (probs.argmax(1) == labels.to(probs.device)).double()
    for start in range(0, len(right), BLOCK):
        block = right[start : start + BLOCK]
        if float(block.mean()) < ALIGNED:
            raise InputError(
                f"rows and images are misaligned: the reference is right on "
                f"{100 * float(block.mean()):.1f} % of rows {start} to {start + len(block) - 1} "
                "(HMC: 91 %, chance: 10 %); bring both into the original test order"
            )


def _choose_order(orders: list[Tensor], labels: Tensor, file: Path) -> Tensor:
    if labels.shape != (ROWS,):
        raise InputError(
            f"labels must be those of all test images, [{ROWS}], got {list(labels.shape)}"
        )
    labels = labels.cpu()
    best = max(orders, key=lambda probs: accuracy(probs, labels))
    try:
        check_aligned(best, labels)
    except InputError as error:
        raise InputError(
            f"{file} fits in neither its own nor the original order: {error}"
        ) from None
    return best


def _find_file(path: Path) -> Path:
    if path.is_dir():
        found = [path / name for name in FILES if (path / name).is_file()]
        if not found:
            raise InputError(f"{path} has no HMC reference: put hmc_probs.npy or probs.csv there")
        path = found[0]
    if not path.is_file():
        raise InputError(f"{path} does not exist; give hmc_probs.npy or the published probs.csv")
    if path.suffix not in (".csv", ".npy"):
        raise InputError(f"{path} is neither .npy nor .csv")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes; the reference has 10000 rows")
    return path


def _read_csv(file: Path) -> np.ndarray:
    """Comma or space between numbers; both were published."""
    try:
        text = file.read_text("ascii").replace(",", " ")
        return np.array([line.split() for line in text.splitlines() if line.strip()], np.float64)
    except ValueError as error:
        raise InputError(f"{file} is no table of numbers: {error}; get the file again") from None


def _check(probs: np.ndarray, file: Path) -> None:
    if probs.shape != (ROWS, CLASSES):
        raise InputError(f"{file} has shape {list(probs.shape)}; expected [{ROWS}, {CLASSES}]")
    sums = probs.sum(1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~((probs >= 0).all(1) & (np.abs(sums - 1) <= SUM))  # NaN is bad too
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{file}: row {row} is no distribution, with lowest value {probs[row].min():.3g} and "
            f"sum {sums[row]:.6g}; {int(bad.sum())} such rows"
        )
