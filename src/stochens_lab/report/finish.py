"""The end of a run: its figures, its page, and its tables on the terminal."""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from stochens.errors import InputError
from stochens.files.storage import write_whole
from stochens_lab.report import markdown
from stochens_lab.report.cifar.markdown import build_terminal_tables, cifar_metrics
from stochens_lab.report.cifar.rows import gather, is_cifar
from stochens_lab.report.run_folder import FIGURES, METRICS, PAGE, RUN, TABLES, SavedRun
from stochens_lab.report.tables import build_terminal
from stochens_lab.report.view import RunView

SHORT_NAMES = {  # metric: its short name, so that two domains fit 80 columns
    "agreement": "agreement",
    "variance": "variance",
    "entropy error": "H error",
    "MI error": "MI error",
}


def has_results(path: Path) -> bool:
    """Whether a stopped run left something to show."""
    try:
        return bool(SavedRun(path).metrics)
    except InputError:
        return False


def finish_run(path: Path, console: Console) -> Iterator[str]:
    """Figures, page and tables of a run folder; yields lines that say where they are."""
    run = SavedRun(path)
    for table in _build_tables(run):
        console.print(table)
    _import_slow("figures.files").save_figures([run], path / FIGURES)
    write_whole(path / TABLES, markdown.format_run(run).encode())
    yield f"Page:    {write_page([path], None)}"
    yield f"Figures: {path / FIGURES}"
    yield f"Numbers: {path / METRICS}"


def _import_slow(name: str) -> ModuleType:
    """What draws is imported when there is something to draw: matplotlib takes a second."""
    return importlib.import_module(f"stochens_lab.report.{name}")


def _build_tables(run: SavedRun) -> Iterator[Table]:
    view = RunView(run, "")
    if is_cifar(view):
        for rows in gather([view]):
            yield from build_terminal_tables(rows)
        return
    for set_name, methods in run.metrics.items():
        if run.about.get("experiment") == "active":
            yield from _build_accuracies(set_name, methods)
        else:
            yield from build_set_tables(set_name, methods)


def _build_accuracies(set_name: str, rows: dict[str, dict[str, dict[str, Any]]]) -> Iterator[Table]:
    """Of a run that has no reference to be near to; curves are in its figure."""
    if any(len(row) > 1 for row in rows.values()):
        return
    lines = []
    for name, row in rows.items():
        found = next(iter(row.values()))["accuracy"]
        text = f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
        lines.append([name, text])
    yield build_terminal(set_name, ["accuracy, 95 % interval"], lines)


def write_companions(paths: Sequence[Path], page: Path, *, figures: bool) -> Iterator[str]:
    """Write what belongs beside a page; yields lines that say where.

    Several runs of CIFAR: metrics.json and tables.md of all their rows, always. With `figures`:
    tables.md and figures/ of any runs; those of CIFAR share their figures, as they share their
    tables, and other runs have a folder each where there are several. A run's own folder keeps what
    is its own.
    """
    runs = [SavedRun(path) for path in paths]
    images = [run for run in runs if is_cifar(RunView(run, ""))]
    alone = len(runs) == 1 and runs[0].path.resolve() == page.parent.resolve()
    if (page.parent / RUN).exists() and not alone:
        if figures or len(images) > 1:
            yield f"No tables and numbers beside the page: {page.parent} is a run's own folder"
        return
    if figures:
        _import_slow("figures.files").save_figures(runs, page.parent / FIGURES)
        if (page.parent / FIGURES).exists():
            yield f"Figures: {page.parent / FIGURES}"
    if figures or len(images) > 1:
        write_whole(page.parent / TABLES, markdown.format_runs(runs).encode())
        yield f"Tables:  {page.parent / TABLES}"
    if len(images) > 1:
        text = json.dumps(cifar_metrics(images), indent=2, allow_nan=False) + "\n"
        write_whole(page.parent / METRICS, text.encode())
        yield f"Numbers: {page.parent / METRICS}"


def write_page(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page of these runs and tell where; `out` is the page, or the folder of it."""
    out = paths[0] if out is None else out
    if out.is_dir() or not out.suffix:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {out}: {error.strerror}") from error
        out = out / PAGE
    text: str = _import_slow("page.build").build_page([SavedRun(path) for path in paths])
    write_whole(out, text.encode())
    return out


def build_set_tables(set_name: str, rows: dict[str, dict[str, dict[str, Any]]]) -> list[Table]:
    """Distance to the reference, method by method; two domains share a table, more have their own,
    so that all fit a terminal of 80 columns."""
    domains = list(dict.fromkeys(domain for row in rows.values() for domain in row))
    groups = [domains] if len(domains) <= 2 else [[domain] for domain in domains]
    return [_build_table(f"{set_name}: {' / '.join(group)}", rows, group) for group in groups]


def _build_table(
    title: str, rows: dict[str, dict[str, dict[str, Any]]], domains: list[str]
) -> Table:
    names = _choose_metrics(rows, domains)
    cells = []
    for method, row in rows.items():
        found = [[row.get(domain, {}).get(metric) for domain in domains] for metric in names]
        if any(interval for cell in found for interval in cell):
            cells.append([method, *(" ".join(map(_format_cell, cell)) for cell in found)])
    return build_terminal(title, list(names.values()), cells)


def _choose_metrics(
    rows: dict[str, dict[str, dict[str, Any]]], domains: list[str]
) -> dict[str, str]:
    """Those of closeness, with short names; whatever there is, where there is no reference."""
    found = [m for row in rows.values() for domain in domains for m in row.get(domain, {})]
    close = any(metric in SHORT_NAMES for metric in found)
    return SHORT_NAMES if close else {metric: metric for metric in found}


def _format_cell(interval: dict[str, float | None] | None) -> str:
    if interval is None:
        return "    -"
    value = interval["value"]  # null where it was infinite
    return "  inf" if value is None else f"{value:.3f}"
