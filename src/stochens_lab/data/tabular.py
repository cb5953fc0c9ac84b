"""Tables of numbers for regression: npz files with x [N, F] and y [N], and how each set is split.

bde-airfoil.npz, bde-bikesharing.npz    the benchmark of Arvanitis et al. 2026: one split
uci-NAME.npz                            nine UCI sets: 20 splits of 90 to 10 (protein: 5)
tabm-california.npz, tabm-house.npz     the splits of Gorishniy et al. 2025, in the files
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError, check_known
from stochens_lab.npz import read_file

BDE = {"airfoil": "bde-airfoil", "bike": "bde-bikesharing"}
UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
TABM = ("california", "house")
SETS = (*BDE, *UCI, *TABM)
TEST_SHARE = 0.2  # of bde's sets


class Table(NamedTuple):
    """Rows to learn from and to test on, all standardised by those to learn from."""

    x: Tensor  # [N, F]
    y: Tensor  # [N, 1]
    x_test: Tensor
    y_test: Tensor
    unit: float  # the standard deviation of y, in the units of the file


def load_table(folder: Path, name: str, split: int = 0) -> Table:
    """A set of SETS, from its file in the folder, by its own protocol."""
    check_known("set", name, SETS)
    prefix = BDE.get(name) or (f"uci-{name}" if name in UCI else f"tabm-{name}")
    path = folder / f"{prefix}.npz"
    if not path.is_file():
        raise InputError(f"{name} needs {path}, an npz file with x [N, F] and y [N]")
    arrays = read_file(path, "biufU")  # some have the names of their columns
    if name in TABM:
        parts = [arrays[f"{what}_{of}"] for of in ("train", "test") for what in ("x", "y")]
        return _standardised(*parts)
    x, y = arrays["x"].astype(np.float64), arrays["y"].astype(np.float64).reshape(-1)
    learn, test = _rows(name, len(x), split)
    return _standardised(x[learn], y[learn], x[test], y[test])


def _rows(name: str, count: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Those to learn from and those to test on."""
    if name in BDE:
        from sklearn.model_selection import train_test_split  # a second to import

        learn, test = train_test_split(np.arange(count), test_size=TEST_SHARE, random_state=0)
        return learn, test
    random = np.random.RandomState(1)
    for _ in range(split + 1):
        order = random.choice(range(count), count, replace=False)
    learned = round(0.9 * count)
    return order[:learned], order[learned:]


def _standardised(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> Table:
    """A column that never changes stays 0."""
    middle, spread = x.mean(0), x.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    centre, unit = float(y.mean()), float(y.std())
    if not unit > 0:
        raise InputError("all targets are the same; there is nothing to learn")

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).float()

    return Table(
        tensor((x - middle) / spread),
        tensor((y.reshape(-1, 1) - centre) / unit),
        tensor((x_test - middle) / spread),
        tensor((y_test.reshape(-1, 1) - centre) / unit),
        unit,
    )
