"""A table as plain data: the page shows it by a template, Markdown by `format_markdown`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich import box
from rich.table import Table as TerminalTable

from stochens.report.text import DASH

BEST = "best"


@dataclass(frozen=True)
class Head:
    """A column: its label, its unit, and of which other set of images it is."""

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
    """What a cell says, and in small type below: its interval, notes, the paper's value, a verdict.

    `value` is the exact number behind the text. `mark` is a class of the style sheet; `share`, from
    0 to 1, is the length of a bar or the depth of a tint.
    """

    text: str = DASH
    value: float | None = None
    interval: str = ""
    notes: tuple[str, ...] = ()
    paper: str = ""
    verdict: str = ""
    mark: str = ""
    share: float | None = None
    columns: int = 1


@dataclass(frozen=True)
class Row:
    name: str
    cells: Sequence[Cell]
    note: str = ""
    from_paper: bool = False


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


def format_markdown(table: Table) -> Iterator[str]:
    yield join_cells(["", *map(_format_head, table.heads[1:])])
    yield join_cells(["---"] * len(table.heads))
    for row in (*table.references, *table.rows):
        cells = [row.name.replace("|", "\\|")]
        for cell in row.cells:
            cells += [_format_cell(cell), *[""] * (cell.columns - 1)]
        yield join_cells([f"*{c}*" if c else "" for c in cells] if row.from_paper else cells)


def build_terminal(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]
) -> TerminalTable:
    """Narrow, for a terminal of 80 columns; the first of each row is its name."""
    table = TerminalTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def join_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_head(head: Head) -> str:
    label = f"{head.label} ({head.unit})" if head.unit else head.label
    return f"{label}, {head.where}" if head.where else label


def _format_cell(cell: Cell) -> str:
    text = "" if cell.text == DASH else cell.text
    bold = f"**{text}**" if cell.mark == BEST else text
    return f"{bold} ({cell.interval})" if cell.interval else bold
