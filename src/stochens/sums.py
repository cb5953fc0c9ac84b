"""Checksums of files that are replaced again and again, as the program sha256sum checks them.

    FOLDER/SHA256SUMS    a line "digest  name" for each file

Several files cannot be replaced at one moment. So while it happens a name has two lines: what is
found under it is the file of before (zeros: there was none) or that of after, and either is whole.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stochens.errors import InputError
from stochens.storage import CHECKSUMS, sync

LINE = re.compile(r"([0-9a-f]{64})  (.+)\n")
NONE = "0" * 64
TRIES = 20  # of a reader, while somebody writes

Digests = dict[str, set[str]]  # by the file's name


def replace_files(folder: Path, files: Mapping[str, bytes], before: Digests) -> Digests:
    """Put the files in their places, in their order; returns their digests.

    `before`: those of the files that are there. Wherever this is cut short, `read_files` reads
    what is there.
    """
    after = {name: {hashlib.sha256(content).hexdigest()} for name, content in files.items()}
    for name, content in files.items():
        _beside(folder / name, content)
    either = {name: before.get(name, {NONE}) | digests for name, digests in after.items()}
    _record(folder, before | either)
    for name in files:
        (folder / f".{name}").replace(folder / name)
    sync(folder)
    _record(folder, before | after)
    return before | after


def _beside(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}")
    part.write_bytes(content)
    sync(part)


def _record(folder: Path, digests: Digests) -> None:
    _beside(folder / CHECKSUMS, _lines(digests).encode())
    (folder / f".{CHECKSUMS}").replace(folder / CHECKSUMS)
    sync(folder)


def _lines(digests: Digests) -> str:
    pairs = sorted((name, digest) for name, found in digests.items() for digest in found)
    return "".join(f"{digest}  {name}\n" for name, digest in pairs)


def read_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Those of the files that are there, each compared with its checksum.

    A folder without checksums is read as it is: there were none at first.
    """
    for _ in range(TRIES):
        recorded = _recorded(folder)
        found = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
        wrong = None if recorded is None else _wrong(folder, found, recorded)
        if wrong is None:
            return found
        if _recorded(folder) == recorded:  # else somebody has just written them
            raise InputError(wrong)
    raise InputError(f"{folder} is written to all the time; read it when that is over")


def _recorded(folder: Path) -> bytes | None:
    try:
        return (folder / CHECKSUMS).read_bytes()
    except FileNotFoundError:
        return None


def _wrong(folder: Path, found: Mapping[str, bytes], recorded: bytes) -> str | None:
    """What does not fit, or None."""
    pairs = LINE.findall(recorded.decode(errors="replace"))
    digests: Digests = {}
    for digest, name in pairs:
        digests.setdefault(name, set()).add(digest)
    if _lines(digests).encode() != recorded:
        return f"{folder / CHECKSUMS} is damaged: not every line of it is a checksum and a name"
    for name, content in found.items():
        if hashlib.sha256(content).hexdigest() not in digests.get(name, ()):
            return f"{folder / name} is damaged: it does not fit its checksum in {CHECKSUMS}"
    for name in sorted(digests.keys() - found.keys()):
        if NONE not in digests[name]:
            return (
                f"{folder / name} is missing, but {CHECKSUMS} has it; put it back, or strike its "
                "line if you left it out yourself"
            )
    return None
