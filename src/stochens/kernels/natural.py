"""Natural gradients' draws and steps on a GPU, one launch each: natural_draw.cu, natural_step.cu.

In plain torch (training/natural.py, which has the equations) they are twenty passes over vectors as
long as all parameters of all members.
"""

import functools
import logging
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.kernels import build

log = logging.getLogger("stochens")

THREADS, EACH = 256, 4
MOST = 2**31 - 1  # numbers that the kernels can count
NAMES = ("natural_draw", "natural_step")


class Vectors(NamedTuple):
    """What both read. Each [M D] in float32 unless told, and contiguous."""

    m: Tensor
    log_sigma: Tensor
    delta: Tensor  # or [], the same for all
    order: Tensor  # int64: places among members side by side
    members: Tensor  # [M] int64
    seed: Tensor  # [1] int64, that of step 0
    piece: int  # numbers of a member that are drawn together

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """count, width, piece and the step from one delta to the next."""
        count = len(self.m)
        return count, count // len(self.members), self.piece, int(self.delta.dim() > 0)


def available(m: Tensor) -> bool:
    """Whether the kernels can run on this vector."""
    if not m.is_cuda or m.dtype != torch.float32 or not 0 < len(m) <= MOST:
        return False
    return _kernels(m.device) is not None


def draw(on: Vectors, number: Tensor, theta: Tensor, terms: Tensor, *, numbers: Tensor) -> None:
    """Fills theta, and terms [M, D]: what the KL has of each sigma. number: [1] int64; numbers: as
    `step` has them, of which n is read."""
    given = [on.m, on.log_sigma, on.delta, on.order, on.members, on.seed, number, theta, terms]
    _launch("natural_draw", on, [*given, numbers, *on.sizes])


def step(
    on: Vectors,
    number: Tensor,
    counted: Tensor,  # [2] float32: the sum of the shares before, and the last one
    mean: Tensor,  # G
    g: Tensor,  # times the step's share
    mu: Tensor | None,
    rate: Tensor,  # [] float32
    *,
    # [6] float32: n, 1 - b2, b1, s: the share, the most that log v may change,
    # (1 - b1^s) / (1 - b1)
    numbers: Tensor,
) -> None:
    """Moves m, log_sigma and G on."""
    given = [on.m, on.log_sigma, mean, g, on.delta, on.m if mu is None else mu, on.order]
    given += [on.members, on.seed, number, counted, rate, numbers]
    _launch("natural_step", on, [*given, *on.sizes, int(mu is not None)])


def source(name: str) -> str:
    return f"#define THREADS {THREADS}\n" + build.source(f"{name}.cu")


def _launch(name: str, on: Vectors, arguments: list[Any]) -> None:
    kernels = _kernels(on.m.device)
    assert kernels is not None
    blocks = math.ceil(len(on.m) / (THREADS * EACH))
    kernels[name]((blocks, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def _kernels(device: torch.device) -> dict[str, Any] | None:
    """None where they cannot be compiled: plain torch does the work then."""
    if not build.cuda_compiles():
        return None
    try:
        with torch.cuda.device(device):
            return {name: build.cuda_kernel(source(name), name) for name in NAMES}
    except RuntimeError as error:
        log.warning("natural gradients step by plain torch, which is slower: %s", error)
        return None
