"""Encoded images to pixels, by Pillow: what a header says is checked before anything is decoded."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stochens.errors import InputError
from stochens_lab.data.image_sets import SIDE

MOST_BYTES = 64 * 1024  # of one encoded image of a set; 32x32 needs about 2500
BLOCK = 64  # images that one thread decodes at a time
THREADS = min(8, os.cpu_count() or 1)


@contextlib.contextmanager
def open_image(source: Path | io.BytesIO, where: object, *formats: str) -> Iterator[Any]:
    """A Pillow image whose header is read; `where` names it in an error."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need Pillow: pip install 'stochens[lab]'") from None
    try:
        with Image.open(source, formats=formats) as image:
            yield image
    except InputError:
        raise
    except Exception as error:  # Pillow raises many types on damaged bytes
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{where} is no image that can be read: {said}") from None


def fill(out: np.ndarray, decode: Callable[[int], np.ndarray]) -> None:
    """out[i] = decode(i), by several threads: Pillow lets go of the lock while it decodes."""

    def fill_block(start: int) -> None:
        for i in range(start, min(start + BLOCK, len(out))):
            out[i] = decode(i)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fill_block, range(0, len(out), BLOCK)))


def decode(encoded: Sequence[bytes], file: Path, first: int) -> np.ndarray:
    """Pixels [N, 3, 32, 32] uint8, of the images of a file from number `first` on."""
    out = np.empty((len(encoded), SIDE, SIDE, 3), np.uint8)
    fill(out, lambda i: decode_one(encoded[i], f"{file}: image {first + i}"))
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def decode_one(data: bytes, where: object) -> np.ndarray:
    """One image, [32, 32, 3]; anything but a 32x32 RGB PNG or WebP is an error."""
    if len(data) > MOST_BYTES:
        raise InputError(f"{where} has {len(data)} bytes; a 32x32 image has at most {MOST_BYTES}")
    with open_image(io.BytesIO(data), where, "PNG", "WEBP") as image:
        if image.size != (SIDE, SIDE) or image.mode != "RGB":
            raise InputError(
                f"{where} is {image.size[0]}x{image.size[1]} {image.mode}; images must be 32x32 RGB"
            )
        return np.asarray(image)
