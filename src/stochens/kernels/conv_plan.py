"""How the kernels' (conv_*.cu) work on a layer is shared out among threads, and whether it fits."""

import functools
import math
from typing import NamedTuple

BLOCK = 16  # channels that stand together: one product of the tensor cores
QUAD = 4  # channels of an image
CREW = 16  # warps of a block of threads in the gradient of the weights
MOST_SHARED = 227 << 10  # bytes of a block of threads (Hopper)
MOST_THREADS = 512  # of a block: each needs up to 128 registers


class Layer(NamedTuple):
    """The shape of one convolution."""

    inputs: int  # 4, or a multiple of 16
    outputs: int  # a multiple of 16
    height: int
    width: int
    stride: int = 1
    kernel: int = 3

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the outputs."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def taps(self) -> int:
        return self.kernel if self.inputs == QUAD else self.kernel**2

    @property
    def fragments(self) -> int:
        """Weights of a member, as the kernel wants them: padded to products of 16 by 16."""
        return self.taps * max(self.inputs, BLOCK) * self.outputs

    @property
    def tiles(self) -> int:
        """Pairs of 16 inputs and 16 outputs."""
        return -(-self.inputs // BLOCK) * self.outputs // BLOCK


class LaunchPlan(NamedTuple):
    """How a layer's work is shared out; conv.hpp's ROWS, UNITS, BLOCKS_PER_SM and PAIRS."""

    rows: int  # of an image, in the registers of a warp
    units: int  # images, or pairs of narrow ones, that a block of threads has at once
    blocks: int  # of threads on a multiprocessor, at least
    pairs: int  # of 16 inputs by 16 outputs in a block of threads, for the gradient of the weights

    def threads(self, layer: Layer) -> int:
        return 32 * self.units * Tiles(layer, self).parts * layer.outputs // BLOCK

    def shared(self, layer: Layer, name: str, *, residual: bool) -> int:
        """Bytes of shared memory that a kernel wants, as its comment lays it out."""
        tiles = Tiles(layer, self)
        images = self.units * tiles.images
        private = 16 * self.rows * self.threads(layer)  # of one tensor
        sums = 4 * tiles.parts * layer.outputs
        if name == "conv_forward":
            staged = 2 * images * tiles.source(tiles.tall)
            return 2 * layer.fragments + 2 * images * sums + staged + residual * private
        if name == "conv_backward":
            staged = images * tiles.gradient()
            private *= 2 + residual
            return 2 * layer.fragments + 4 * self.units * sums + staged + private
        if name == "conv_pack":
            return 4 * BLOCK * layer.inputs * layer.kernel**2
        cuts = max(1, CREW // self.pairs // tiles.strips)
        rows = cuts * -(-layer.out[0] // cuts)
        right = _bytes(layer.outputs // BLOCK, rows + 2, tiles.wide + 1, BLOCK)
        return max(2 * tiles.images * (tiles.source(rows) + right), 4 * CREW * 256 * layer.taps)


class Tiles:
    """The constants of conv.hpp that follow from a layer and its plan."""

    def __init__(self, layer: Layer, plan: LaunchPlan) -> None:
        height, width = layer.out
        self.layer = layer
        self.images = 2 if width <= 8 else 1  # two narrow ones fill a product
        self.strips = 1 if width <= 8 else -(-width // 16)
        self.parts = self.strips * -(-height // plan.rows)
        self.tall = plan.rows * -(-height // plan.rows)
        self.wide = 8 if width <= 8 else 16 * self.strips

    def source(self, tall: int) -> int:
        """Bytes of an input image with its border."""
        stride, kernel, image = self.layer.stride, self.layer.kernel, self.layer.inputs == QUAD
        rows = stride * (tall - 1) + kernel
        columns = stride * (self.wide - 1) + (QUAD if image else kernel)
        return _bytes(-(-self.layer.inputs // BLOCK), rows, columns, QUAD if image else BLOCK)

    def gradient(self) -> int:
        """Bytes of an output image's gradient with its border."""
        taps = self.layer.kernel if self.layer.stride == 1 else (self.layer.kernel + 1) // 2
        rows, columns = self.tall + taps - 1, self.wide + taps - 1
        return _bytes(self.layer.outputs // BLOCK, rows, columns, BLOCK)


def _bytes(*shape: int) -> int:
    """Of an image in bf16, a multiple of 16."""
    return -(-math.prod(shape) // 8) * 16


# Measured on an H200, 50 members, batch 64 (benchmarks/README.md); other shapes take `_guess`.
TUNED: dict[tuple[str, Layer], LaunchPlan] = {
    ("conv_forward", Layer(16, 32, 32, 32, 2)): LaunchPlan(8, 1, 2, 2),
    ("conv_forward", Layer(16, 32, 32, 32, 2, 1)): LaunchPlan(4, 1, 2, 2),
    ("conv_forward", Layer(32, 32, 16, 16)): LaunchPlan(8, 1, 2, 4),
    ("conv_forward", Layer(32, 64, 16, 16, 2)): LaunchPlan(8, 1, 2, 8),
    ("conv_backward", Layer(16, 32, 32, 32, 2)): LaunchPlan(4, 1, 2, 2),
    ("conv_backward", Layer(32, 32, 16, 16)): LaunchPlan(8, 1, 2, 4),
    ("conv_backward", Layer(32, 64, 16, 16, 2)): LaunchPlan(4, 1, 2, 8),
    ("conv_backward", Layer(32, 64, 16, 16, 2, 1)): LaunchPlan(4, 1, 2, 8),
}


@functools.cache
def plan_for(layer: Layer, name: str = "conv_forward") -> LaunchPlan | None:
    """A good way to share a layer out, or None where it does not fit."""
    known = layer.kernel in (1, 3) and layer.stride in (1, 2) and layer.outputs % BLOCK == 0
    image = layer.inputs == QUAD and (layer.kernel, layer.stride) == (3, 1)
    if not known or not (image or layer.inputs % BLOCK == 0):
        return None
    plan = TUNED.get((name, layer)) or _guess(layer)
    fits = plan.shared(layer, name, residual=True) <= MOST_SHARED
    return plan if fits and plan.threads(layer) <= MOST_THREADS else None


def _guess(layer: Layer) -> LaunchPlan:
    pairs = next(n for n in (16, 8, 4, 2, 1) if layer.tiles % n == 0)
    for rows in (2, 4, 8):
        plan = LaunchPlan(rows, 1, 1, pairs)
        if plan.threads(layer) <= 256 or rows == 8:
            break
    return plan


START = 1.5  # what it costs a block of threads to begin, in sets of images


@functools.cache
def share(members: int, sets: int, slots: int) -> int:
    """Into how many blocks of threads to cut the sets of images of a member.

    `slots` blocks run at once: the fewest rounds of them, and few blocks, which all have to begin.
    """

    def time(blocks: int) -> float:
        return -(-members * blocks // slots) * (-(-sets // blocks) + START)

    return min(range(1, sets + 1), key=lambda blocks: (time(blocks), blocks))
