"""Random bits of each member by noise.cpp, or in plain torch where it cannot be built."""

import ctypes

import torch
from torch import Tensor

from stochens.kernels import build
from stochens.noise import hashed_bits


def bits(members: Tensor, seed: int, draw: int, count: int) -> Tensor:
    """members [M] int64 -> [M, count] int64, every bit random.

    >>> ids = torch.tensor([3, 8])
    >>> torch.equal(bits(ids, 5, 0, 4), hashed_bits(ids, 5, 0, 4))
    True
    """
    library = build.load("noise")
    if library is None:
        return hashed_bits(members, seed, draw, count)
    members, out = members.contiguous(), torch.empty(len(members), count, dtype=torch.int64)
    library.noise_bits(
        ctypes.c_int64(len(members)),
        ctypes.c_int64(count),
        ctypes.c_void_p(members.data_ptr()),
        ctypes.c_uint64(seed),
        ctypes.c_uint64(draw),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out
