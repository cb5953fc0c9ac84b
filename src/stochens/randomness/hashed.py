"""Random numbers as a pure function of (key, transition, purpose, index): no generator, no state.

A chain's numbers depend on its key alone, whoever asks for them, in whatever company and on
whatever device. So a chain can be stopped and gone on with, moved, or run by another engine
(kernels/nuts.hpp has the same function) and stays the same chain.
"""

import math

import torch
from torch import Tensor

# What a number is for.
MOMENTUM, LEAF, DIRECTION, MERGE, LENGTH, ROWS, STIFF = range(7)
PURPOSES = 8

# splitmix64 (Steele, Lea and Flood, 2014), its constants as signed numbers, since torch has those
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)
IN_CACHE = 1 << 16  # numbers; half a megabyte


def _unsigned_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def wrapped(number: int) -> int:
    """What 64 bits hold of a Python number, which does not wrap round by itself."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64: int64 of any shape to int64 whose every bit depends on all."""
    # in place: a large network's numbers are memory traffic first of all
    z = _unsigned_shift(z, 30).bitwise_xor_(z).mul_(FIRST)
    z = _unsigned_shift(z, 27).bitwise_xor_(z).mul_(SECOND)
    return _unsigned_shift(z, 31).bitwise_xor_(z)


def uniform(key: Tensor, transition: Tensor, purpose: int, index: Tensor) -> Tensor:
    """float64 in (0, 1) of the shape of key, transition and index broadcast together."""
    stream = mix(key + (transition * PURPOSES + purpose + 1) * GOLDEN)
    # 52 bits, so that the half that keeps 0 and 1 out is exact
    bits = _unsigned_shift(mix((stream + (index + 1)).mul_(GOLDEN)), 12)
    return bits.double().add_(0.5).mul_(2.0**-52)


def normal(key: Tensor, transition: Tensor, purpose: int, count: int) -> Tensor:
    """float64 from N(0, 1): key, transition [M] -> [M, count], by the Box-Muller transform."""
    key, transition = key.unsqueeze(1), transition.unsqueeze(1)
    out = torch.empty(len(key), count, dtype=torch.float64, device=key.device)
    # a few at a time, which stay in a CPU's cache
    few = max(1, IN_CACHE // max(1, len(key))) if out.device.type == "cpu" else max(1, count)
    for begin in range(0, count, few):
        index = torch.arange(begin, min(begin + few, count), device=key.device)
        radius = uniform(key, transition, purpose, index).log_().mul_(-2).sqrt_()
        angle = uniform(key, transition, purpose, index + count).mul_(2 * math.pi).cos_()
        torch.mul(radius, angle, out=out[:, begin : begin + few])
    return out
