"""Decoded images, kept in the user's cache folder so that they are decoded once."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from stochens.errors import InputError
from stochens.files.hashing import hash_bytes, hash_file
from stochens.files.storage import read_folder, write_folder
from stochens_lab.data.image_sets import Images

FORMAT = "images 1"


def cache_folder() -> Path:
    """$STOCHENS_CACHE, else ~/.cache/stochens."""
    chosen = os.environ.get("STOCHENS_CACHE")
    return Path(chosen) if chosen else Path("~/.cache/stochens").expanduser()


def make_key(files: Sequence[Path], *words: str) -> str:
    """A digest of what the files hold, their order and the words. A changed file is another key."""
    parts = ["\0".join([FORMAT, *words]).encode()]
    for file in files:
        try:
            found = hash_file(file)
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from None
        parts += [f"{file.parent.name}/{file.name}".encode(), bytes.fromhex(found)]
    return hash_bytes(*parts)[:32]


def read_images(key: str) -> Images | None:
    """None where there is nothing, or what is there is damaged."""
    try:
        tensors, about = read_folder(cache_folder() / f"images-{key}", FORMAT)
        return Images(tensors["x"], tensors["y"], tuple(about["classes"]))
    except (InputError, KeyError, TypeError, RuntimeError):  # RuntimeError: there is no home
        return None


def keep_images(key: str, images: Images) -> None:
    """Whole or not at all. Without a place to write the images are decoded again next time."""
    with contextlib.suppress(InputError, OSError, RuntimeError):
        write_folder(
            cache_folder() / f"images-{key}",
            FORMAT,
            {"x": images.x, "y": images.y},
            {"classes": images.classes},
            overwrite=True,
        )
