"""Non-parametric dropout, SE3: two trained parameter sets, exchanged node by node."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import nn

from stochens.members import Params
from stochens.methods.base import (
    ATTENTION,
    LINEAR,
    LOOKUP,
    NORM,
    RECURRENT,
    Method,
    Mixture,
    StochasticLayer,
    beside,
    check_node,
    register,
)
from stochens.methods.nodes import by_node, count, groups, spread
from stochens.private_names import Convolution
from stochens.randomness.noise import bernoulli

SECOND = "_2"  # "weight" has its second set in "weight_2"

# Layers whose outputs have positions beside channels, [B, C, *positions]
POSITIONAL = (Convolution, *NORM)


class NPDropoutLayer(StochasticLayer):
    """theta_n = omega1_n or omega2_n with probability 1/2 each, for each node n; no rescaling."""

    needs_second_set: ClassVar[bool] = True
    noise_on_weights: ClassVar[bool] = True
    fusable = True

    def __init__(self, layer: nn.Module, node: str) -> None:
        super().__init__(layer)
        self.by_position = node == "position" and isinstance(layer, POSITIONAL)
        for name in self.noisy:  # of what is frozen there is one
            p = layer.get_parameter(name)
            register(self, name + SECOND, beside(p, p))
            self.names.append(name + SECOND)
            self.base_of[name + SECOND] = name

    def sets(self, omega: Params) -> tuple[Params, Params]:
        """The two sets, each under the plain layer's names; they share what is frozen."""
        seconds = {name + SECOND: name for name in self.noisy}
        first = {name: p for name, p in omega.items() if name not in seconds}
        second = {seconds[name]: p for name, p in omega.items() if name in seconds}
        return first, {**first, **second}

    def draw(self, omega: Params) -> Params:
        """One choice for each node, its weights and bias together, shared by the batch."""
        if self.by_position:
            return omega  # both sets: the choice is among outputs
        first, second = self.sets(omega)
        theta = dict(first)
        for group in groups(self.inner):
            like = first[next(iter(group))]
            choice = bernoulli(0.5, (count(self.inner, group),), like)
            for name, axis in group.items():
                if name not in self.noisy:
                    continue
                mask = spread(self.inner, name, axis, choice)
                theta[name] = torch.where(mask, first[name], second[name])
        return theta

    def output(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.by_position:
            return super().output(theta, args, kwargs)
        y1, y2 = (self.run_inner(one, args, kwargs) for one in self.sets(theta))
        # one choice for each output element, shared by the batch
        return torch.where(bernoulli(0.5, y1.shape[1:], y1), y1, y2)

    def mixtures(self, omega: Params) -> list[Mixture]:
        """1/2 N(omega1_n, sigma^2) + 1/2 N(omega2_n, sigma^2) for each output node or channel."""
        first, second = (by_node(self.inner, values) for values in self.sets(omega))
        return [Mixture((0.5, 0.5), (one, two)) for one, two in zip(first, second, strict=True)]

    def start(self, first: Params, second: Params) -> Params:
        return {**first, **{name + SECOND: p for name, p in second.items()}}

    def noise_words(self) -> str:
        return f"np-dropout: two sets, chosen by {'position' if self.by_position else 'node'}"


@dataclasses.dataclass(frozen=True)
class NPDropout(Method):
    """Each node takes its parameters from set 1 or set 2 with equal chance; both are trained.

    `node`: what the node of a convolution or normalisation is, each `position` of a channel (the
    authors' choice; two convolutions) or the whole `channel` (one convolution with mixed weights).
    `output`: whether the output layer has two sets as well.

    >>> NPDropout(node="channel").node
    'channel'
    """

    node: str = "position"
    output: bool = False

    name: ClassVar[str] = "np-dropout"
    output_hint: ClassVar[str] = " unless output=True, or it is named in layers"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = (
        LINEAR + LOOKUP + ATTENTION + RECURRENT + NORM
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_node(self.node)

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return NPDropoutLayer(layer, self.node)

    def takes_output(self, path: str) -> bool:
        return self.output


def set_distance(params: Params) -> float:
    """How far apart the two sets are:  sum_n |omega1_n - omega2_n| / sum_n |omega1_n|  over the
    nodes of the layers that have them, the mean over members. 0: a member is a plain network."""
    apart, size = [], []
    for name, second in params.items():
        if name.endswith("weight" + SECOND):
            one = params[name.removesuffix(SECOND)].flatten(2)  # [M, nodes, in]
            apart.append((one - second.flatten(2)).norm(dim=-1))  # [M, nodes]
            size.append(one.norm(dim=-1))
    return float((torch.cat(apart, 1).sum(1) / torch.cat(size, 1).sum(1)).mean())
