"""Arrays in npz and npy files. What a file says of its sizes is never believed: numpy's own reader
takes the memory that a header states before it looks for the numbers."""

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from stochens.errors import InputError

MOST_BYTES = 1 << 31  # of all arrays of a file
MOST_PACKED = 1032  # bytes that one byte can unpack to, by the format (deflate)
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes
ENCRYPTED = 0x1
FLOATS, NUMBERS, NUMBERS_AND_TEXT = "f", "biuf", "biufU"  # numpy's letters for them
WORDS = {FLOATS: "floats", NUMBERS: "numbers", NUMBERS_AND_TEXT: "numbers or text"}


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def read_file(path: Path, kinds: str = NUMBERS) -> dict[str, np.ndarray]:
    """The arrays of an npz file; that of an npy file is called x."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(f"{path} has {size} bytes; at most {MOST_BYTES} are read")
    content = path.read_bytes()
    if path.suffix.lower() == ".npy":
        return {"x": _read_array(content, f"{path} is damaged: it", kinds)}
    return read_npz(content, path, kinds)


def read_npz(content: bytes, where: object, kinds: str = NUMBERS) -> dict[str, np.ndarray]:
    """The arrays of a file, whose name is `where` in an error. None is larger than the bytes that
    the file holds of it, and no pickle is read."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = file.infolist()
        packed, whole = sum(p.compress_size for p in parts), sum(p.file_size for p in parts)
        if packed > len(content) or whole > min(MOST_BYTES, MOST_PACKED * (packed + len(parts))):
            raise InputError(
                f"{where} is damaged: it says that its {len(content)} bytes hold {packed}, and "
                f"that these unpack to {whole}"
            )
        for part in parts:
            name = part.filename.removesuffix(".npy")
            if part.compress_type not in PACKINGS or part.flag_bits & ENCRYPTED or name in arrays:
                raise InputError(f"{where} is damaged: {part.filename} is not as numpy writes it")
            with file.open(part) as opened:
                data = opened.read(part.file_size + 1)  # its checksum is compared by this
            if len(data) != part.file_size:
                raise InputError(f"{where} is damaged: {part.filename} ends early")
            arrays[name] = _read_array(data, f"{where} is damaged: {part.filename}", kinds)
    return arrays


def _read_array(data: bytes, where: str, kinds: str) -> np.ndarray:
    content = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(content)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(content)
    except Exception as error:  # numpy parses the header as Python text: many types
        raise InputError(f"{where} is no array: {error}") from None
    rest = data[content.tell() :]
    if dtype.kind not in kinds or min(shape, default=0) < 0:
        raise InputError(f"{where} holds {dtype} {shape}, no array of {WORDS[kinds]}")
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise InputError(f"{where} is not of the size it says, {shape}")
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.frombuffer(rest, dtype).reshape(shape, order=order).copy()
