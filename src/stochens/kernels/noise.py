"""Random words of each member by noise.cpp or noise.cu, or in plain torch where neither can be."""

import ctypes
import functools
import logging
import math
from typing import Any

import torch
from torch import Tensor

from stochens.kernels import build
from stochens.randomness.noise import Shape, below, hashed_words

log = logging.getLogger("stochens")

THREADS = 256
DIVISORS = {torch.float32: "noise_divisors_float", torch.float64: "noise_divisors_double"}
MOST = 2**31 - 1  # words of a member that the kernel on a GPU can count


def words(members: Tensor, seed: Tensor, draw: int, shape: Shape) -> Tensor:
    """members [M] and seed [1], int64 and contiguous -> [M, *shape] int32, every bit random.

    >>> ids, seed = torch.tensor([3, 8]), torch.tensor([5])
    >>> torch.equal(words(ids, seed, 0, (4, 1)), hashed_words(ids, seed, 0, (4, 1)))
    True
    """
    many, count = len(members), math.prod(shape)
    if members.is_cuda:
        kernel = _cuda_kernel(members.device)
        if count > MOST or kernel is None:
            return hashed_words(members, seed, draw, shape)
        out = torch.empty((many, *shape), dtype=torch.int32, device=members.device)
        launch(kernel, members, seed, draw, out)
        return out
    library = build.load("noise")
    if library is None:
        return hashed_words(members, seed, draw, shape)
    # few operations of torch: under vmap, where this is called, each costs tens of microseconds
    out = torch.empty((many, *shape), dtype=torch.int32)
    library.noise_words(
        ctypes.c_int64(many),
        ctypes.c_int64(count),
        ctypes.c_void_p(members.data_ptr()),
        ctypes.c_void_p(seed.data_ptr()),
        ctypes.c_uint64(draw),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out


def divisors(
    members: Tensor, seed: Tensor, draw: int, shape: Shape, keep: float, dtype: torch.dtype
) -> Tensor | None:
    """[M, *shape] of keep and infinity, by the words of this draw: y / divisors drops a share of
    1 - keep of y, and divides the rest by keep. On a CPU, where there is a compiler; else None.

    >>> found = divisors(torch.tensor([3]), torch.tensor([5]), 0, (1000,), 0.5, torch.float32)
    >>> found is None or bool(((found == 0.5) | found.isinf()).all())
    True
    """
    library = None if members.is_cuda else build.load("noise")
    if library is None or dtype not in DIVISORS:
        return None
    out = torch.empty((len(members), *shape), dtype=dtype)
    getattr(library, DIVISORS[dtype])(
        ctypes.c_int64(len(members)),
        ctypes.c_int64(math.prod(shape)),
        ctypes.c_void_p(members.data_ptr()),
        ctypes.c_void_p(seed.data_ptr()),
        ctypes.c_uint64(draw),
        ctypes.c_int32(below(keep)),
        ctypes.c_double(keep),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out


def launch(kernel: Any, members: Tensor, seed: Tensor, draw: int, out: Tensor) -> None:
    """noise.cu into out [M, ...]."""
    many, count = len(members), out[0].numel()
    blocks = math.ceil(many * math.ceil(count / 2) / THREADS)
    if blocks:
        arguments = [members, seed, out, many, count, draw]
        kernel((blocks, 1, 1), (THREADS, 1, 1), arguments)


def source() -> str:
    return f"#define THREADS {THREADS}\n" + build.source("noise.cu")


@functools.cache
def _cuda_kernel(device: torch.device) -> Any:
    """None where there is none: the plain twin does the work then."""
    if not build.cuda_compiles():
        return None
    try:
        with torch.cuda.device(device):
            return build.cuda_kernel(source(), "noise_words")
    except RuntimeError as error:
        log.warning("noise is made by plain torch, which is slower: %s", error)
        return None
