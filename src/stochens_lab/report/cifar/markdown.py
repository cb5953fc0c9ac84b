"""The paper's Tables 2 and 3 with our rows and its own, as Markdown and for the terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table as TerminalTable

from stochens_lab.report.cifar.claims_tables import format_claims
from stochens_lab.report.cifar.numbers import find_intensities, read_corrupted
from stochens_lab.report.cifar.rows import OOD, TEST_METRICS, Row, Rows, name_set
from stochens_lab.report.cifar.tables import (
    build_corrupted_table,
    build_further_table,
    build_test_table,
)
from stochens_lab.report.cifar.trade import NOTE as TRADE
from stochens_lab.report.cifar.trade import TITLE, build_trade_table
from stochens_lab.report.paper import CORRUPTED
from stochens_lab.report.tables import Table, format_markdown, join_cells

SHORT = {"agreement": "agree", "variance": "var", "accuracy": "acc"}  # for 80 columns
NOTE = (
    "Bold is the row closest to HMC. Rows in italics are the paper's; its one OOD figure, here in "
    "the first of those columns, does not say of which other set it is."
)
Column = tuple[str, str]  # domain, metric


def format_cifar(sets: Sequence[Rows]) -> Iterator[str]:
    for rows in sets:
        name = name_set(rows.set_name)
        test, corrupted = build_test_table(rows), build_corrupted_table(rows)
        yield from _format_table(f"{name}: test images (Table 2)", test, NOTE)
        yield from _format_table(f"{name}: mean over the corrupted sets (Table 3)", corrupted)
        if rows.several:
            yield from format_claims(rows)
            yield from _format_table(TITLE, build_trade_table(rows), TRADE)
        further = build_further_table(rows)
        yield from _format_table(f"{name}: further measures on test images", further)
        for row in rows.all:
            yield from _format_corruptions(row)


def _format_table(title: str, table: Table | None, note: str = "") -> Iterator[str]:
    if table is not None:
        yield from ("", f"## {title}", "", *((note, "") if note else ()))
        yield from format_markdown(table)


def _format_corruptions(row: Row) -> Iterator[str]:
    found = read_corrupted(row, "accuracy")
    if not found:
        return
    levels = find_intensities([row])
    yield from ("", f"## {row.name}: accuracy (%) by corruption and intensity", "")
    yield join_cells(["", *map(str, levels)])
    yield join_cells(["---"] * (len(levels) + 1))
    for name in sorted(found):
        values = [found[name].get(level) for level in levels]
        yield join_cells([name, *("" if v is None else f"{100 * v:.1f}" for v in values)])


def build_terminal_tables(rows: Rows) -> Iterator[TerminalTable]:
    """Test images with the other sets, and the mean over the corrupted ones."""
    name = name_set(rows.set_name)
    corrupted = rows.having([(CORRUPTED, metric) for metric in TEST_METRICS])
    for title, columns in ((f"{name}: test", rows.columns), (f"{name}: corrupted", corrupted)):
        if not columns:
            continue
        table = TerminalTable(
            title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left"
        )
        table.add_column("", no_wrap=True)
        for domain, metric in columns:
            short = domain if metric == OOD else SHORT.get(metric, metric)
            table.add_column(short, justify="right", no_wrap=True)
        for row in rows.all:
            if any(row.interval(*column) for column in columns):
                table.add_row(row.name, *(_format_short(rows, row, column) for column in columns))
        yield table


def _format_short(rows: Rows, row: Row, column: Column) -> str:
    interval = row.interval(*column)
    value = rows.by_definition(row, *column) if interval is None else interval.value
    return "-" if value is None else f"{value:.3f}"
