"""How a stochastic network was made, so that loading can make it again, and for which inputs."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.likelihoods import Likelihood
from stochens.methods import METHODS, Method


def described(part: Method | Likelihood) -> dict[str, Any]:
    """By its name and options, as JSON can hold them."""
    return {"name": part.name, "options": part.options()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `stochastic` was given beside the plain network."""

    methods: tuple[Method, ...]
    skip: tuple[str, ...] = ()
    output: str | None = None

    def description(self) -> dict[str, Any]:
        """As JSON can hold it."""
        methods = [described(method) for method in self.methods]
        return {"methods": methods, "skip": list(self.skip), "output": self.output}

    @classmethod
    def read(cls, about: dict[str, Any]) -> "Recipe":
        """From what `description` gave."""
        return cls(
            methods=tuple(METHODS[m["name"]](**m["options"]) for m in about["methods"]),
            skip=tuple(about["skip"]),
            output=about["output"],
        )


class Inputs(NamedTuple):
    """What one example of the training data was."""

    shape: tuple[int, ...]
    dtype: str  # torch's name, e.g. "float32"

    @classmethod
    def of(cls, x: Tensor) -> "Inputs":
        """From a batch, [B, ...]."""
        return cls(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))

    @classmethod
    def read(cls, about: dict[str, Any] | None) -> "Inputs | None":
        """From what `_asdict` gave."""
        return None if about is None else cls(tuple(about["shape"]), str(about["dtype"]))

    def example(self) -> Tensor:
        """Zeros, [1, ...]."""
        return torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))
