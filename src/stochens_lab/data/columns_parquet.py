"""Tables in .parquet files, by pyarrow: column by column, the target by its distinct values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stochens.errors import InputError
from stochens_lab.data.columns import (
    BLANK,
    MISSING,
    Columns,
    Values,
    check_names,
    find_columns,
    missing_value,
)
from stochens_lab.data.image_parquet import import_parquet, reading_parquet

MOST_BYTES = 1 << 34  # of all numbers read; a small file can state any number of equal rows


def read_names(file: Path) -> list[str]:
    """Of its columns."""
    found: list[str] = _open(file, ()).schema_arrow.names
    check_names(found, file)
    return found


def read(
    file: Path, features: Sequence[str], targets: Sequence[str], *, blanks: bool = False
) -> Columns:
    """The columns asked for, row by row as they stand. blanks: targets may have no value."""
    opened = _open(file, targets)
    schema, rows = opened.schema_arrow, opened.metadata.num_rows
    find_columns(schema.names, [*features, *targets], file)
    for name in features:
        kind = schema.field(name).type
        if not _is_number(kind):
            raise InputError(
                f"{file}: column {name!r} is of type {kind}, no numbers; make numbers of it, or "
                f"leave it out: --drop {name}"
            )
    if not rows:
        raise InputError(f"{file} has no rows")
    if rows * 8 * (len(features) + len(targets)) > MOST_BYTES:
        raise InputError(f"{file} has {rows} rows; that is more than {MOST_BYTES >> 30} GiB")
    with reading_parquet(file):
        numbers = [_read_numbers(_read_column(opened, name, file), name, file) for name in features]
        values = [
            _read_values(_read_column(opened, name, file, blanks), name, file, blanks)
            for name in targets
        ]
    return Columns(np.stack(numbers, 1) if numbers else np.empty((rows, 0)), values)


def _open(file: Path, targets: Sequence[str]) -> Any:
    parquet = import_parquet()
    with reading_parquet(file):
        # As a dictionary a text that a million rows share is one text in memory, too.
        return parquet.ParquetFile(
            file, read_dictionary=list(targets), page_checksum_verification=True
        )


def _read_column(opened: Any, name: str, file: Path, blanks: bool = False) -> Any:
    """All of its rows, none of which is empty unless that was asked for."""
    column = opened.read(columns=[name]).column(name).combine_chunks()
    if column.null_count and not blanks:
        row = column.is_null().to_pylist().index(True)
        raise missing_value(file, name, f"row {row + 1}")
    return column


def _read_numbers(column: Any, name: str, file: Path, blanks: bool = False) -> np.ndarray:
    """[N] float64; blanks: NaN where there is no value."""
    values: np.ndarray = column.to_numpy(zero_copy_only=False).astype(np.float64)
    broken = np.isinf(values) if blanks else ~np.isfinite(values)
    if broken.any():
        row = int(broken.argmax())
        if np.isnan(values[row]):
            raise missing_value(file, name, f"row {row + 1}")
        raise InputError(f"{file}: column {name!r} is {values[row]} in row {row + 1}")
    return values


def _read_values(column: Any, name: str, file: Path, blanks: bool) -> Values:
    """Texts as they stand, numbers as numbers."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        if _is_text(column.type.value_type):
            known = [_blank(text) if blanks else text for text in column.dictionary.to_pylist()]
            return [BLANK if i is None else known[i] for i in column.indices.to_pylist()]
        column = column.dictionary_decode()
    if _is_text(column.type):
        texts: list[str | None] = column.to_pylist()
        return [_blank(text) if blanks else str(text) for text in texts]
    kind = column.type
    if not _is_number(kind):
        raise InputError(f"{file}: column {name!r} is of type {kind}, neither labels nor numbers")
    if blanks:
        return _read_numbers(column.cast(pa.float64()), name, file, blanks)
    if pa.types.is_floating(kind):
        return _read_numbers(column, name, file)
    whole: np.ndarray = column.to_numpy(zero_copy_only=False)
    return whole


def _blank(text: str | None) -> str:
    """A text that is missing is blank."""
    return BLANK if text is None or text.strip().lower() in MISSING else text


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
