"""Random words of each member by noise.cpp, or in plain torch where it cannot be built."""

import ctypes
import math

import torch
from torch import Tensor

from stochens.kernels import build
from stochens.noise import Shape, hashed_words


def words(members: Tensor, seed: int, draw: int, shape: Shape) -> Tensor:
    """members [M] int64, contiguous -> [M, *shape] int32, every bit random.

    >>> ids = torch.tensor([3, 8])
    >>> torch.equal(words(ids, 5, 0, (4, 1)), hashed_words(ids, 5, 0, (4, 1)))
    True
    """
    library = build.load("noise")
    if library is None:
        return hashed_words(members, seed, draw, shape)
    # few operations of torch: under vmap, where this is called, each costs tens of microseconds
    out = torch.empty((len(members), *shape), dtype=torch.int32)
    library.noise_words(
        ctypes.c_int64(len(members)),
        ctypes.c_int64(math.prod(shape)),
        ctypes.c_void_p(members.data_ptr()),
        ctypes.c_uint64(seed),
        ctypes.c_uint64(draw),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out
