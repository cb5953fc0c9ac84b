"""Tables with named columns: what readers of .csv and .parquet files share."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stochens.errors import InputError, did_you_mean

BLANK = ""  # a target without a value, where such are let through
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}  # as people and programs write it
MOST_LETTERS = 200  # of a label; a column of essays is no target
WHOLE = re.compile(r"-?\d+\.0*")
FRACTION = re.compile(r"-?\d*\.\d+([eE][-+]?\d+)?")


class Columns(NamedTuple):
    x: np.ndarray  # [N, F] float64, the features in the order asked for
    targets: list["Values"]  # of each target that was asked for


Values = list[str] | np.ndarray  # [N], labels as text, or numbers


def parse_label(text: str) -> str:
    """One way to write a label: 3.0 is 3, since many programs save whole numbers so.

    >>> parse_label(" 3.0 "), parse_label("03"), parse_label("cat")
    ('3', '03', 'cat')
    """
    text = text.strip()
    return text.partition(".")[0] if WHOLE.fullmatch(text) else text


def parse_labels(values: Values, column: str, file: Path) -> list[str]:
    """Every value as a label."""
    if isinstance(values, list):
        found = {value: parse_label(value) for value in set(values)}
        fraction = next((value for value in found.values() if FRACTION.fullmatch(value)), None)
        if fraction is not None and all(map(is_number, found.values())):
            raise _no_labels(file, column, f"{fraction} for one")
        for value in found.values():
            if len(value) > MOST_LETTERS:
                raise InputError(
                    f"{file}: column {column!r} has a label of {len(value)} letters, "
                    f"{value[:30]!r} ...; is it the target?"
                )
        return [found[value] for value in values]
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype.kind == "f":
        broken = values != np.floor(values)
        if broken.any():
            row = int(broken.argmax())
            raise _no_labels(file, column, f"{values[row]:g} in row {row + 1}")
        values = values.astype(np.int64)
    return [str(value) for value in values.tolist()]


def _no_labels(file: Path, column: str, which: str) -> InputError:
    return InputError(
        f"{file}: column {column!r} holds numbers that are no labels ({which}); for regression say "
        "--likelihood gaussian"
    )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_numbers(values: Values, column: str, file: Path) -> np.ndarray:
    """Every value as a number, [N] float64; NaN where there is none, and readers let that be."""
    if not isinstance(values, list):
        return values.astype(np.float64)
    out = np.empty(len(values))
    for row, value in enumerate(values):
        if value == BLANK:
            out[row] = np.nan
            continue
        try:
            out[row] = float(value)
        except ValueError:
            raise not_a_number(file, column, f"row {row + 1}", value, target=True) from None
        if not np.isfinite(out[row]):
            raise not_a_number(file, column, f"row {row + 1}", value, target=True)
    return out


YES, NO = {"1", "true", "yes", "y", "t"}, {"0", "false", "no", "n", "f"}


def parse_yes_or_no(values: Values, column: str, file: Path) -> np.ndarray:
    """Every value as 1 or 0, [N] float64; NaN as in `parse_numbers`.

    >>> parse_yes_or_no(["yes", "No", "1.0", ""], "rain", Path("days.csv"))
    array([ 1.,  0.,  1., nan])
    """
    if not isinstance(values, list):
        found = values.astype(np.float64)
        wrong = ~np.isin(found, (0, 1)) & ~np.isnan(found)
        if wrong.any():
            row = int(wrong.reshape(len(found), -1).any(1).argmax())
            raise _neither(file, column, row, f"{found[row].tolist()}")
        return found
    out = np.empty(len(values))
    for row, value in enumerate(values):
        text = parse_label(value).lower()
        if text not in YES | NO | {BLANK}:
            raise _neither(file, column, row, repr(value[:30]))
        out[row] = np.nan if text == BLANK else text in YES
    return out


def _neither(file: Path, column: str, row: int, value: str) -> InputError:
    return InputError(
        f"{file}: column {column!r} has {value} in row {row + 1}; a label is yes or no: 1 or 0, "
        "true or false"
    )


def not_a_number(
    file: Path, column: str, where: str, value: str, *, target: bool = False
) -> InputError:
    shown = value if len(value) <= 30 else value[:30] + " ..."
    if value.strip().lower() in MISSING:
        return missing_value(file, column, where)
    remedy = f"; make numbers of it, or leave it out: --drop {column}"
    if target:
        remedy = "; classes are for --likelihood categorical"
    return InputError(f"{file}: column {column!r} has {shown!r} in {where}, no number{remedy}")


def missing_value(file: Path, column: str, where: str) -> InputError:
    return InputError(
        f"{file}: column {column!r} has no value in {where}; fill it in, or leave such rows out"
    )


def find_columns(names: Sequence[str], wanted: Sequence[str], file: Path) -> list[int]:
    """The places of some columns."""
    for name in wanted:
        if name not in names:
            others = [other for other in names if other not in wanted]  # those have their use
            hint = did_you_mean(name, others) or f"; it has {list_names(names)}"
            if all(part.strip() in names for part in name.split(",")):
                hint = "; name several one by one, each after its own --target or --feature"
            raise InputError(f"{file} has no column {name!r}{hint}")
    return [names.index(name) for name in wanted]


def list_names(names: Sequence[str], most: int = 8) -> str:
    """
    >>> list_names(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    few = ", ".join(names[:most])
    return few if len(names) <= most else f"{few}, ... ({len(names)} in all)"


def check_names(names: Sequence[str], file: Path) -> None:
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{file} has two columns {twice!r}; give each its own name")
