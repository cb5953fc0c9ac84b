"""PNG and WebP bytes to pixels. What an image says of its size is checked before it is decoded."""

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stochens.errors import InputError
from stochens_lab.data.image_sets import SIDE

MOST_BYTES = 64 * 1024  # of one encoded image; 32x32 needs about 2500
BLOCK = 250  # images that one thread decodes at a time
THREADS = min(8, os.cpu_count() or 1)


def import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need Pillow: pip install 'stochens[lab]'") from None
    return Image


def decode(encoded: Sequence[bytes], where: Callable[[int], object]) -> np.ndarray:
    """Pixels [N, 3, 32, 32] uint8. `where(i)` names image i in an error."""
    import_pillow()
    out = np.empty((len(encoded), SIDE, SIDE, 3), np.uint8)

    def block(start: int) -> None:
        for i in range(start, min(start + BLOCK, len(encoded))):
            out[i] = decode_one(encoded[i], where(i))

    with ThreadPoolExecutor(THREADS) as pool:  # Pillow lets go of the lock while it decodes
        list(pool.map(block, range(0, len(encoded), BLOCK)))
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def decode_one(data: bytes, where: object) -> np.ndarray:
    """One image, [32, 32, 3]; anything but a 32x32 RGB PNG or WebP is an error."""
    if len(data) > MOST_BYTES:
        raise InputError(f"{where} has {len(data)} bytes; a 32x32 image has at most {MOST_BYTES}")
    stated = read_stated_size(data)
    if stated is None:
        raise InputError(f"{where} is neither PNG nor WebP; save the images as PNG")
    if stated != (SIDE, SIDE):
        raise InputError(f"{where} is {stated[0]}x{stated[1]}; images must be 32x32 RGB")
    try:
        with import_pillow().open(io.BytesIO(data), formats=("PNG", "WEBP")) as image:
            if image.size != (SIDE, SIDE) or image.mode != "RGB":
                raise InputError(
                    f"{where} is {image.size[0]}x{image.size[1]} {image.mode}; "
                    "images must be 32x32 RGB"
                )
            return np.asarray(image)
    except InputError:
        raise
    except Exception as error:  # Pillow raises many types on damaged bytes
        raise InputError(f"{where} cannot be decoded: {error}; get the file again") from None


def read_stated_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that the header states, None for other formats. Nothing is decoded.

    The decoder of WebP takes memory for that size at once, so it must not be asked.

    >>> read_stated_size(b"GIF89a")
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    chunk, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if chunk == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L":  # a signature byte, then twice 14 bits
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        bits = int.from_bytes(body[6:10], "little")
        return bits & 0x3FFF, bits >> 16 & 0x3FFF
    return None
