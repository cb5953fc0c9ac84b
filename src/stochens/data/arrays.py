"""Arrays in .npy and .npz files. No pickle is read, and every size is checked before it is used."""

import io
import math
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

from stochens.errors import InputError

MOST_BYTES = 1 << 31  # of one array


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file. None is larger than what the file holds of it."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as file:
        for about in file.infolist():
            if about.file_size > MOST_BYTES:
                raise InputError(f"{path}: {about.filename} has {about.file_size} bytes")
            content = io.BytesIO(file.read(about))  # its checksum is compared by this
            arrays[about.filename.removesuffix(".npy")] = _array(content, path, about.filename)
    return arrays


def read_array(path: Path) -> np.ndarray:
    """The array of an npy file."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(f"{path} has {size} bytes; at most {MOST_BYTES} are read")
    return _array(io.BytesIO(path.read_bytes()), path, path.name)


def _array(content: io.BytesIO, path: Path, name: str) -> np.ndarray:
    version = np.lib.format.read_magic(content)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(content)
    if dtype.hasobject:
        raise InputError(f"{path}: {name} holds Python objects, which are never loaded")
    data = content.read()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise InputError(f"{path} is damaged: {name} is not of the size it says")
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.frombuffer(data, dtype).reshape(shape, order=order).copy()
