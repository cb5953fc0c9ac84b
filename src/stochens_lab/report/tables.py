"""Tables of the page as Markdown, and tables for the terminal."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table as TerminalTable

from stochens.report.tables import BEST, Cell, Head, Table
from stochens.report.text import DASH

FROM_PAPER = "paper"  # the style of a row that is not ours


def format_markdown(table: Table) -> Iterator[str]:
    yield "| " + join_cells([_format_head(head) for head in table.heads[1:]])  # rows have names
    yield join_cells(["---"] * len(table.heads))
    for row in (*table.references, *table.rows):
        cells = [row.name.replace("|", "\\|")]
        for cell in row.cells:
            cells += [_format_cell(cell), *[""] * (cell.columns - 1)]
        yield join_cells(
            [f"*{c}*" if c else "" for c in cells] if row.style == FROM_PAPER else cells
        )


def build_terminal(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]
) -> TerminalTable:
    """Narrow, for a terminal of 80 columns; the first of each row is its name."""
    table = TerminalTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    table.add_column("")  # a long name is broken, so that numbers are not
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
