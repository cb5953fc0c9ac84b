"""The density to sample: U(q) = N nll(q) + lambda / 2 |q|^2 over flat positions q [M, D], which
are the parameters, or coordinates of theirs in which the prior is this (coordinates.py).

The two energies are kept apart, in float64: in float32 the likelihood's is so large that the
prior's part in a difference would drown in its rounding.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params, forward
from stochens.samplers.coordinates import THETA, Coordinates
from stochens.trees import Input

LIKELIHOOD, PRIOR, KINETIC = range(3)  # the columns of an energy [M, 3]


class Target(Protocol):
    """What a sampler needs to know of a density over D numbers."""

    @property
    def precision(self) -> float:
        """Of the Gaussian prior; 0 for none."""

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """q [M, D] -> the likelihood's energy [M], float64, and dU / dq [M, D] of the whole."""


def prior_energy(q: Tensor, precision: float) -> Tensor:
    """lambda / 2 |q|^2, [M], float64."""
    return 0.5 * precision * q.double().square().sum(-1)


@dataclasses.dataclass(frozen=True)
class NetworkTarget:
    """A network's posterior on all of its data, every chain at once.

    `rows` at a time go through the network: the gradient of a sum is summed over its parts.
    """

    net: nn.Module
    likelihood: Likelihood
    x: Input  # [N, ...]
    y: Tensor  # [N] or [N, targets]
    shapes: dict[str, torch.Size]
    precision: float
    rows: int
    engine: Engine = "vmap"
    outputs: Callable[[Params, Input], Tensor] | None = None  # a program, in the engine's place
    coordinates: Coordinates = THETA

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        total = q.new_zeros(len(q), dtype=torch.float64)
        grad = self.precision * q.detach()
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            params = unflatten(self.coordinates.theta(q), self.shapes)
            for top in range(0, len(self.x), self.rows):
                x, y = self.x[top : top + self.rows], self.y[top : top + self.rows]
                outputs = self.run(params, x)
                nll = len(x) * self.likelihood.nll(outputs, y.expand(len(q), *y.shape))  # [M]
                more = top + self.rows < len(self.x)
                (part,) = torch.autograd.grad(nll.sum(), q, retain_graph=more)
                total += nll.detach()
                grad += part
        return total, grad

    def run(self, params: Params, x: Input) -> Tensor:
        """[M, B, C] of x [B, ...]."""
        if self.outputs is not None:
            return self.outputs(params, x)
        return forward(self.net, params, x, engine=self.engine)


def unflatten(q: Tensor, shapes: dict[str, torch.Size]) -> Params:
    """[M, D] as Params; `shapes` are those of one member."""
    parts = q.split([shape.numel() for shape in shapes.values()], dim=1)
    return {
        name: part.view(len(q), *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
