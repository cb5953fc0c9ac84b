"""LoRA on convolutions, as peft has it: A is a convolution to `rank` channels, B one of single
positions."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from stochens.methods.base import StochasticLayer

Convolve = Callable[..., Tensor]
CONVOLUTIONS: dict[type[nn.Module], Convolve] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class _Zero:
    """B, which begins at 0: members begin at the network that they share."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)  # type: ignore[attr-defined]


class _Zeroed1d(_Zero, nn.Conv1d):
    pass


class _Zeroed2d(_Zero, nn.Conv2d):
    pass


class _Zeroed3d(_Zero, nn.Conv3d):
    pass


ZEROED = {nn.Conv1d: _Zeroed1d, nn.Conv2d: _Zeroed2d, nn.Conv3d: _Zeroed3d}


def is_convolution(module: nn.Module) -> bool:
    """Whether it can have an adapter. One with groups, such as a depthwise one, has a matrix for
    each group, and is left alone.

    >>> is_convolution(nn.Conv2d(4, 6, 3)), is_convolution(nn.Conv2d(4, 4, 3, groups=4))
    (True, False)
    """
    own: Any = module
    plain = type(module) in CONVOLUTIONS and "forward" not in vars(module)
    return plain and own.groups == 1 and own.padding_mode == "zeros"


def scaled(x: Tensor, scale: float) -> Tensor:
    """Between A and B, where there are `rank` numbers and not all of the layer's outputs."""
    return x if scale == 1 else scale * x


class LoRAConvLayer(nn.Module):
    """W * x + b + (alpha / rank) B * A * x in the place of a convolution, with its names for W, b.

    x [B, in, *positions], A [rank, in, *kernel] with the layer's stride, padding and dilation, and
    B [out, rank, 1, ...].
    """

    def __init__(self, layer: Any, rank: int, alpha: float) -> None:
        super().__init__()
        kind = type(layer)
        self.rank, self.scale = rank, alpha / rank
        self.weight: nn.Parameter = layer.weight
        self.bias: nn.Parameter | None = layer.bias
        self._convolve = CONVOLUTIONS[kind]
        self._how = {name: getattr(layer, name) for name in ("stride", "padding", "dilation")}
        like = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_A: nn.Module = kind(
            layer.in_channels, rank, layer.kernel_size, bias=False, **self._how, **like
        )
        self.lora_B: nn.Module = ZEROED[kind](rank, layer.out_channels, 1, bias=False, **like)

    def forward(self, input: Tensor) -> Tensor:
        adapted: Tensor = self.lora_B(scaled(self.lora_A(input), self.scale))
        return self._convolve(input, self.weight, self.bias, **self._how) + adapted

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """W + (alpha / rank) B A, of one member, as the plain convolution has it."""
        return weight + self.scale * (b.flatten(1) @ a.flatten(1)).view_as(weight)

    def begin(self) -> None:
        """A anew from torch's generator, B at 0."""
        for part in (self.lora_A, self.lora_B):
            own = part.plain if isinstance(part, StochasticLayer) else part
            own.reset_parameters()  # type: ignore[operator]

    def extra_repr(self) -> str:
        out, inputs, *kernel = self.weight.shape
        return f"{inputs}, {out}, kernel={tuple(kernel)}, rank={self.rank}, scale={self.scale:g}"
