"""Where layers take their noise from: torch's stream, one stream for each member, or tensors.

Layers ask for `bernoulli` masks and `normal` numbers. Inside `member_noise` a draw depends only on
(member, seed of the pass, how many draws came before), so that a member sees the same noise in
whatever block it is trained, and on whatever device. Inside `given` each request takes the next of
some tensors, so that a stochastic network is a plain function of its inputs and its noise. Inside
`same_noise` batches of a prediction share what is not fresh for each example.
Elsewhere (through torch.compile, in prediction) torch draws for all members at once.
"""

import abc
import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import embedding

from stochens.errors import InputError
from stochens.randomness.hashed import GOLDEN, mix, wrapped

Shape = torch.Size | tuple[int, ...]
# (members [M], seed [1], number of the draw, shape) -> [M, *shape] int32, every bit random
Words = Callable[[Tensor, Tensor, int, Shape], Tensor]
# (members [M], seed [1], number of the draw, shape, keep, dtype) -> [M, *shape]: keep or infinity
Divisors = Callable[[Tensor, Tensor, int, Shape, float, torch.dtype], Tensor | None]
Kind = Literal["uniform", "normal"]


class NoiseSource(Protocol):
    """fresh: whether it is noise of each example; else all examples of a batch share it."""

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor: ...
    def normal(self, like: Tensor, *, fresh: bool) -> Tensor: ...


_sources: dict[int, NoiseSource] = {}  # of each thread that has one; torch.compile sees it empty


def _source() -> NoiseSource | None:
    return _sources.get(threading.get_ident()) if _sources else None


def bernoulli(keep: float, shape: Shape, like: Tensor, *, fresh: bool = False) -> Tensor:
    """z ~ Bernoulli(keep), as a boolean mask; fresh for each member under vmap.

    `fresh`: for each example too, so that no two batches of a prediction have the same.
    """
    source = _source()
    if source is None:
        return torch.rand(shape, device=like.device) < keep
    return source.mask(keep, shape, like, fresh=fresh)


def normal(like: Tensor, *, fresh: bool = False) -> Tensor:
    """eps ~ N(0, 1) of the shape, type and device of `like`, likewise."""
    source = _source()
    return torch.randn_like(like) if source is None else source.normal(like, fresh=fresh)


def drop(y: Tensor, keep: float, shape: Shape) -> Tensor:
    """y * z / keep,  z ~ Bernoulli(keep) of the shape, fresh for each example.

    Predictions that can make y / (keep where z, else infinity) of it, which is the same number to
    the last bit: one pass over memory, where masks take four.
    """
    source = _source()
    if isinstance(source, _Pass) and not torch.is_grad_enabled():
        divisors = source.draw_divisors(keep, shape, y.dtype)
        if divisors is not None:
            return y / divisors
    return y * bernoulli(keep, shape, y, fresh=True) / keep


@contextlib.contextmanager
def noise_from(source: NoiseSource) -> Iterator[None]:
    """Inside, this thread's layers draw from that source."""
    thread = threading.get_ident()
    before = _sources.get(thread)
    _sources[thread] = source
    try:
        yield
    finally:
        if before is None:
            del _sources[thread]
        else:
            _sources[thread] = before


# -- a stream for each member ---------------------------------------------------------------------


def hashed_words(members: Tensor, seed: Tensor, draw: int, shape: Shape) -> Tensor:
    """A hash of the index under two keys of (member, seed, draw), in plain torch; kernels/noise.hpp
    is the same function. Of more than 2^32 numbers for a member, the first ones come again.

    splitmix64 makes the keys, and lowbias32 (C. Wellons, 2018) the words: one multiplication of 32
    bits for each round, which every vector unit has, and which the MLP kernel makes as it goes.
    """
    keys = mix(mix(members * GOLDEN + seed) + wrapped((draw + 1) * GOLDEN))  # [] or [M]
    index = torch.arange(math.prod(shape), device=members.device).to(torch.int32)
    keys = keys.reshape((*members.shape, *[1] * len(shape)))
    first, second = keys.to(torch.int32), (keys >> 32).to(torch.int32)
    return _word(index.reshape(tuple(shape)) ^ first, second)


