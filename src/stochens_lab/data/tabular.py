"""Tables of numbers for regression: npz files with x [N, F] and y [N], and how each set is split.

bde-airfoil.npz, bde-bikesharing.npz    the benchmark of Arvanitis et al. 2026: one split
uci-NAME.npz                            nine UCI sets: 20 splits of 90 to 10 (protein: 5)
tabm-california.npz, tabm-house.npz     the splits of Gorishniy et al. 2025, in the files, whose
                                        columns are made normal by their ranks
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from stochens.errors import InputError, check_known
from stochens.networks import PiecewiseLinear
from stochens_lab.npz import read_file

BDE = {"airfoil": "bde-airfoil", "bike": "bde-bikesharing"}
UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
TABM = ("california", "house")
SETS = (*BDE, *UCI, *TABM)
TEST_SHARE = 0.2  # of bde's sets
SPLITS, SPLITS_OF = 20, {"protein": 5}  # of UCI's sets, as published
HELD_SHARE = 0.15  # of the rows to learn from; bde's validation share


class Part(NamedTuple):
    """Some of the rows."""

    x: Tensor  # [N, F]
    y: Tensor  # [N, 1]


class Table(NamedTuple):
    """Rows to learn from and to test on, all standardised by those to learn from. What is chosen is
    chosen on `held`, by what was learned from `rest`."""

    learn: Part
    test: Part
    rest: Part  # of those to learn from; all of them where the set has rows of its own to choose by
    held: Part
    unit: float  # the standard deviation of y, in the units of the file


def count_splits(name: str) -> int:
    """How many ways to divide a set into rows to learn from and to test on were published.

    >>> count_splits("yacht"), count_splits("protein"), count_splits("airfoil")
    (20, 5, 1)
    """
    return SPLITS_OF.get(name, SPLITS) if name in UCI else 1


def load_table(folder: Path, name: str, split: int = 0) -> Table:
    """A set of SETS, from its file in the folder, by its own protocol."""
    check_known("set", name, SETS)
    if not 0 <= split < count_splits(name):
        raise InputError(f"{name} has {count_splits(name)} splits, counted from 0; got {split}")
    prefix = BDE.get(name) or (f"uci-{name}" if name in UCI else f"tabm-{name}")
    path = folder / f"{prefix}.npz"
    if not path.is_file():
        raise InputError(f"{name} needs {path}, an npz file with x [N, F] and y [N]")
    arrays = read_file(path, "biufU")  # some have the names of their columns
    if name in TABM:
        parts = [(arrays[f"x_{of}"], arrays[f"y_{of}"]) for of in ("train", "val", "test")]
    else:
        x, y = arrays["x"], arrays["y"]
        parts = [(x[rows], y[rows]) for rows in _rows(name, len(x), split)]
    if name in TABM:
        parts = _normal_by_rank(parts)
    scaled, unit = _standardised(parts)
    if name in TABM:
        learn, held, test = scaled
        return Table(learn, test, learn, held, unit)
    learn, test = scaled
    rest, held = _hold_out(learn, split)
    return Table(learn, test, rest, held, unit)


def embed_numbers(table: Table, bins: int) -> Table:
    """Every number as how far it is through each bin of its column; bins are quantiles of the rows
    to learn from."""
    embed = PiecewiseLinear.of(table.learn.x, bins)
    learn, test, rest, held = (Part(embed(part.x), part.y) for part in table[:4])
    return Table(learn, test, rest, held, table.unit)


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


def _hold_out(learn: Part, split: int) -> tuple[Part, Part]:
    """All but a share at random, and the share: the same for whoever chooses by it."""
    order = torch.from_numpy(np.random.RandomState(split).permutation(len(learn.y)))
    held = round(HELD_SHARE * len(order))
    rest, held_rows = order[held:], order[:held]
    return Part(*(t[rest] for t in learn)), Part(*(t[held_rows] for t in learn))


def _normal_by_rank(
    parts: list[tuple[np.ndarray, np.ndarray]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each column made normal by its ranks in the first part. Equal numbers have the middle of
    their ranks: were they at the end of them, a column of which a third is 0 would have that third
    five standard deviations away."""
    known = parts[0][0].astype(np.float64)
    made = [np.empty(x.shape) for x, _ in parts]
    for column in range(known.shape[1]):
        values, counts = np.unique(known[:, column], return_counts=True)
        middle = (np.cumsum(counts) - counts / 2) / len(known)
        for (x, _), out in zip(parts, made, strict=True):
            out[:, column] = ndtri(np.interp(x[:, column].astype(np.float64), values, middle))
    return [(out, y) for out, (_, y) in zip(made, parts, strict=True)]


def _standardised(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[list[Part], float]:
    """Each part by mean and standard deviation of the first, and that of y. A column that never
    changes stays 0."""
    x, y = (values.astype(np.float64) for values in parts[0])
    middle, spread = x.mean(0), x.std(0)
    # of equal numbers whose mean is rounded
    spread = np.where(spread > 1e-12 * np.abs(middle), spread, 1.0)
    centre, unit = float(y.mean()), float(y.std())
    if not unit > 0:
        raise InputError("all targets are the same; there is nothing to learn")

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).float()

    return [
        Part(tensor((a - middle) / spread), tensor((b.reshape(-1, 1) - centre) / unit))
        for a, b in parts
    ], unit
