"""One's own data, whatever the file: inputs, and the targets that belong to them.

.csv, .parquet   named columns: numbers, and one or several targets
.npz, .npy       an array x [N, ...], and beside it (npz) an array of targets
a folder         images, FOLDER/CLASS/*.png
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from stochens.errors import InputError
from stochens.files.storage import reading
from stochens_lab.data import columns_csv, columns_parquet, user_images
from stochens_lab.data.columns import Columns, Values, find_columns, list_names
from stochens_lab.npz import NUMBERS_AND_TEXT, read_file

TARGETS = ("target", "label", "y", "class", "labels")  # what a target is called by itself
LIKELY = ", ".join(TARGETS[:-1]) + f" or {TARGETS[-1]}"
INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls it in .parquet, if it has no name
INPUTS = ("x", "X")  # what the inputs of an npz file are called by themselves
SUFFIXES = ".parquet, .csv, .npz, .npy or a folder of images"


class TableReader(Protocol):
    def read_names(self, file: Path) -> list[str]: ...
    def read(
        self, file: Path, features: Sequence[str], targets: Sequence[str], *, blanks: bool = ...
    ) -> Columns: ...


TABLES: dict[str, TableReader] = {".csv": columns_csv, ".parquet": columns_parquet}


class Layout(NamedTuple):
    """Which of a file's parts are inputs, and which are targets."""

    kind: str  # columns, array or images
    features: tuple[str, ...]  # the columns in order; the name of the array; nothing for images
    targets: tuple[str, ...]
    shape: tuple[int, ...]  # of one example: (F,), (C, H, W), ...


class Examples(NamedTuple):
    x: np.ndarray  # [N, *shape]: float64 for columns, uint8 for images
    targets: list[Values]  # of each target [N], or [N, D]; none where none was asked for
    classes: list[str]  # of a folder of images: every class


def find_kind(file: Path) -> str:
    """columns, array or images; only the name is looked at."""
    if not file.exists():
        raise InputError(f"{file} is not there")
    if file.is_dir():
        return "images"
    kind = {".npz": "array", ".npy": "array"} | dict.fromkeys(TABLES, "columns")
    if file.suffix.lower() not in kind:
        raise InputError(f"{file}: data must be {SUFFIXES}")
    if not file.is_file():
        raise InputError(f"{file} is no plain file")
    return kind[file.suffix.lower()]


def read_first(
    file: Path,
    *,
    targets: Sequence[str] = (),
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    blanks: bool = False,
) -> tuple[Layout, Examples]:
    """Data to learn from, and how they lie in their file. What is not named is found by itself.

    blanks: whether targets may have no value.
    """
    kind = find_kind(file)
    if kind != "columns" and (drop or (features and kind == "images")):
        raise InputError(f"{file} has no columns, so --feature and --drop do not fit it")
    if kind == "images":
        if targets:
            raise InputError(f"{file} is a folder of images: its folders are the classes")
        images = _read_images(file)
        return Layout(kind, (), ("class",), images.x.shape[1:]), images
    if kind == "array":
        arrays = _read_arrays(file)
        wanted = _find_targets(list(arrays), targets, file)
        name = _find_inputs(list(arrays), features, wanted, file)
        layout = Layout(kind, (name,), wanted, arrays[name].shape[1:])
        return layout, _from_arrays(arrays, file, layout, wanted, blanks)
    names = TABLES[file.suffix.lower()].read_names(file)
    wanted = _find_targets(names, targets, file)
    chosen = _find_features(names, features, drop, wanted, file)
    layout = Layout(kind, chosen, wanted, (len(chosen),))
    return layout, read(file, layout, blanks=blanks)


def read(
    file: Path, layout: Layout, *, with_targets: bool = True, blanks: bool = False
) -> Examples:
    """Data that lie as the layout says; other columns are not looked at."""
    kind = find_kind(file)
    if kind != layout.kind:
        fitting = {"columns": ".csv or .parquet", "array": ".npz or .npy", "images": "image folder"}
        raise InputError(
            f"{file}: the run was fitted on {layout.kind}, so the data must be a "
            f"{fitting[layout.kind]} too"
        )
    wanted = layout.targets if with_targets else ()
    if kind == "images":
        return _read_images(file, layout.shape, with_targets=with_targets)
    if kind == "array":
        return _from_arrays(_read_arrays(file), file, layout, wanted, blanks)
    columns = TABLES[file.suffix.lower()].read(file, layout.features, wanted, blanks=blanks)
    return Examples(columns.x, columns.targets, [])


