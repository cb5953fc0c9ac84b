"""Tables in .csv files: a line of names, then numbers and labels. Read in blocks, never at once.

The standard library reads them, and not pyarrow, which is laxer: of two columns with one name it
keeps one, a quote that is never closed swallows the rest of the file, and no error names a line.
"""

import contextlib
import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stochens.errors import InputError
from stochens_lab.data.columns import (
    BLANK,
    MISSING,
    Columns,
    Values,
    check_names,
    find_columns,
    is_number,
    missing_value,
    not_a_number,
)

ROWS_AT_A_TIME = 10_000
DELIMITERS = ",;\t"

Row = tuple[int, list[str]]  # the line's number, and what is in it


def read_names(file: Path) -> list[str]:
    with _open(file) as (header, _):
        return header


def read(
    file: Path, features: Sequence[str], targets: Sequence[str], *, blanks: bool = False
) -> Columns:
    """The columns asked for, row by row as they stand. blanks: targets may have no value."""
    blocks: list[np.ndarray] = []
    labels: list[list[str]] = [[] for _ in targets]
    with _open(file) as (header, rows):
        found = find_columns(header, [*features, *targets], file)
        at, wanted = found[: len(features)], found[len(features) :]
        while block := list(itertools.islice(rows, ROWS_AT_A_TIME)):
            blocks.append(_parse_numbers(block, at, header, file))
            for column, place in zip(labels, wanted, strict=True):
                column.extend(_read_label(row, place, header, file, blanks) for row in block)
    if not blocks:
        raise InputError(f"{file} has no rows below its line of names")
    kept: list[Values] = list(labels)
    return Columns(np.concatenate(blocks), kept)


def _parse_numbers(block: list[Row], at: list[int], header: list[str], file: Path) -> np.ndarray:
    """[n, F] of some rows."""
    try:
        flat = np.fromiter((float(row[i]) for _, row in block for i in at), np.float64)
    except ValueError:
        flat = np.full(1, np.nan)
    if not np.isfinite(flat).all():
        raise next(_find_wrong(block, at, header, file))
    return flat.reshape(len(block), len(at))


def _find_wrong(
    block: list[Row], at: list[int], header: list[str], file: Path
) -> Iterator[InputError]:
    """The cells that are no numbers, in words."""
    for line, row in block:
        for i in at:
            if not (is_number(row[i]) and np.isfinite(float(row[i]))):
                yield not_a_number(file, header[i], f"line {line}", row[i])


def _read_label(row: Row, place: int, header: list[str], file: Path, blanks: bool) -> str:
    text = row[1][place].strip()
    if blanks and text.lower() in MISSING:
        return BLANK
    if text.lower() in MISSING - {"none", "na", "?"}:  # these may be the name of a class
        raise missing_value(file, header[place], f"line {row[0]}")
    return text


@contextlib.contextmanager
def _open(file: Path) -> Iterator[tuple[list[str], Iterator[Row]]]:
    """The names of the columns, and the rows that follow, each with its line's number."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            first = text.readline(1 << 20)
            text.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            lines = csv.reader(text, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(lines, [])]
            _check_header(header, file)
            yield header, _read_rows(lines, len(header), file)
    except UnicodeDecodeError:
        raise InputError(f"{file} is no UTF-8 text; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _read_rows(lines: Iterator[list[str]], width: int, file: Path) -> Iterator[Row]:
    for number, row in enumerate(lines, 2):
        if not row:
            continue
        line = getattr(lines, "line_num", number)  # a quoted cell may have several lines
        if len(row) != width:
            raise InputError(f"{file}: line {line} has {len(row)} cells, the names are {width}")
        yield line, row


def _check_header(header: list[str], file: Path) -> None:
    if not header:
        raise InputError(f"{file} is empty; it needs a line of names, and rows below it")
    check_names(header, file)
    if all(is_number(name) for name in header):
        raise InputError(f"{file}: the first line must name the columns, and has numbers")
