"""The paper's Tables 2 and 3 with our rows and its own, as Markdown and for the terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from stochens_lab.report.cifar.claims_tables import claim_lines
from stochens_lab.report.cifar.numbers import corrupted_values, intensities
from stochens_lab.report.cifar.rows import (
    OOD,
    TEST_METRICS,
    Row,
    Rows,
    set_title,
    shown,
)
from stochens_lab.report.cifar.tables import FURTHER, lines, paper_text
from stochens_lab.report.cifar.trade import trade_lines
from stochens_lab.report.paper import CORRUPTED, TEST

SHORT = {"agreement": "agree", "variance": "var", "accuracy": "acc"}  # for 80 columns
NOTE = (
    "Bold is the row closest to HMC. Rows in italics are the paper's; its one OOD figure, here in "
    "the first of those columns, does not say of which other set it is."
)
Column = tuple[str, str]  # domain, metric


def cifar_lines(sets: Sequence[Rows]) -> Iterator[str]:
    for rows in sets:
        name = set_title(rows.set_name)
        corrupted = rows.having([(CORRUPTED, metric) for metric in TEST_METRICS])
        further = rows.having([(TEST, metric) for metric in FURTHER])
        if rows.columns:
            yield from ("", f"## {name}: test images (Table 2)", "")
            yield NOTE
            yield from ("", *_table(rows, rows.columns, TEST))
        if corrupted:
            yield from ("", f"## {name}: mean over the corrupted sets (Table 3)", "")
            yield from _table(rows, corrupted, CORRUPTED)
        if rows.several:
            yield from claim_lines(rows)
            yield from trade_lines(rows)
        if further:
            yield from ("", f"## {name}: further measures on test images", "")
            yield from _table(rows, further, "")
        for row in rows.all:
            yield from _corruptions(row)


def _table(rows: Rows, columns: Sequence[Column], paper_domain: str) -> Iterator[str]:
    yield _joined(["", *(_head(column) for column in columns)])
    yield _joined(["---"] * (len(columns) + 1))
    marks = {column: rows.marks(*column) for column in columns}
    for line in (line for part in lines(rows, paper_domain) for line in part):
        row = line.row
        if row is None:
            yield _joined(
                [f"*{line.paper}, paper*", *_paper(rows, line.paper, columns, paper_domain)]
            )
        elif any(row.interval(*column) is not None for column in columns):
            best = [marks[column].get(row.name) == "best" for column in columns]
            cells = [_cell(rows, row, c, bold=b) for c, b in zip(columns, best, strict=True)]
            yield _joined([row.name.replace("|", "\\|"), *cells])


def _paper(rows: Rows, name: str, columns: Sequence[Column], domain: str) -> Iterator[str]:
    """Its one OOD figure stands in the first of the columns."""
    seen = False
    for _, metric in columns:
        value = paper_text(rows.set_name, name, domain, metric)
        yield "" if value is None or (metric == OOD and seen) else f"*{value}*"
        seen = seen or metric == OOD


def _head(column: Column) -> str:
    metric = shown(column[1])
    words = [metric.label + (f" ({metric.unit})" if metric.unit else "")]
    return ", ".join([*words, set_title(column[0])] if column[1] == OOD else words)


def _cell(rows: Rows, row: Row, column: Column, *, bold: bool) -> str:
    interval = row.interval(*column)
    if interval is None:
        known = rows.by_definition(row, *column)
        return "" if known is None else f"{known * shown(column[1]).scale:g}"
    value, low, high = (shown(column[1]).text(v) for v in interval)
    span = f" ({low} to {high})" if interval.low < interval.high else ""
    return (f"**{value}**" if bold else value) + span


def _corruptions(row: Row) -> Iterator[str]:
    found = corrupted_values(row, "accuracy")
    if not found:
        return
    levels = intensities([row])
    yield from ("", f"## {row.name}: accuracy (%) by corruption and intensity", "")
    yield _joined(["", *map(str, levels)])
    yield _joined(["---"] * (len(levels) + 1))
    for name in sorted(found):
        values = [found[name].get(level) for level in levels]
        yield _joined([name, *("" if v is None else f"{100 * v:.1f}" for v in values)])


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cifar_terminal(rows: Rows) -> Iterator[Table]:
    """Test images with the other sets, and the mean over the corrupted ones."""
    name = set_title(rows.set_name)
    corrupted = rows.having([(CORRUPTED, metric) for metric in TEST_METRICS])
    for title, columns in ((f"{name}: test", rows.columns), (f"{name}: corrupted", corrupted)):
        if not columns:
            continue
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
        table.add_column("", no_wrap=True)
        for domain, metric in columns:
            short = domain if metric == OOD else SHORT.get(metric, metric)
            table.add_column(short, justify="right", no_wrap=True)
        for row in rows.all:
            if any(row.interval(*column) for column in columns):
                table.add_row(row.name, *(_short(rows, row, column) for column in columns))
        yield table


def _short(rows: Rows, row: Row, column: Column) -> str:
    interval = row.interval(*column)
    value = rows.by_definition(row, *column) if interval is None else interval.value
    return "-" if value is None else f"{value:.3f}"
