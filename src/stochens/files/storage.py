"""Folders of safetensors and JSON that are whole or not there. No pickle is written or read."""

import contextlib
import errno
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stochens.errors import InputError
from stochens.files.hashing import hash_file
from stochens.version import __version__

TENSORS, DESCRIPTION = "tensors.safetensors", "description.json"
LOCK = ".lock"  # of a folder that somebody works in
CHECKSUMS = "SHA256SUMS"  # of both, as the program sha256sum writes and checks them


# What readers of JSON, safetensors and npz raise when a file is not what they wrote
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    EOFError,
    OverflowError,
    NotImplementedError,
    RecursionError,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
    SafetensorError,
)


class Unread(InputError):
    """What is there could not be read just now; it may well be whole."""


# What the path itself is to blame for, and will be tomorrow
AMISS = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
AMISS_TOO = (errno.EROFS, errno.ENAMETOOLONG)


def may_pass(error: InputError) -> bool:
    """Whether a disk, a network or the memory failed, which may be back when it is tried again.

    >>> may_pass(InputError("drop rate must be in [0, 1), got 1.5"))
    False
    """
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, AMISS) and cause.errno not in AMISS_TOO
    return isinstance(cause, MemoryError)


def new_folder(path: str | Path) -> Path:
    """Make the folder, or take it if it is empty; anything else is an error before any work."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(inside.name != LOCK for inside in path.iterdir()):
            raise InputError(f"{path} is not empty; choose another folder")
        if not os.access(path, os.W_OK):
            raise InputError(f"{path} cannot be written to")
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror}") from error
    return path


def _refuse_loss(path: Path, *, overwrite: bool) -> None:
    """What takes the place of a folder takes it whole, and must not take other files with it."""
    try:
        if not path.is_dir():
            if path.exists():
                raise InputError(f"{path} is a file, and no folder; choose another place")
            return
        names = sorted(inside.name for inside in path.iterdir())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
    if names and not overwrite:
        raise InputError(f"{path} exists and is not an empty folder; pass overwrite=True")
    others = [name for name in names if name not in (TENSORS, DESCRIPTION, CHECKSUMS, LOCK)]
    if others:
        raise InputError(
            f"{path} holds {others[0]!r}, which was not written by stochens and would be lost; "
            "choose another folder, or move it away"
        )


def write_folder(
    path: str | Path,
    format: str,
    tensors: dict[str, Tensor],
    description: dict[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write beside the place and move there at the end, so that a failure leaves nothing half.

    What was moved there is on the disk, and not only on its way to it.
    """
    path = Path(path)
    _refuse_loss(path, overwrite=overwrite)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that had our number and was killed
        part.mkdir(parents=True)
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        try:
            save_file(plain, part / TENSORS)
        except SafetensorError as error:  # its own way to say: disk full
            raise OSError(str(error)) from error
        about = {
            "format": format,
            "stochens": __version__,
            "torch": torch.__version__,
            **description,
        }
        (part / DESCRIPTION).write_text(json.dumps(about, indent=2) + "\n")
        (part / CHECKSUMS).write_text(_checksums(part))
        for name in (TENSORS, DESCRIPTION, CHECKSUMS):
            sync(part / name)
        sync(part)
        _move(part, path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """One file, beside its place first, so that a reader never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        sync(part)
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksums(path: Path) -> str:
    return "".join(f"{hash_file(path / name)}  {name}\n" for name in (TENSORS, DESCRIPTION))


def _move(part: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    there = path.exists()
    if there:
        shutil.rmtree(old, ignore_errors=True)  # of a process that had our number and was killed
        path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        if there:
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_folder(path: str | Path, format: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a folder that `write_folder` wrote.

    Its files are compared with their checksums first: a change of any byte is an error.
    """
    path = Path(path)
    with reading(path):
        recorded = (path / CHECKSUMS).read_bytes()
        if recorded != _checksums(path).encode():
            raise InputError(f"{path} is damaged: its files have not the checksums in {CHECKSUMS}")
        about = json.loads((path / DESCRIPTION).read_text())
        if about["format"] != format:
            raise InputError(f"{path} holds {about['format']!r}, not {format!r}")
        try:
            return load_file(path / TENSORS), about
        except (FileNotFoundError, RuntimeError) as error:
            # It is there, as its checksum says: so safetensors and torch call what cannot be opened
            raise OSError(str(error)) from error


def format_of(path: str | Path) -> str | None:
    """What a folder that `write_folder` wrote says it holds; None of any other."""
    try:
        found = json.loads((Path(path) / DESCRIPTION).read_text())["format"]
    except (OSError, *DAMAGE):
        return None
    return found if isinstance(found, str) else None


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn whatever a missing or damaged folder raises into one clear error."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is no saved folder: {error.filename} is missing") from None
    except (NotADirectoryError, IsADirectoryError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except (OSError, MemoryError) as error:
        raise Unread(f"cannot read {path}: {str(error) or 'out of memory'}") from error
    except DAMAGE as error:
        raise InputError(f"{path} is damaged: {type(error).__name__}: {error}") from error
