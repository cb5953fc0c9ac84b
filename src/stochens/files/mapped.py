"""Arrays that lie in files, and of which no more is in memory than is looked at."""

import logging
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger("stochens")

BLOCK = 4 << 20  # bytes that are copied at a time


def mapped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty tensor in a file of the temporary folder, which ends with it.

    >>> t = mapped((3, 2), torch.float32)
    >>> t.fill_(1.0).sum()
    tensor(6.)
    """
    handle, path = tempfile.mkstemp(prefix="stochens-features-")
    os.close(handle)
    try:
        return torch.from_file(path, shared=True, size=math.prod(shape), dtype=dtype).view(
            tuple(shape)
        )
    finally:
        try:
            os.unlink(path)  # the mapping holds what is in it, and nothing is left behind
        except OSError:  # where a file in use cannot go
            log.info("a mapped array is in %s", path)


def is_mapped(value: Any) -> bool:
    """Whether an array lies in a file: a np.memmap, as np.load(mmap_mode="r") gives, or a view of
    one; or a tensor of torch.from_file(shared=True), or of such an array by `mapped_tensor`.

    >>> is_mapped(mapped((3, 2), torch.float32)), is_mapped(np.zeros(3)), is_mapped(torch.zeros(3))
    (True, False, False)
    """
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        named = value.device.type == "cpu" and storage.filename is not None
        return named or storage.data_ptr() in _unlocked
    while isinstance(value, np.ndarray):
        if isinstance(value, np.memmap):
            return True
        value = value.base
    value = value.obj if isinstance(value, memoryview) else value
    return isinstance(value, mmap.mmap)


def mapped_tensor(array: np.ndarray) -> Tensor:
    """A mapped array [N, ...] as a tensor: the same memory where torch can use it as it is, else
    another file, for numpy's own floats become torch's default. Nothing may write to it.

    >>> path = tempfile.mkdtemp() + "/x"
    >>> made = np.memmap(path, np.float32, "w+", shape=(3, 2))
    >>> made[:] = 1.0
    >>> mapped_tensor(np.memmap(path, np.float32, "r", shape=(3, 2))).sum()
    tensor(6.)
    """
    dtype = torch.get_default_dtype()
    as_it_is = array.dtype.kind != "f" or torch.from_numpy(np.empty(0, array.dtype)).dtype == dtype
    if array.ndim == 0 or not len(array):
        return torch.as_tensor(np.array(array))
    if as_it_is and array.flags.c_contiguous:
        return torch.from_numpy(np.asarray(_Unlocked(array)))
    if array.dtype.kind != "f":
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    log.info("a mapped array %s of %s is copied to a file of %s", array.shape, array.dtype, dtype)
    return _copied(array.shape, dtype, lambda at: torch.from_numpy(np.array(array[at])))


def take_rows(t: Tensor, rows: Tensor) -> Tensor:
    """t[rows], in a file where t lies in one.

    >>> take_rows(torch.arange(4.0), torch.tensor([3, 1]))
    tensor([3., 1.])
    """
    if not is_mapped(t):
        return t[rows]
    return _copied((len(rows), *t.shape[1:]), t.dtype, lambda at: t[rows[at]])


def _copied(shape: Sequence[int], dtype: torch.dtype, read: Any) -> Tensor:
    """A file with these rows, `read(slice)` at a time."""
    made = mapped(shape, dtype)
    some = max(1, BLOCK // max(1, math.prod(shape[1:]) * dtype.itemsize))
    for top in range(0, shape[0], some):
        at = slice(top, top + some)
        made[at] = read(at)
    return made


class _Unlocked:
    """The memory of an array that may not be written to, for torch, which knows no such tensors and
    warns of them. It is held by the tensor, and ends with it."""

    def __init__(self, array: np.ndarray) -> None:
        self._held = array
        about = dict(array.__array_interface__)
        at = about["data"][0]
        self.__array_interface__ = about | {"data": (at, False)}
        _unlocked[at] = self


_unlocked: weakref.WeakValueDictionary[int, _Unlocked] = weakref.WeakValueDictionary()  # by address