def _read_images(
    file: Path, shape: tuple[int, ...] | None = None, *, with_targets: bool = True
) -> Examples:
    found = user_images.read(file, shape=shape)
    if with_targets and found.labels is None:
        raise InputError(f"{file} has images without labels; put each in a folder of its class")
    return Examples(found.x, [found.labels] if with_targets and found.labels else [], found.classes)


# -- columns ---------------------------------------------------------------------------------------


def _find_targets(names: Sequence[str], given: Sequence[str], file: Path) -> tuple[str, ...]:
    if given:
        find_columns(names, given, file)
        return tuple(given)
    likely = [name for name in names if name.lower() in TARGETS]
    if len(likely) != 1:
        why = f"{' and '.join(likely)} may be" if likely else f"none is called {LIKELY}"
        raise InputError(
            f"{file}: say which is the target, --target NAME: {why}. There are {list_names(names)}"
        )
    return (likely[0],)


def _find_features(
    names: Sequence[str],
    given: Sequence[str],
    drop: Sequence[str],
    targets: Sequence[str],
    file: Path,
) -> tuple[str, ...]:
    find_columns(names, [*given, *drop], file)
    both = next((name for name in given if name in targets), None)
    if both is not None:
        raise InputError(f"{both!r} cannot be a feature and the target")
    index = next((name for name in names if INDEX.fullmatch(name)), None)
    if index is not None and not given and index not in (*drop, *targets):
        raise InputError(
            f"{file}: column {index!r} is the index of a pandas table; leave it out: --drop "
            f"{index}, or write the file without it (index=False)"
        )
    chosen = given or [name for name in names if name not in targets]
    chosen = [name for name in chosen if name not in drop]
    if not chosen:
        raise InputError(f"{file}: no column is left as a feature")
    if "" in chosen:
        raise InputError(
            f"{file}: column {list(names).index('') + 1} has no name; an index? Write the file "
            "without it (in pandas index=False), or name it"
        )
    return tuple(chosen)


# -- arrays ----------------------------------------------------------------------------------------


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    with reading(file):
        return read_file(file, NUMBERS_AND_TEXT)


def _find_inputs(
    names: Sequence[str], given: Sequence[str], targets: Sequence[str], file: Path
) -> str:
    """The name of the one array that holds the inputs."""
    if len(given) > 1:
        raise InputError(f"{file}: one array holds the inputs, got --feature {', '.join(given)}")
    if given:
        find_columns(names, given, file)
        return given[0]
    others = [name for name in names if name not in targets]
    likely = [name for name in others if name in INPUTS] or others
    if len(likely) != 1:
        raise InputError(f"{file} has the arrays {list_names(names)}; call the inputs x")
    return likely[0]


def _from_arrays(
    arrays: dict[str, np.ndarray],
    file: Path,
    layout: Layout,
    targets: Sequence[str],
    blanks: bool,
) -> Examples:
    name = layout.features[0]
    if name not in arrays:
        name = _find_inputs(list(arrays), (), layout.targets, file)
    x = arrays[name]
    if x.dtype.kind not in "fiub":
        raise InputError(f"{file}: {name} must hold numbers, got {x.dtype}")
    if x.ndim < 2 or not len(x) or x.shape[1:] != layout.shape:
        want = ", ".join(map(str, layout.shape)) or "F"
        raise InputError(f"{file}: {name} must be [N, {want}], got {list(x.shape)}")
    _check_finite(x, name, file)
    find_columns(list(arrays), targets, file)
    found: list[Values] = []
    for target in targets:
        y = arrays[target]
        if y.ndim not in (1, 2) or len(y) != len(x):
            raise InputError(
                f"{file}: {target} must have a row for each of the {len(x)} examples in {name}, "
                f"got {list(y.shape)}"
            )
        found.append(_read_values(y, target, file, blanks))
    return Examples(x, found, [])


def _read_values(y: np.ndarray, name: str, file: Path, blanks: bool) -> Values:
    if y.dtype.kind == "U" and y.ndim == 1:
        texts: list[str] = y.tolist()
        return texts
    if y.dtype.kind not in "fiub":
        raise InputError(f"{file}: {name} must hold labels or numbers, got {y.dtype} {y.shape}")
    _check_finite(y, name, file, blanks)
    return y


def _check_finite(array: np.ndarray, name: str, file: Path, blanks: bool = False) -> None:
    good = np.isfinite(array) | (blanks & np.isnan(array)) if array.dtype.kind == "f" else None
    if good is not None and not good.all():
        at = np.unravel_index(int(np.argmin(good)), array.shape)
        place: list[Any] = [int(i) for i in at]
        raise InputError(f"{file}: {name}{place} is {array[at]}; fill it in, or leave the row out")
