"""The regular deep ensemble: no noise, q = (1/K) sum_k delta(theta - omega_k)."""

import dataclasses
from typing import ClassVar

from torch import nn

from stochens.methods.base import Method


@dataclasses.dataclass(frozen=True)
class Regular(Method):
    """Every layer as it is: p1 = 1, p2 = 0.

    >>> layer = nn.Linear(2, 3)
    >>> Regular().wrap(layer, "0") is layer
    True
    """

    name: ClassVar[str] = "regular"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = ()

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return layer
