"""Downloads from the public sources: streamed, checked by SHA-256, moved into place when whole."""

import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from stochens.errors import InputError, did_you_mean
from stochens.files.hashing import hash_file
from stochens_lab.data import svhn_mat
from stochens_lab.data.image_sets import Progress
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
    to: str  # file, or for a tar the folder, below the data folder
    members: dict[str, int] | None = None  # of a tar: name -> most bytes; no other is extracted


CIFAR10_MEMBERS = {f"data_batch_{k}": 40_000_000 for k in range(1, 6)}
SOURCES = {
    "cifar10": [
        Remote(
            f"{TORONTO}/cifar-10-python.tar.gz",  # published MD5 c58f30108f718f92721af3b95e74349a
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "cifar-10-batches-py",
            {**CIFAR10_MEMBERS, "test_batch": 40_000_000, "batches.meta": 10_000},
        )
    ],
    "cifar100": [
        Remote(
            f"{TORONTO}/cifar-100-python.tar.gz",  # published MD5 eb9058c3a382ffc7106e4002c42a8d85
            169_001_437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "cifar-100-python",
            {"train": 200_000_000, "test": 40_000_000, "meta": 10_000},
        )
    ],
    "svhn": [
        Remote(
            f"{STANFORD}/train_32x32.mat",
            182_040_794,
            svhn_mat.SHA256["train"],
            "svhn/train_32x32.mat",
        ),
        Remote(
            f"{STANFORD}/test_32x32.mat",
            64_275_384,
            svhn_mat.SHA256["test"],
            "svhn/test_32x32.mat",
        ),
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


def download(
    name: str, folder: str | Path, *, progress: Progress = lambda done, total: None
) -> list[Path]:
    """Fetch cifar10, cifar100, svhn or hmc into the folder; returns what is new.

    What is there already is left alone. `progress` counts bytes.
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
            fetch(remote, place, progress=progress)
        except Unreachable as error:
            raise InputError(f"{error}; without a network {what_to_put(folder, name)}") from None
        new.append(place)
    return new


class Unreachable(InputError):
    """The source did not answer, or not with the file."""


def fetch(remote: Remote, place: Path, *, progress: Progress = lambda done, total: None) -> None:
    """One file or tar to its place. It appears there whole and checked, or not at all."""
    with _beside(place) as work:
        file = work / "file"
        _stream(remote, file, progress)
        ready = file if remote.members is None else _extract(remote, file, work / "extracted")
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


def _stream(remote: Remote, file: Path, progress: Progress) -> None:
    done = 0
    answer = _answer(remote.url)
    with answer, file.open("wb") as out:
        while block := _block(answer, remote.url):
            done += len(block)
            if done > remote.size:
                break
            out.write(block)
            progress(done, remote.size)
    if done != remote.size:
        more = "more" if done > remote.size else f"{done} bytes"
        raise Unreachable(f"{remote.url} gave {more}, not the published {remote.size}; try again")
    if hash_file(file) != remote.sha256:
        raise Unreachable(f"{remote.url} is not the published file: its SHA-256 differs")


def _answer(url: str):  # type: ignore[no-untyped-def]
    try:
        return urllib.request.urlopen(url, timeout=SECONDS)
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise Unreachable(f"cannot reach {url}: {getattr(error, 'reason', error)}") from None


def _block(answer, url: str) -> bytes:  # type: ignore[no-untyped-def]
    try:
        block: bytes = answer.read(BLOCK)
        return block
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{url} broke off: {error}; try again") from None


def _extract(remote: Remote, archive: Path, to: Path) -> Path:
    """Only the expected plain files, under their own last name, each up to its size."""
    wanted = dict(remote.members or {})
    to.mkdir()
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                head, _, name = member.name.rpartition("/")
                if head != remote.to or name not in wanted or not member.isreg():
                    continue
                if member.size > wanted.pop(name):
                    raise InputError(f"{remote.url}: {name} has {member.size} bytes, too many")
                source = tar.extractfile(member)
                assert source is not None  # it is a plain file
                with source, (to / name).open("xb") as out:
                    shutil.copyfileobj(source, out)
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{remote.url} is no readable tar: {error}") from None
    if wanted:
        raise InputError(f"{remote.url} has no {', '.join(wanted)}")
    return to
