"""One's own images: FOLDER/CLASS/*.png, or FOLDER/*.png where there are no labels yet.

All of one size, which every header states before anything is decoded. Grey images have one channel
where all are grey, else all have three.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stochens.errors import InputError
from stochens_lab.data.pixels import fill, open_image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP"}
GREY = ("L", "1", "LA")
EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
MOST_FILE = 64 << 20  # bytes of one file
MOST_SIDE = 4096  # pixels
MOST_BYTES = 1 << 33  # of all pixels, as bytes; they become floats of four times the size


class Pictures(NamedTuple):
    x: np.ndarray  # [N, C, H, W] uint8, C = 1 or 3
    labels: list[str] | None  # the folder of each
    classes: list[str]  # every folder, also one without images


class Stated(NamedTuple):
    """What the header of an image says."""

    width: int
    height: int
    grey: bool


def read(folder: Path, *, shape: tuple[int, ...] | None = None) -> Pictures:
    """All images of a folder, class by class and by name; `shape` is what they must have."""
    files, classes = _find_files(folder)
    stated = _check_headers(files, shape)
    channels = shape[0] if shape else 1 if all(one.grey for one in stated) else 3
    size = len(files) * channels * stated[0].width * stated[0].height
    if size > MOST_BYTES:
        raise InputError(
            f"{folder} has {len(files)} images of {stated[0].width}x{stated[0].height}, together "
            f"{size >> 30} GiB of pixels; at most {MOST_BYTES >> 30} are read: make them smaller"
        )
    out = np.empty((len(files), channels, stated[0].height, stated[0].width), np.uint8)
    fill(out, lambda i: _decode(files[i], stated[i], channels))
    labels = [file.parent.name for file in files] if classes else None
    return Pictures(out, labels, classes)


def list_files(folder: Path) -> list[str]:
    """Of each image that `read` gives, in its order."""
    return [str(file.relative_to(folder)) for file in _find_files(folder)[0]]


def _find_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The images in order, and the classes; none where the images lie in the folder itself."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    classes = [path for path in inside if path.is_dir()]
    alone = [path for path in inside if _is_image(path)]
    if classes and alone:
        raise InputError(
            f"{folder} has images beside its folders, {alone[0].name} for one; put them into the "
            "folder of their class"
        )
    files = alone or [file for one in classes for file in sorted(one.iterdir()) if _is_image(file)]
    if not files:
        raise InputError(f"{folder} has no images ({', '.join(FORMATS)}), nor have its folders")
    return files, [path.name for path in classes]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in FORMATS and not path.name.startswith(".") and path.is_file()


def _check_headers(files: list[Path], shape: tuple[int, ...] | None) -> list[Stated]:
    """The headers of all images: of one size, and that a small one."""
    stated = list(_read_headers(files))
    first = stated[0]
    wanted = (shape[2], shape[1]) if shape else (first.width, first.height)
    for file, one in zip(files, stated, strict=True):
        if max(one.width, one.height) > MOST_SIDE:
            raise InputError(f"{file} is {one.width}x{one.height}; at most {MOST_SIDE} a side")
        if (one.width, one.height) != wanted:
            like = "the run was fitted on" if shape else f"{files[0].name} is"
            raise InputError(
                f"{file} is {one.width}x{one.height}, and {like} {wanted[0]}x{wanted[1]}; bring "
                "all images to one size first"
            )
    return stated


def _read_headers(files: list[Path]) -> Iterator[Stated]:
    for file in files:
        size = file.stat().st_size
        if size > MOST_FILE:
            raise InputError(f"{file} has {size} bytes; at most {MOST_FILE} are read")
        with open_image(file, file, FORMATS[file.suffix.lower()]) as opened:
            if opened.mode not in EIGHT_BITS:
                raise InputError(f"{file} is of mode {opened.mode}; save it with 8 bits")
            width, height = opened.size
            yield Stated(width, height, opened.mode in GREY)


def _decode(file: Path, stated: Stated, channels: int) -> np.ndarray:
    """[C, H, W] of one image."""
    with open_image(file, file, FORMATS[file.suffix.lower()]) as opened:
        if opened.size != (stated.width, stated.height):
            raise InputError(f"{file} changed while it was read")
        pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
        return pixels.reshape(stated.height, stated.width, channels).transpose(2, 0, 1)
