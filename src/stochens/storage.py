"""Folders of safetensors and JSON that are whole or not there. No pickle is written or read."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stochens.errors import InputError
from stochens.version import __version__

TENSORS, DESCRIPTION = "tensors.safetensors", "description.json"


def new_folder(path: str | Path) -> Path:
    """Make the folder, or take it if it is empty; anything else is an error before any work."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(f"{path} is not empty; choose another folder")
        if not os.access(path, os.W_OK):
            raise InputError(f"{path} cannot be written to")
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror}") from error
    return path


def write_folder(
    path: str | Path,
    format: str,
    tensors: dict[str, Tensor],
    description: dict[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write beside the place and move there at the end, so that a failure leaves nothing half."""
    path = Path(path)
    if path.exists() and not overwrite and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not an empty folder; pass overwrite=True")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(plain, part / TENSORS)
        about = {
            "format": format,
            "stochens": __version__,
            "torch": torch.__version__,
            "sha256": {TENSORS: _digest(part / TENSORS)},
            **description,
        }
        (part / DESCRIPTION).write_text(json.dumps(about, indent=2) + "\n")
        _move(part, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        path.rename(old)
    part.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def read_folder(path: str | Path, format: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a folder that `write_folder` wrote, checked."""
    path = Path(path)
    with reading(path):
        about = json.loads((path / DESCRIPTION).read_text())
        if about["format"] != format:
            raise InputError(f"{path} holds {about['format']!r}, not {format!r}")
        if about["sha256"][TENSORS] != _digest(path / TENSORS):
            raise InputError(f"{path / TENSORS} is damaged: its checksum is not the recorded one")
        return load_file(path / TENSORS), about


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn whatever a missing or damaged folder raises into one clear error."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is no saved folder: {error.filename} is missing") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, SafetensorError) as error:
        raise InputError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
