"""`stochens data`: what image data is in a folder, read and checked, and how to get what is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from torch import Tensor

from stochens.errors import InputError
from stochens_lab.data.download import SOURCES, download
from stochens_lab.data.hmc_reference import FILES, accuracy, load_hmc_reference
from stochens_lab.data.image_sets import SETS, SPLITS
from stochens_lab.data.images import find_images, how_to_get, is_original, load_images


class Entry(NamedTuple):
    name: str  # of the set, or hmc
    split: str
    form: str  # parquet, binary batches, ...
    place: Path
    rows: int
    whole: int  # rows that the published split has
    checks: str
    fault: str = ""  # why it cannot be read


def take_inventory(folder: str | Path) -> list[Entry]:
    """Every split that is there, read in full; a damaged one has its fault."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; make it, or run: stochens data --help")
    entries: list[Entry] = []
    labels: Tensor | None = None
    for name in SETS:
        for split in SPLITS:
            entry, y = _read_split(folder, name, split)
            entries += [entry] if entry else []
            labels = y if (name, split) == ("cifar10", "test") else labels
    readable = {entry.place for entry in entries if not entry.fault}
    # files that lie in the folder itself are tried as every set: the one that fits counts
    entries = [entry for entry in entries if not (entry.fault and entry.place in readable)]
    return [*entries, *_read_reference(folder, labels)]


def _read_split(folder: Path, name: str, split: str) -> tuple[Entry | None, Tensor | None]:
    whole = SETS[name].rows[split]
    form, place = "?", folder
    try:
        found = find_images(folder, name, split)
        if found is None:
            return None, None
        form, place = found.form, found.place
        images = load_images(folder, name, split)
    except InputError as error:
        return Entry(name, split, form, place, 0, whole, "", str(error)), None
    checks = {
        True: "pixels, labels and order are the original ones",
        False: "readable; not the original rows in the original order",
        None: "readable; labels in range",
    }[is_original(images, name, split)]
    return Entry(name, split, form, place, len(images.y), whole, checks), images.y


def _read_reference(folder: Path, labels: Tensor | None) -> list[Entry]:
    place = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if place is None:
        return []
    entry = Entry("hmc", "test", place.suffix[1:], place, 10_000, 10_000, "")
    if labels is not None and len(labels) != entry.whole:
        labels = None
    try:
        probs = load_hmc_reference(place, labels)
    except InputError as error:
        return [entry._replace(rows=0, fault=str(error))]
    if labels is None:
        return [entry._replace(checks="distributions; order unproved without the test labels")]
    share = accuracy(probs, labels)
    return [entry._replace(checks=f"aligned with the test images: accuracy {100 * share:.2f} %")]


def show_folder(folder: Path, *, fetch: Sequence[str] = (), console: Console) -> None:
    """Download what is asked for, then read and check everything, and say what is there.

    Damaged data is an error at the end, after all that is good was shown.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    for name in fetch:
        new = download(name, folder)
        say("\n".join(f"new: {place}" for place in new) or f"{name} is there already")
    with Console(stderr=True).status(f"read {folder}"):
        entries = take_inventory(folder)
    table = Table("set", "split", "rows", "form", "checks", box=None, pad_edge=False)
    for entry in entries:
        part = "" if entry.rows == entry.whole else f" of {entry.whole}"
        checks = entry.checks if not entry.fault else "[red]damaged, see below[/red]"
        table.add_row(entry.name, entry.split, f"{entry.rows}{part}", entry.form, checks)
    if entries:
        console.print(table)
    there = {entry.name for entry in entries}
    for name in SOURCES:
        if name not in there:
            say(f"no {name}: {how_to_get(folder, name)}")
    faults = [entry.fault for entry in entries if entry.fault]
    if faults:
        raise InputError("\n".join(faults))