# lowbias32's multipliers as signed numbers, since torch has those
ODD, ODDER = 0x7FEB352D, 0x846CA68B - (1 << 32)


def _word(x: Tensor, key: Tensor) -> Tensor:
    """int32 to int32; shifts bring in zeros."""
    x = (x ^ (x >> 16 & 0xFFFF)) * ODD
    x = x ^ key
    x = (x ^ (x >> 15 & 0x1FFFF)) * ODDER
    return x ^ (x >> 16 & 0xFFFF)


def below(keep: float) -> int:
    """The number below which a share `keep` of all int32 words lies."""
    return min(round(keep * 2**32) - 2**31, 2**31 - 1)


def normal_numbers(words: Tensor, dtype: torch.dtype) -> Tensor:
    """From N(0, 1), one for each random word: the inverse of the distribution function at 2^23
    places in its middle, up to 5.3 standard deviations."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = (words >> 9 & 0x7FFFFF).to(wide)
    x.add_(0.5).mul_(2.0**-22).sub_(1)  # in (-1, 1), exact in float32; in place: there are many
    return x.erfinv_().mul_(math.sqrt(2)).to(dtype)


class FromWords(abc.ABC):
    """Masks and normal numbers made of random words."""

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor:
        return self.draw_words(shape, fresh=fresh) < below(keep)

    def normal(self, like: Tensor, *, fresh: bool) -> Tensor:
        return normal_numbers(self.draw_words(like.shape, fresh=fresh), like.dtype)

    @abc.abstractmethod
    def draw_words(self, shape: Shape, *, fresh: bool) -> Tensor:
        """int32 of the shape, every bit random, for the member whose layer asks."""


class _Pass(FromWords):
    """One forward pass of all members."""

    def __init__(
        self, members: Tensor, seed: Tensor, words: Words, divisors: Divisors | None
    ) -> None:
        self.members, self.words, self.divisors = members, words, divisors
        self.fresh, self.shared = seed[:1], seed[-1:]  # here: under vmap it would cost more
        self.draws = 0  # made so far
        self.turn = members  # whose it is: all members', but where there is no vmap
        self.row: Tensor | None = None  # under vmap each member's own, of those whose turn it is

    def draw_words(self, shape: Shape, *, fresh: bool) -> Tensor:
        seed = self.fresh if fresh else self.shared
        words = self.words(self.turn, seed, self.draws, shape)  # [m, *shape]
        self.draws += 1
        return self._own(words)

    def draw_divisors(self, keep: float, shape: Shape, dtype: torch.dtype) -> Tensor | None:
        """Of the same words, fresh for each example; None where nobody makes them."""
        if self.divisors is None:
            return None
        found = self.divisors(self.turn, self.fresh, self.draws, shape, keep, dtype)
        if found is None:
            return None
        self.draws += 1
        return self._own(found)

    def _own(self, drawn: Tensor) -> Tensor:
        """Of [m, *shape] that of the member whose layer asks."""
        if self.row is None:
            return drawn.squeeze(0)
        # Drawn outside of vmap's sight; by `row` each member takes its own, as an embedding is
        # looked up: vmap makes one copy of that, and ten times the work of index_select.
        table = drawn.reshape(len(drawn), math.prod(drawn.shape[1:]))
        return embedding(self.row, table).reshape(drawn.shape[1:])


def member_noise(
    members: Tensor, seed: Tensor, words: Words = hashed_words, divisors: Divisors | None = None
) -> contextlib.AbstractContextManager[None]:
    """Inside, members [M] of a pass with this seed [1] draw from streams of their own, on the
    device of both, which are int64. Of two seeds [2] the second is that of noise which all examples
    share: batches of a prediction have the same one there. `divisors`: what `drop` may use."""
    return noise_from(_Pass(members, seed, words, divisors))


def draw_numbers() -> Callable[[], int]:
    """A function that gives the number of the next draw of this pass, for a kernel that makes it by
    itself from the same words. Where members have no streams of their own, it counts from 0."""
    now = _source()
    if not isinstance(now, _Pass):
        return itertools.count().__next__

    def next_number() -> int:
        now.draws += 1
        return now.draws - 1

    return next_number


def over_members(call: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """vmap over the member axis; "different": each member draws its own noise."""

    def mapped(*args: Any) -> Any:
        now = _source()
        if not isinstance(now, _Pass):
            return vmap(call, in_dims=in_dims, randomness="different")(*args)

        def with_row(row: Tensor, *own: Any) -> Any:
            before, now.row = now.row, row
            try:
                return call(*own)
            finally:
                now.row = before

        rows = torch.arange(len(now.turn), device=now.turn.device)
        return vmap(with_row, in_dims=(0, *in_dims), randomness="different")(rows, *args)

    return mapped


def one_by_one(call: Callable[[int], Tensor], count: int) -> Tensor:
    """call(k) for each of so many members, stacked; each draws what it would draw under vmap."""
    now = _source()
    if not isinstance(now, _Pass):
        return torch.stack([call(k) for k in range(count)])
    first, outputs = now.draws, []
    for k in range(count):
        now.draws, now.turn = first, now.members[k : k + 1]
        outputs.append(call(k))
    now.turn = now.members
    return torch.stack(outputs)


# -- the same for all batches ---------------------------------------------------------------------


class _Same:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor:
        own = None if fresh else self._generator
        return torch.rand(shape, device=like.device, generator=own) < keep

    def normal(self, like: Tensor, *, fresh: bool) -> Tensor:
        own = None if fresh else self._generator
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=own)


@contextlib.contextmanager
def same_noise(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, noise on weights comes from a stream of its own, whatever torch's is; what is fresh
    for each example still comes from torch's."""
    with noise_from(_Same(torch.Generator(device).manual_seed(seed))):
        yield


