"""Random numbers that depend only on what they are for.

A member's initialisation and data order come from (seed, member) and nothing else, so that members
can be added, removed, chunked or sent to another machine without changing the rest.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.randomness.hashed import GOLDEN, mix

_MASK = (1 << 64) - 1
CACHED = 1 << 16  # numbers of a permutation made at a time, so that they stay in the cache

# What a stream of random numbers is for. The numbers are part of every saved run: never reuse one.
INITIALISATION, SECOND_SET, DATA_ORDER, NOISE, PREDICTION, LOW_RANK, SAMPLER, RETRY, TRIALS = range(
    9
)
JITTER, BOOTSTRAP, NATURAL, VALIDATION, AUGMENTATION = 9, 10, 11, 12, 13


def derive(seed: int, *purpose: int) -> int:
    """A seed in [0, 2^63) for one purpose, from a parent seed (splitmix64 over the numbers).

    >>> derive(0, 1) != derive(0, 2) and derive(0, 1) == derive(0, 1)
    True
    """
    state = int(seed) & _MASK  # numpy's integers would overflow
    for number in (*purpose, len(purpose)):
        state = (state + 0x9E3779B97F4A7C15 + (int(number) & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def noise_seed(seed: int) -> int:
    """Of the noise in a training, to which the number of the step is added."""
    return derive(seed, NOISE, 1)


def member_seed(seed: int, member: int, *purpose: int) -> int:
    """One seed for each member and purpose.

    The member is added, not hashed: torch's CPU generator keeps 32 bits of a seed, and a sum keeps
    different members different there.
    """
    return (derive(seed, *purpose) + member) & (_MASK >> 1)


def permutations(
    n: int,
    *,
    seed: int,
    members: Sequence[int],
    epoch: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """One random order of range(n) for each member, [M, n], the same on every device.

    A pure function of (seed, member, epoch): nothing need be kept to go on later.

    >>> permutations(4, seed=0, members=[7], epoch=0).sort().values.tolist()
    [[0, 1, 2, 3]]
    """
    base = derive(seed, DATA_ORDER, epoch)
    keys = mix(torch.tensor(members, device=device) * GOLDEN + base)  # [M]
    low = (1 << (n - 1).bit_length()) - 1
    index = torch.arange(n, device=device)
    if keys.is_cuda:
        return _order(keys, index, low)
    orders = torch.empty(len(members), n, dtype=torch.int64)
    rows = max(1, CACHED // n)
    for top in range(0, len(members), rows):
        orders[top : top + rows] = _order(keys[top : top + rows], index, low)
    return orders


def _order(keys: Tensor, index: Tensor, low: int) -> Tensor:
    """The order of random numbers whose low bits are their index, so that no two are equal."""
    numbers = mix(keys.unsqueeze(1) + (index + 1) * GOLDEN) & ((1 << 63) - 1)  # [M, n]
    numbers = (numbers & ~low) | index
    if numbers.is_cuda:
        return numbers.sort(1).values & low
    numbers.numpy().sort(axis=1)  # in place, and several times as fast as torch's
    return numbers & low


_one_at_a_time = threading.RLock()  # torch has one generator for all threads


def alone() -> contextlib.AbstractContextManager[Any]:
    """Inside, no other thread is in such a block, or in one of `seeded`."""
    return _one_at_a_time


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block on its own random stream and leave the caller's as it was.

    One thread at a time, the others wait; what draws outside of such blocks is not held back.
    """
    device = torch.device(device)
    with _one_at_a_time:
        if device.type == "cuda":
            with torch.random.fork_rng(devices=[device]):
                reseed(seed, device)
                yield
            return
        state = torch.default_generator.get_state()  # what fork_rng does on a CPU, in half its time
        try:
            reseed(seed, device)
            yield
        finally:
            torch.default_generator.set_state(state)


def reseed(seed: int, device: torch.device) -> None:
    """Begin another random stream, inside `seeded`."""
    # Not torch.manual_seed: before CUDA is up it queues itself there, stack trace and all.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
