"""DropConnect, SE2: every weight is its own node, p1 = 1 - p, p2 = p, omega2 = 0."""

import dataclasses
from typing import ClassVar

from torch import nn

from stochens.members import Params
from stochens.methods.base import (
    ATTENTION,
    LINEAR,
    LOOKUP,
    RECURRENT,
    Mixture,
    Rated,
    StochasticLayer,
    zeros_like,
)
from stochens.randomness.noise import bernoulli


class DropConnectLayer(StochasticLayer):
    """theta = omega * eps / (1 - p),  eps ~ Bernoulli(1 - p) for each weight, once a call."""

    noise_on_weights: ClassVar[bool] = True
    fusable = True

    def __init__(self, layer: nn.Module, p: float) -> None:
        super().__init__(layer)
        self.p = p

    def draw(self, omega: Params) -> Params:
        return {
            name: w * bernoulli(1 - self.p, w.shape, w) / (1 - self.p) if name in self.noisy else w
            for name, w in omega.items()
        }

    def mixtures(self, omega: Params) -> list[Mixture]:
        """(1 - p) N(omega_w, sigma^2) + p N(0, sigma^2) for each weight w: N nodes of one."""
        weights = [inner.means[0].flatten(1).unsqueeze(-1) for inner in self.inner_mixtures(omega)]
        return [Mixture((1 - self.p, self.p), (w, zeros_like(w))) for w in weights]

    def noise_repr(self) -> str:
        return f"p={self.p}, "

    def noise_words(self) -> str:
        return f"dropconnect {self.p:g} on weights"


@dataclasses.dataclass(frozen=True)
class DropConnect(Rated):
    """Each weight and bias is dropped with probability p; one mask a call of the layer,
    shared by the batch.

    >>> DropConnect(0.05).p
    0.05
    """

    name: ClassVar[str] = "dropconnect"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = LINEAR + LOOKUP + ATTENTION + RECURRENT

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        p = self.rate(path)
        return DropConnectLayer(layer, p) if p > 0 else layer