# -- noise as an input ----------------------------------------------------------------------------


class Request(NamedTuple):
    """What a layer asked for: numbers from U(0, 1) or N(0, 1), of some shape."""

    kind: Kind
    shape: tuple[int, ...]


class _Given:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._count, self._left = len(tensors), iter(tensors)

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor:
        return self._next(shape) < keep

    def normal(self, like: Tensor, *, fresh: bool) -> Tensor:
        return self._next(like.shape).to(like.dtype)

    def _next(self, shape: Shape) -> Tensor:
        tensor = next(self._left, None)
        if tensor is None:
            raise InputError(f"the network asks for noise more than {self._count} times")
        pairs = zip(reversed(tensor.shape), reversed(tuple(shape)), strict=False)
        if tensor.dim() > len(shape) or any(a != 1 and a != b for a, b in pairs):
            raise InputError(
                f"noise {tuple(tensor.shape)} of one example does not fit {tuple(shape)}: the "
                "network merges the batch with other axes, so its examples cannot share noise"
            )
        return tensor


@contextlib.contextmanager
def replay_noise(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the k-th request gets the k-th tensor, which must broadcast to what is asked for;
    a mask is where its numbers, from U(0, 1), are below the share that is kept.

    >>> with replay_noise([torch.tensor([[0.2, 0.7]])]):
    ...     bernoulli(0.5, (3, 2), torch.zeros(3, 2))
    tensor([[ True, False]])
    """
    with noise_from(_Given(tensors)):
        yield


class _Recorded:
    def __init__(self) -> None:
        self.found: list[Request] = []

    def mask(self, keep: float, shape: Shape, like: Tensor, *, fresh: bool) -> Tensor:
        self.found.append(Request("uniform", tuple(shape)))
        return torch.rand(shape).to(like.device) < keep

    def normal(self, like: Tensor, *, fresh: bool) -> Tensor:
        self.found.append(Request("normal", tuple(like.shape)))
        return torch.randn_like(like)


@contextlib.contextmanager
def record_noise() -> Iterator[list[Request]]:
    """Inside, noise is drawn as ever, and what is asked for is noted."""
    source = _Recorded()
    with noise_from(source):
        yield source.found


def draw_noise(requests: Sequence[Request], count: int, *, seed: int) -> list[Tensor]:
    """`count` draws of everything that was asked for, each [count, *shape], float32 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"uniform": torch.rand, "normal": torch.randn}
    return [
        draw[kind](count, *shape, generator=generator, dtype=torch.float32)
        for kind, shape in requests
    ]
