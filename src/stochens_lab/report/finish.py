"""The end of a run: its figures, its page, and its tables on the terminal."""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from stochens.errors import InputError
from stochens_lab.report import markdown
from stochens_lab.report.cifar.markdown import cifar_terminal
from stochens_lab.report.cifar.metrics import cifar_metrics
from stochens_lab.report.cifar.rows import gather, is_cifar
from stochens_lab.report.page.build import build_page
from stochens_lab.report.page.run import View
from stochens_lab.report.run_folder import FIGURES, METRICS, PAGE, RUN, TABLES, Run, write_whole

SHOWN = {  # metric: its short name, so that two domains fit 80 columns
    "agreement": "agreement",
    "variance": "variance",
    "entropy error": "H error",
    "MI error": "MI error",
}


def readable(path: Path) -> bool:
    """Whether a stopped run left something to show."""
    try:
        return bool(Run(path).metrics)
    except InputError:
        return False


def everything(path: Path, console: Console) -> Iterator[str]:
    """Figures, page and tables of a run folder; yields lines that say where they are."""
    run = Run(path)
    for table in _terminal(run):
        console.print(table)
    pictures().save(run)
    write_whole(path / TABLES, markdown.tables(run).encode())
    yield f"Page:    {page([path], None)}"
    yield f"Figures: {path / FIGURES}"
    yield f"Numbers: {path / METRICS}"


def pictures() -> ModuleType:
    """Asked for when there is something to draw: matplotlib takes a second to be read."""
    return importlib.import_module("stochens_lab.report.pictures")


def _terminal(run: Run) -> Iterator[Table]:
    view = View(run, "")
    if is_cifar(view):
        for rows in gather([view]):
            yield from cifar_terminal(rows)
        return
    for set_name, methods in run.metrics.items():
        yield from tables(set_name, methods)


def beside(paths: Sequence[Path], page: Path, *, figures: bool) -> Iterator[str]:
    """What lies beside a page; yields lines that say where.

    Several runs of CIFAR: metrics.json and tables.md of all their rows, always. With `figures`:
    tables.md and figures/ of any runs; those of CIFAR share their figures, as they share their
    tables, and other runs have a folder each where there are several. A run's own folder keeps what
    is its own.
    """
    runs = [Run(path) for path in paths]
    images = [run for run in runs if is_cifar(View(run, ""))]
    alone = len(runs) == 1 and runs[0].path.resolve() == page.parent.resolve()
    if (page.parent / RUN).exists() and not alone:
        if figures or len(images) > 1:
            yield f"No tables and numbers beside the page: {page.parent} is a run's own folder"
        return
    if figures:
        pictures().save_all(runs, images, page.parent / FIGURES)
        if (page.parent / FIGURES).exists():
            yield f"Figures: {page.parent / FIGURES}"
    if figures or len(images) > 1:
        write_whole(page.parent / TABLES, markdown.merged(runs).encode())
        yield f"Tables:  {page.parent / TABLES}"
    if len(images) > 1:
        text = json.dumps(cifar_metrics(images), indent=2, allow_nan=False) + "\n"
        write_whole(page.parent / METRICS, text.encode())
        yield f"Numbers: {page.parent / METRICS}"


def page(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page of these runs and tell where; `out` is the page, or the folder of it."""
    out = paths[0] if out is None else out
    if out.is_dir() or not out.suffix:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {out}: {error.strerror}") from error
        out = out / PAGE
    write_whole(out, build_page([Run(path) for path in paths]).encode())
    return out


def tables(set_name: str, rows: dict[str, dict[str, dict[str, Any]]]) -> list[Table]:
    """Distance to the reference, method by method; two domains share a table, more have their own,
    so that all fit a terminal of 80 columns."""
    domains = list(dict.fromkeys(domain for row in rows.values() for domain in row))
    groups = [domains] if len(domains) <= 2 else [[domain] for domain in domains]
    return [_table(f"{set_name}: {' / '.join(group)}", rows, group) for group in groups]


def _table(title: str, rows: dict[str, dict[str, dict[str, Any]]], domains: list[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    table.add_column("", no_wrap=True)
    for short in SHOWN.values():
        table.add_column(short, justify="right", no_wrap=True)
    for method, row in rows.items():
        found = [[row.get(domain, {}).get(metric) for domain in domains] for metric in SHOWN]
        if any(interval for cell in found for interval in cell):
            table.add_row(method, *(" ".join(map(_cell, cell)) for cell in found))
    return table


def _cell(interval: dict[str, float | None] | None) -> str:
    if interval is None:
        return "    -"
    value = interval["value"]  # null where it was infinite
    return "  inf" if value is None else f"{value:.3f}"
