"""The paper's Tables 2 and 3 with our rows and its own: as Markdown, for the terminal, and
the numbers of all rows as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table as TerminalTable

from stochens.report.tables import Table
from stochens_lab.report.cifar.claims import format_claims
from stochens_lab.report.cifar.numbers import find_intensities, read_corrupted
from stochens_lab.report.cifar.rows import OOD, TEST_METRICS, Row, Rows, gather, is_cifar, name_set
from stochens_lab.report.cifar.tables import (
    build_corrupted_table,
    build_further_table,
    build_test_table,
)
from stochens_lab.report.cifar.trade import NOTE as TRADE
from stochens_lab.report.cifar.trade import TITLE, build_trade_table
from stochens_lab.report.paper import CORRUPTED, TEST
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.tables import build_terminal, format_markdown, join_cells
from stochens_lab.report.view import RunView

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
        if columns:
            heads = [d if metric == OOD else SHORT.get(metric, metric) for d, metric in columns]
            shown = [row for row in rows.all if any(row.interval(*column) for column in columns)]
            cells = ([r.name, *(_format_short(rows, r, c) for c in columns)] for r in shown)
            yield build_terminal(title, heads, cells)


def _format_short(rows: Rows, row: Row, column: Column) -> str:
    interval = row.interval(*column)
    value = rows.by_definition(row, *column) if interval is None else interval.value
    return "-" if value is None else f"{value:.3f}"


RUN_KEYS = ("members", "epochs", "images", "draws", "seconds", "command", "seed", "device")


def cifar_metrics(runs: Sequence[SavedRun]) -> dict[str, Any]:
    """The numbers of several runs, by the names that rows have in the tables; with the
    set's where there are several:

    row -> run          members, epochs, images, draws, seconds, command, seed, device
           accuracy, nll, ece, agreement, variance    {value, low, high}
           auroc        other set -> {value, low, high}
           corrupted    the same measures, the mean over the corrupted sets

    What is not known is left out; of the reference's run, which is not ours, nothing is known.
    """
    views = [view for i, run in enumerate(runs) if is_cifar(view := RunView(run, f"run{i}"))]
    sets = gather(views)
    return {
        f"{row.name}, {name_set(rows.set_name)}" if len(sets) > 1 else row.name: _gather_row(
            row, rows.ood, reference=row in rows.references
        )
        for rows in sets
        for row in rows.all
    }


def _gather_row(row: Row, others: Sequence[str], *, reference: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"run": dict.fromkeys(RUN_KEYS) if reference else _describe_run(row)}
    # Against itself the reference has agreement 1 and variance 0, which is no measurement.
    names = [n for n in TEST_METRICS if not (reference and n in ("agreement", "variance"))]
    found |= _read_known(row, {name.lower(): (TEST, name) for name in names})
    further = {
        "auroc": {name: (name, OOD) for name in others},
        "corrupted": {name.lower(): (CORRUPTED, name) for name in names},
    }
    return found | {what: k for what, wanted in further.items() if (k := _read_known(row, wanted))}


def _read_known(row: Row, wanted: Mapping[str, Column]) -> dict[str, Any]:
    found = {name: row.interval(*column) for name, column in wanted.items()}
    return {name: interval._asdict() for name, interval in found.items() if interval}


def _describe_run(row: Row) -> dict[str, Any]:
    about = row.views[0].about
    machine = about.get("machine") or {}
    cores = f"{machine['cores']} cores" if machine.get("cores") else None
    return {
        **{key: row.settings.get(key) for key in ("members", "epochs", "images", "draws")},
        "seconds": about.get("seconds"),
        "command": about.get("command"),
        "seed": row.settings.get("seed"),
        "device": machine.get("gpu") or cores,
    }
