"""Downloads from the public sources: streamed, checked by SHA-256, moved into place when whole."""

import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

from rich.console import Console
from rich.progress import wrap_file

from stochens.errors import InputError, did_you_mean
from stochens.files.hashing import hash_file
from stochens_lab.data import svhn_mat
from stochens_lab.data.images import what_to_put

SECONDS = 60  # without a byte
BLOCK = 1 << 20
TORONTO = "https://www.cs.toronto.edu/~kriz"  # Krizhevsky 2009
STANFORD = "http://ufldl.stanford.edu/housenumbers"  # Netzer et al. 2011; offers no https
HMC = (  # Izmailov et al. 2021, at the commit that made it comma-separated
    "https://raw.githubusercontent.com/izmailovpavel/neurips_bdl_starter_kit/"
    "0190d7c999c6c88b2f8b7993781b3b874e25fc02/data/cifar10/probs.csv"
)


class Remote(NamedTuple):
    url: str
    size: int  # bytes
    sha256: str
    to: str  # file, or for a tar the folder that it holds, below the data folder


SOURCES = {
    "cifar10": [
        Remote(
            f"{TORONTO}/cifar-10-binary.tar.gz",  # published MD5 c32a1d4ab5d03f1284b67883e8d87530
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin",
        )
    ],
    "cifar100": [
        Remote(
            f"{TORONTO}/cifar-100-binary.tar.gz",  # published MD5 03b5dce01913d631647c71ecec9e9cb8
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            "cifar-100-binary",
        )
    ],
    "svhn": [
        Remote(f"{STANFORD}/{name}", size, svhn_mat.SHA256[name.split("_")[0]], f"svhn/{name}")
        for name, size in (("train_32x32.mat", 182_040_794), ("test_32x32.mat", 64_275_384))
    ],
    "hmc": [
        Remote(
            HMC,
            2_500_000,
            "b6af9ac20708f869e95d0fdeb667c64421c4196b0b114d60c1ffce6f35b0835e",
            "cifar10/probs.csv",
        )
    ],
}


def download(name: str, folder: str | Path) -> list[Path]:
    """Fetch cifar10, cifar100, svhn or hmc into the folder; returns what is new.

    What is there already is left alone.
    """
    if name not in SOURCES:
        raise InputError(
            f"to be had are {', '.join(SOURCES)}, got {name!r}{did_you_mean(name, SOURCES)}"
        )
    folder = Path(folder)
    new = []
    for remote in SOURCES[name]:
        place = folder / remote.to
        if place.exists():
            continue
        try:
            fetch(remote, place)
        except Unreachable as error:
            raise InputError(f"{error}; without a network {what_to_put(folder, name)}") from None
        new.append(place)
    return new


class Unreachable(InputError):
    """The source did not answer, or not with the file."""


def fetch(remote: Remote, place: Path) -> None:
    """One file or tar to its place. It appears there whole and checked, or not at all."""
    with _beside(place) as work:
        ready = work / "file"
        _stream(remote, ready)
        if remote.url.endswith(".tar.gz"):
            with tarfile.open(ready) as tar:
                tar.extractall(work, filter="data")
            ready = work / remote.to
        if place.exists():
            raise InputError(f"{place} appeared during the download; it was left alone")
        ready.rename(place)


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A folder on the same disk, gone at the end whatever happens."""
    new = not place.parent.exists()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=place.parent) as work:
            yield Path(work)
    except OSError as error:
        raise InputError(f"cannot write {place}: {error.strerror or error}") from None
    finally:
        if new:
            with suppress(OSError):  # it goes only if it is empty
                place.parent.rmdir()


def _stream(remote: Remote, file: Path) -> None:
    """The published bytes, or an error."""
    shown = Console(stderr=True)
    bar: dict[str, Any] = {"console": shown, "disable": not shown.is_terminal}
    try:
        answer = urllib.request.urlopen(remote.url, timeout=SECONDS)
        watched = wrap_file(answer, remote.size, description=remote.to, **bar)
        with watched as source, file.open("wb") as out:
            while out.tell() <= remote.size and (block := source.read(BLOCK)):
                out.write(block)
    except (URLError, ConnectionError, TimeoutError, HTTPException) as error:
        raise Unreachable(f"cannot reach {remote.url}: {getattr(error, 'reason', error)}") from None
    if hash_file(file) != remote.sha256:
        raise Unreachable(
            f"{remote.url} gave {file.stat().st_size} bytes, and not the {remote.size} that were "
            "published: the SHA-256 differs; try again"
        )
