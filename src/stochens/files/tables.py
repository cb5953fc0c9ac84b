"""Tables that are written row by row, `.parquet` files and `.zarr` folders: whole or not there."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stochens.errors import InputError
from stochens.files.storage import sync

SUFFIXES = (".parquet", ".zarr")
GROUP = 8 << 20  # bytes of a row group of a parquet file, about
CHUNK = 4 << 20  # of a chunk of a zarr array

Columns = Mapping[str, np.ndarray]  # [b, ...] each


class Written(Protocol):
    """A format: rows are added, and the first ones say which columns there are."""

    def add(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


class Table:
    """What rows are added to."""

    def __init__(self, path: Path, part: Path, about: dict[str, Any]) -> None:
        self._path = path
        with self._writing():
            parquet = path.suffix.lower() == ".parquet"
            self._to: Written = _Parquet(part, about) if parquet else _Zarr(part, about)

    def add(self, columns: Columns) -> None:
        with self._writing():
            self._to.add(columns)

    def close(self) -> None:
        with self._writing():
            self._to.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses is said of the file, and not of whoever made the rows."""
        try:
            yield
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error}") from error


def check_new(path: str | Path) -> Path:
    """Where a table can be written; anything else is an error before any work.

    >>> check_new("preds.txt")
    Traceback (most recent call last):
    stochens.errors.InputError: a table is written to a name in .parquet or .zarr, got 'preds.txt'
    """
    try:
        path = Path(path)
    except TypeError:
        raise InputError(f"out must be the name of a file, got {path!r}") from None
    if path.suffix.lower() not in SUFFIXES:
        known = " or ".join(SUFFIXES)
        raise InputError(f"a table is written to a name in {known}, got {str(path)!r}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not there; make that folder first")
    if path.exists():
        raise InputError(f"{path} is there already; choose another name, or remove it")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} cannot be written to")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
    return path


@contextlib.contextmanager
def new_table(path: Path, about: dict[str, Any]) -> Iterator[Table]:
    """Rows are written beside the place, and moved there when all have come. Whatever ends the work
    before that leaves nothing, and a kill a name that begins with a dot and ends in `.part`.

    about: what is said of it, as JSON.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    _remove(part)  # of a process that had our number and was killed
    try:
        table = Table(path, part, about)
        try:
            yield table
        except BaseException:
            with contextlib.suppress(Exception):
                table.close()
            raise
        table.close()
        _sync_all(part)
        if path.exists():
            raise InputError(f"{path} was written by somebody else meanwhile; choose another name")
        part.rename(path)
        sync(path.absolute().parent)
    finally:
        _remove(part)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync_all(path: Path) -> None:
    for inside in path.rglob("*") if path.is_dir() else ():
        sync(inside)
    sync(path)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "to write .parquet needs the package pyarrow: pip install 'stochens[parquet]'. A "
            ".zarr folder needs none"
        ) from None
    return pyarrow


class _Parquet:
    """A column of numbers for what is [b] or [b, 1]; of lists of as many numbers for the others,
    whose shapes are in the file's metadata."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._arrow, self._path, self._about = _pyarrow(), path, about
        self._writer: Any = None
        self._waiting: list[Columns] = []
        self._bytes = 0

    def add(self, columns: Columns) -> None:
        self._waiting.append(columns)
        self._bytes += sum(values.nbytes for values in columns.values())
        if self._bytes >= GROUP:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        names = list(self._waiting[0])
        joined = {name: np.concatenate([c[name] for c in self._waiting]) for name in names}
        self._waiting, self._bytes = [], 0
        arrays = [self._column(values) for values in joined.values()]
        if self._writer is None:
            shapes = {name: list(values.shape[1:]) for name, values in joined.items()}
            told = json.dumps({**self._about, "shapes": shapes})
            fields = [(n, a.type) for n, a in zip(names, arrays, strict=True)]
            self._schema = self._arrow.schema(fields, metadata={"stochens": told})
            write = self._arrow.parquet.ParquetWriter
            self._writer = write(self._path, self._schema, use_dictionary=False)  # few are alike
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def _column(self, values: np.ndarray) -> Any:
        width = math.prod(values.shape[1:])
        flat = self._arrow.array(np.ascontiguousarray(values).reshape(-1))
        return flat if width == 1 else self._arrow.FixedSizeListArray.from_arrays(flat, width)

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()


class _Zarr:
    """A group of the second version of the format, an array for each column, without compression.

    That is a file of JSON for each array and a file of plain numbers for each chunk of rows, which
    every version of the package zarr reads; so it is written here, and needs no package.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        path.mkdir(parents=True)
        (path / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
        (path / ".zattrs").write_text(json.dumps({"stochens": about}))
        self._arrays: dict[str, _ZarrArray] = {}

    def add(self, columns: Columns) -> None:
        for name, values in columns.items():
            if name not in self._arrays:
                self._arrays[name] = _ZarrArray(self._path / name, values)
            self._arrays[name].add(values)

    def close(self) -> None:
        for array in self._arrays.values():
            array.close()


class _ZarrArray:
    """Rows [N, ...] in chunks of as many rows each; the last is filled up, as the format asks."""

    def __init__(self, folder: Path, like: np.ndarray) -> None:
        self._folder, self._rows, self._chunks, self._full = folder, 0, 0, 0
        folder.mkdir()
        of_row = max(1, like.itemsize * math.prod(like.shape[1:]))
        dtype = like.dtype.newbyteorder("<") if like.dtype.byteorder != "|" else like.dtype
        self._chunk = np.zeros((max(1, CHUNK // of_row), *like.shape[1:]), dtype)

    def add(self, values: np.ndarray) -> None:
        while len(values):
            some = values[: len(self._chunk) - self._full]
            self._chunk[self._full : self._full + len(some)] = some
            self._full, self._rows = self._full + len(some), self._rows + len(some)
            values = values[len(some) :]
            if self._full == len(self._chunk):
                self._flush()

    def _flush(self) -> None:
        place = ".".join([str(self._chunks)] + ["0"] * (self._chunk.ndim - 1))
        (self._folder / place).write_bytes(self._chunk.data)
        self._chunks, self._full = self._chunks + 1, 0

    def close(self) -> None:
        if self._chunks == 0:  # few rows: a chunk of as many
            self._chunk = self._chunk[: max(1, self._full)]
        if self._full:
            self._chunk[self._full :] = 0
            self._flush()
        about = {
            "zarr_format": 2,
            "shape": [self._rows, *self._chunk.shape[1:]],
            "chunks": list(self._chunk.shape),
            "dtype": self._chunk.dtype.str,
            "order": "C",
            "compressor": None,
            "filters": None,
            "fill_value": 0,
        }
        (self._folder / ".zarray").write_text(json.dumps(about))
