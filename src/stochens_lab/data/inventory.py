"""What lies in a data folder, read and checked."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from stochens.errors import InputError
from stochens_lab.data.hmc_reference import FILES, accuracy, load_hmc_reference
from stochens_lab.data.image_sets import SETS, SPLITS, Progress
from stochens_lab.data.images import find_images, is_original, load_images

Watch = Callable[[str], Progress]  # what is being read -> its progress


class Entry(NamedTuple):
    name: str  # of the set, or hmc
    split: str
    form: str  # parquet, python batches, ...
    place: Path
    rows: int
    whole: int  # rows that the published split has
    checks: str
    fault: str = ""  # why it cannot be read


def take_inventory(
    folder: str | Path, *, watch: Watch = lambda what: lambda done, total: None
) -> list[Entry]:
    """Every split that is there, read in full; a damaged one has its fault."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; make it, or run: stochens data --help")
    entries: list[Entry] = []
    labels: Tensor | None = None
    for name in SETS:
        for split in SPLITS:
            entry, y = _read_split(folder, name, split, watch)
            entries += [entry] if entry else []
            labels = y if (name, split) == ("cifar10", "test") else labels
    readable = {entry.place for entry in entries if not entry.fault}
    # files that lie in the folder itself are tried as every set: the one that fits counts
    entries = [entry for entry in entries if not (entry.fault and entry.place in readable)]
    return [*entries, *_read_reference(folder, labels)]


def _read_split(
    folder: Path, name: str, split: str, watch: Watch
) -> tuple[Entry | None, Tensor | None]:
    whole = SETS[name].rows[split]
    form, place = "?", folder
    try:
        found = find_images(folder, name, split)
        if found is None:
            return None, None
        form, place = found.form, found.place
        images = load_images(folder, name, split, progress=watch(f"{name} {split}"))
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
