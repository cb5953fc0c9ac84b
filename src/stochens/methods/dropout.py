"""Monte Carlo dropout, SE1: p1 = 1 - p, p2 = p, omega2 = 0."""

import dataclasses
from typing import ClassVar

from torch import Tensor, nn

from stochens.members import Params
from stochens.methods.base import (
    ATTENTION,
    LINEAR,
    LOOKUP,
    Mixture,
    Rated,
    StochasticLayer,
    check_node,
    zeros_like,
)
from stochens.private_names import Convolution
from stochens.randomness.noise import drop


class DropoutLayer(StochasticLayer):
    """y = layer(x; omega) * z / (1 - p),  z ~ Bernoulli(1 - p) for each example and node."""

    fusable = True

    def __init__(self, layer: nn.Module, p: float, node: str) -> None:
        super().__init__(layer)
        self.output_rate = p
        self.by_channel = node == "channel" and isinstance(self.plain, Convolution)

    def trained(self) -> list[str]:
        """All where some are trained: an output is dropped with whatever led to it."""
        return self.plain_names() if super().trained() else []

    def perturb(self, y: Tensor) -> Tensor:
        # z has the output's shape [B, C, *positions], or [B, C, 1, ...] where a channel is the node
        shape = (*y.shape[:2], *[1] * (y.dim() - 2)) if self.by_channel else y.shape
        return drop(y, 1 - self.output_rate, shape)

    def mixtures(self, omega: Params) -> list[Mixture]:
        """(1 - p) N(omega_n, sigma^2) + p N(0, sigma^2) for each output node or channel n.

        Attention's output nodes are those of its out_proj; its other nodes have no noise.
        """
        behind = {
            name: w
            for name, w in omega.items()
            if isinstance(self.plain, ATTENTION) and not name.startswith("out_proj.")
        }
        outputs = {name: w for name, w in omega.items() if name not in behind}
        weights = (1 - self.output_rate, self.output_rate)
        return self.inner_mixtures(behind) + [
            Mixture(weights, (inner.means[0], zeros_like(inner.means[0])))
            for inner in self.inner_mixtures(outputs)
        ]

    def noise_repr(self) -> str:
        return f"p={self.output_rate}, "

    def noise_words(self) -> str:
        return f"dropout {self.output_rate:g} on {'channels' if self.by_channel else 'outputs'}"


@dataclasses.dataclass(frozen=True)
class Dropout(Rated):
    """A node's output is dropped with probability p, per example, in training and prediction.

    `node`: what a convolution's node is, each `position` of a channel (the authors' choice) or the
    whole `channel`. An element-wise mask on a convolution is no distribution over its weights; the
    KL counts a channel as one node in both cases.

    >>> Dropout(0.2, rates={"features.*": 0.05})
    Dropout(skip=(), layers=(), p=0.2, rates={'features.*': 0.05}, node='position')
    """

    node: str = "position"

    name: ClassVar[str] = "dropout"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = LINEAR + LOOKUP + ATTENTION

    def __post_init__(self) -> None:
        super().__post_init__()
        check_node(self.node)

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        p = self.rate(path)
        return DropoutLayer(layer, p, self.node) if p > 0 else layer
