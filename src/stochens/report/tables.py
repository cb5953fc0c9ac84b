"""A table as plain data, which a template shows (templates/table.html)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from stochens.metrics import Interval
from stochens.report.text import DASH, format_number

BEST = "best"


@dataclass(frozen=True)
class Head:
    """A column: its label, its unit, and of which other data it is."""

    label: str
    unit: str = ""
    where: str = ""


@dataclass(frozen=True)
class Group:
    """Neighbouring columns under one label."""

    label: str
    unit: str
    columns: int


@dataclass(frozen=True)
class Cell:
    """What a cell says, and in small type below: its interval, and notes.

    `value` is the exact number behind the text. `mark` is a class of the style sheet; `share`, from
    0 to 1, is the length of a bar or the depth of a tint.
    """

    text: str = DASH
    value: float | None = None
    interval: str = ""
    notes: tuple[str | Markup, ...] = ()
    mark: str = ""
    share: float | None = None
    columns: int = 1


@dataclass(frozen=True)
class Row:
    name: str
    cells: Sequence[Cell]
    note: str = ""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """`references` are rows that do not compete, and stand above the others."""

    template: ClassVar[str] = "table.html"
    caption: str
    heads: Sequence[Head]  # the first is that of the rows' names
    rows: Sequence[Row]
    references: Sequence[Row] = ()
    groups: Sequence[Group] = ()
    style: str = ""
    best: str = "best"  # what a screen reader says of a cell with this mark
    summary: str = ""  # folds it away


def number(value: float, digits: int = 3) -> Cell:
    """
    >>> number(0.25).text, number(0.25).value
    ('0.250', 0.25)
    """
    whole = float(value).is_integer() and abs(value) >= 1
    return Cell(f"{value:,.0f}" if whole else format_number(float(value), digits), float(value))


def interval_text(found: Interval) -> str:
    """
    >>> interval_text(Interval(0.5, 0.25, 0.75)), interval_text(Interval(1.0, 1.0, 1.0))
    ('0.250 to 0.750', '')
    """
    low, high = found.low, found.high
    return "" if low == high else f"{format_number(low)} to {format_number(high)}"
