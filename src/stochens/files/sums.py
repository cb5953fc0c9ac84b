"""Checksums of files that are replaced again and again, as the program sha256sum checks them.

    FOLDER/SHA256SUMS         a line "digest  name" for each file
    FOLDER/SHA256SUMS.next    likewise, while the files are being replaced

Several files cannot be replaced at one moment. So what is to come is written down first: a file
that is found meanwhile is that of before or that of after, and either is whole.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stochens.errors import InputError
from stochens.files.hashing import hash_bytes
from stochens.files.storage import CHECKSUMS, sync

NEXT = CHECKSUMS + ".next"
LINE = re.compile(r"([0-9a-f]{64})  (.+)\n")
TRIES = 20  # of a reader, while somebody writes


def replace_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put the files in their places, in their order, with their checksums.

    Wherever this is cut short, `read_files` reads what is there.
    """
    if (folder / NEXT).exists():  # it was cut short: some files are of before, some of after
        there = {name: (folder / name).read_bytes() for name in files if (folder / name).exists()}
        _put(folder / CHECKSUMS, _list_checksums(there))
    for name, content in files.items():
        _write_beside(folder / name, content)
    _put(folder / NEXT, _list_checksums(files))
    for name in files:
        (folder / f".{name}").replace(folder / name)
    sync(folder)
    (folder / NEXT).replace(folder / CHECKSUMS)
    sync(folder)


def _write_beside(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}")
    part.write_bytes(content)
    sync(part)


def _put(path: Path, content: bytes) -> None:
    _write_beside(path, content)
    path.with_name(f".{path.name}").replace(path)
    sync(path.parent)


def _list_checksums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{hash_bytes(files[name])}  {name}\n" for name in sorted(files)).encode()


def read_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Those of the files that are there, each compared with its checksum.

    A folder without checksums is read as it is: there were none at first.
    """
    for _ in range(TRIES):
        recorded = _read_lists(folder)
        found = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
        wrong = _find_wrong(folder, found, recorded) if CHECKSUMS in recorded else None
        if wrong is None:
            return found
        if _read_lists(folder) == recorded:  # else somebody has just written them
            raise InputError(wrong)
    raise InputError(f"{folder} is written to all the time; read it when that is over")


def _read_lists(folder: Path) -> dict[str, bytes]:
    """What stands in the two lists. The one to come is read first: should it become the other
    meanwhile, then it is found there, and never in neither."""
    found = {}
    for name in (NEXT, CHECKSUMS):
        try:
            found[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
    return found


def _find_wrong(
    folder: Path, found: Mapping[str, bytes], recorded: Mapping[str, bytes]
) -> str | None:
    """What does not fit, or None."""
    tables: list[dict[str, str]] = []  # the last is that of CHECKSUMS
    for name, content in recorded.items():
        pairs = LINE.findall(content.decode(errors="replace"))
        table = {listed: digest for digest, listed in pairs}
        exact = "".join(f"{table[listed]}  {listed}\n" for listed in sorted(table))
        if exact.encode() != content:
            return f"{folder / name} is damaged: not a list of checksums and names"
        tables.append(table)
    for name, content in found.items():
        if hash_bytes(content) not in [table.get(name) for table in tables]:
            return f"{folder / name} is damaged: it does not fit its checksum in {CHECKSUMS}"
    for name in sorted(tables[-1].keys() - found.keys()):
        return (
            f"{folder / name} is missing, but {CHECKSUMS} has it; put it back, or strike its line "
            "if you left it out yourself"
        )
    return None
