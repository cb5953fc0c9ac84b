"""The last layer alone: members share all but their output layer."""

import dataclasses
from typing import ClassVar

from torch import nn

from stochens.errors import Unsuited
from stochens.methods.base import Method
from stochens.methods.freezing import freeze_but
from stochens.methods.patterns import refuse_unmatched


@dataclasses.dataclass(frozen=True)
class LastLayer(Method):
    """Only the output layer is each member's own; all else is the network given, frozen, held once
    and computed once for all members (`fit` keeps its features).

    layers: patterns of modules that members own instead, such as "head*" or "blocks.11.*".
    skip: patterns of modules among these that they do not own.

    A member's layer begins at its own initialisation, or at the module's with start="module". The
    prior is on these layers; noise comes from a method beside it: [LastLayer(), Gaussian(0.05)] or
    [LastLayer(), Dropout(0.1, layers="head")].

    >>> net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
    >>> from stochens.methods import stochastic
    >>> [n for n, p in stochastic(net, LastLayer()).named_parameters() if p.requires_grad]
    ['2.weight', '2.bias']
    """

    name: ClassVar[str] = "last-layer"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = ()
    freezes: ClassVar[bool] = True

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return layer

    def adapt(self, net: nn.Module, *, output: str | None) -> nn.Module:
        """In place."""
        if self.layers:
            refuse_unmatched(self.layers, [path for path, _ in net.named_modules() if path])
        elif output is None:
            raise Unsuited("last-layer found no output layer; name it: LastLayer(layers=...)")
        kept = self.layers or (output or "",)
        freeze_but(net, kept, self.skip)
        if not any(p.requires_grad for p in net.parameters()):
            raise Unsuited(
                f"last-layer: {', '.join(map(repr, kept))} has no parameter to train; are they "
                "frozen (requires_grad=False), or left out by skip?"
            )
        return net
