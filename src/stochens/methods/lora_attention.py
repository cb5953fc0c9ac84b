"""LoRA on nn.MultiheadAttention, whose projections are matrices and no layers of their own."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stochens.methods.base import register

PROJECTIONS = {"": "in_proj_weight", "out_proj.": "out_proj.weight"}  # adapter's prefix -> matrix


class Matrix(nn.Module):
    """A parameter that is called to be had, so that noise can be put on it."""

    def __init__(self, rows: int, columns: int, like: Tensor, *, zero: bool) -> None:
        super().__init__()
        self.zero = zero
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=like.dtype, device=like.device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """B at 0; A as nn.Linear draws its weights."""
        if self.zero:
            nn.init.zeros_(self.weight)
        else:
            nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self) -> Tensor:
        return self.weight


class LoRAAttention(nn.Module):
    """Attention with W + (alpha / rank) B A in the place of W, for the projections to queries, keys
    and values, which are one matrix [3 E, E], and for that of the outputs [E, E].

    It has the layer's parameters under their own names. The sums are made for each member in each
    pass: they need the memory of the projections, which adapters of nn.Linear do not.
    """

    def __init__(self, layer: nn.MultiheadAttention, rank: int, alpha: float) -> None:
        super().__init__()
        self._inner = (layer,)  # a tuple, so that torch does not register it as a child
        self.rank, self.scale = rank, alpha / rank
        self._names = [name for name, _ in layer.named_parameters()]
        for name, p in layer.named_parameters():
            register(self, name, p)
        for prefix, name in PROJECTIONS.items():
            weight = layer.get_parameter(name)
            owner = self.get_submodule(prefix.rstrip("."))
            owner.add_module("lora_A", Matrix(rank, weight.shape[1], weight, zero=False))
            owner.add_module("lora_B", Matrix(weight.shape[0], rank, weight, zero=True))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = {name: attrgetter(name)(self) for name in self._names}
        for prefix, name in PROJECTIONS.items():
            owner = self.get_submodule(prefix.rstrip("."))
            a, b = owner.lora_A(), owner.lora_B()  # type: ignore[operator]
            own[name] = self.merged(own[name], a, b)
        return functional_call(self._inner[0], own, args, kwargs)

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """W + (alpha / rank) B A."""
        return weight + self.scale * (b @ a)

    def begin(self) -> None:
        """A anew from torch's generator, B at 0."""
        for part in self.modules():
            if isinstance(part, Matrix):
                part.reset_parameters()

    def train(self, mode: bool = True) -> "LoRAAttention":
        self._inner[0].train(mode)  # for its dropout
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        """`batch_first`, `num_heads`, ...: what other modules read off the layer."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_inner")
            if inner is None or name.startswith("__"):
                raise
            return getattr(inner[0], name)


def has_one_matrix(layer: nn.Module) -> bool:
    """Whether its queries, keys and values have one width, and so one matrix."""
    return isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None
