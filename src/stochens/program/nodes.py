"""The graph of a network: a few known operations, and nothing else."""

import dataclasses
from typing import Any, NoReturn

import torch

from stochens.methods import StochasticLayer


class Unknown(BaseException):
    """The network does what no kernel does. No Exception, which a network could catch."""


def refuse() -> NoReturn:
    raise Unknown


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One operation: the input, linear, conv, frn, relu, tanh, silu, add, pool or flatten."""

    kind: str
    inputs: "tuple[Node, ...]" = ()
    # of linear and conv (weight, bias or None), of frn (weight, bias, tau), as named_parameters has
    names: tuple[str | None, ...] = ()
    options: tuple[Any, ...] = ()
    layer: StochasticLayer | None = None  # the noise of linear, conv and frn
    prefix: str = ""  # of its parameters' names

    @property
    def owned(self) -> list[str]:
        """Every parameter that it uses."""
        if self.layer is not None:
            return [self.prefix + name for name, _ in self.layer.named_parameters()]
        return [name for name in self.names if name is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """All that a network computes of x; every parameter is used once, and trained."""

    nodes: tuple[Node, ...]  # in the order in which they are computed, the input first
    output: Node
    shapes: dict[str, torch.Size]  # of the parameters
    dtypes: set[torch.dtype]  # likewise

    def uses(self, node: Node) -> list[Node]:
        """The operations that take it, twice where they take it twice."""
        return [other for other in self.nodes for taken in other.inputs if taken is node]

    @property
    def noisy(self) -> list[Node]:
        """Those with noise, in the order in which they draw it."""
        return [node for node in self.nodes if node.layer is not None]
