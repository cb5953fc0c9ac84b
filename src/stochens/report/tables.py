"""A plain table, as data: names of rows, and cells that may carry the exact number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stochens.metrics import Interval
from stochens.report.text import format_number


@dataclass(frozen=True)
class Cell:
    """`value` is the exact number behind the text, `note` is small below it; `style` is a class of
    the style sheet, and `share`, from 0 to 1, the depth of a tint."""

    text: str
    value: float | None = None
    note: str = ""
    style: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Row:
    name: str
    cells: Sequence[Cell]
    style: str = ""


@dataclass(frozen=True)
class PlainTable:
    template: ClassVar[str] = "plain_table.html"
    caption: str
    heads: Sequence[str]  # the first is that of the rows' names
    rows: Sequence[Row]
    style: str = ""
    summary: str = ""  # folds it away


def number(value: float, digits: int = 3) -> Cell:
    """
    >>> number(0.25)
    Cell(text='0.250', value=0.25, note='', style='', share=None)
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
