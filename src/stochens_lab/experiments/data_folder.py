"""`stochens data`: what image data is in a folder, and how to get what is not."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stochens.errors import InputError
from stochens.run.progress import Bar, progress_bar
from stochens_lab.data.download import SOURCES, download
from stochens_lab.data.image_sets import Progress
from stochens_lab.data.images import how_to_get
from stochens_lab.data.inventory import Entry, take_inventory


def show_folder(folder: Path, *, fetch: Sequence[str] = (), console: Console) -> None:
    """Download what is asked for, then read and check everything, and say what is there.

    Damaged data is an error at the end, after all that is good was shown.
    """
    with contextlib.ExitStack() as bars:
        for name in fetch:
            new = download(name, folder, progress=_make_bar(f"download {name}", bars))
            bars.close()
            console.print(
                *([f"new: {place}" for place in new] or [f"{name} is there already"]),
                sep="\n",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        entries = take_inventory(folder, watch=lambda what: _make_bar(f"read {what}", bars))
    if entries:
        console.print(_make_table(entries))
    there = {entry.name for entry in entries}
    for name in SOURCES:
        if name not in there:
            text = f"no {name}: {how_to_get(folder, name)}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    faults = [entry.fault for entry in entries if entry.fault]
    if faults:
        raise InputError("\n".join(faults))


def _make_table(entries: list[Entry]) -> Table:
    table = Table("set", "split", "rows", "form", "checks", box=None, pad_edge=False)
    for entry in entries:
        part = "" if entry.rows == entry.whole else f" of {entry.whole}"
        checks = entry.checks if not entry.fault else "[red]damaged, see below[/red]"
        table.add_row(entry.name, entry.split, f"{entry.rows}{part}", entry.form, checks)
    return table


def _make_bar(what: str, bars: contextlib.ExitStack) -> Progress:
    """A bar that appears with the first report, when the total is known."""
    bar: Bar | None = None
    before = 0

    def progress(done: int, total: int) -> None:
        nonlocal bar, before
        if bar is None:
            bars.close()  # the one before is finished
            bar = bars.enter_context(progress_bar(what, total=total, show=None))
        bar.advance(done - before)
        before = done

    return progress
