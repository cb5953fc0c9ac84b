"""Gaussian members: the ansatz of equations 3 and 7 with sigma kept finite.

It adds sigma * eps to whatever theta the layer has, so it goes on top of the other methods, as in
equation 7, where every component of the mixture has the same sigma.
"""

import dataclasses
import math
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import nn
from torch.func import functional_call

from stochens.errors import InputError
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
    register,
)
from stochens.methods.nodes import by_node
from stochens.randomness.noise import normal

LOG_SIGMA = "_log_sigma"  # "weight" has its learned log sigma in "weight_log_sigma"
VARIANCE_FLOOR = 1e-12  # keeps the gradient of sqrt finite where the input is all zeros


class GaussianLayer(StochasticLayer):
    """theta = theta_inner + sigma * eps,  eps ~ N(0, 1) for each weight.

    For layers linear in theta the local reparameterisation draws the output instead, fresh for each
    example:  y = layer(x; theta_inner) + sqrt(layer(x^2; sigma^2)) * eps  (Kingma et al., 2015).
    """

    last: ClassVar[bool] = True

    def __init__(self, layer: nn.Module, sigma: float, *, learn: bool) -> None:
        super().__init__(layer)
        self.sigma = sigma
        self.learn = learn
        self.local = enters_linearly(self.plain)
        inner = layer.fusable if isinstance(layer, StochasticLayer) else True
        self.fusable = self.local and inner
        if learn:
            for name, p in self.plain.named_parameters():
                start = torch.full_like(p, math.log(sigma))
                register(self, name + LOG_SIGMA, beside(p, start))

    def shared_by_batch(self) -> bool:
        return not self.local or super().shared_by_batch()

    def sigmas(self) -> Params:
        """sigma of each parameter of the plain layer."""
        if self.learn:
            return {
                name: attrgetter(name + LOG_SIGMA)(self).exp()
                for name, _ in self.plain.named_parameters()
            }
        return {  # by shape alone: the plain layer's own tensors are not part of the network
            name: torch.full(tuple(p.shape), self.sigma, dtype=p.dtype, device=p.device)
            for name, p in self.plain.named_parameters()
        }

    def stacked_sigmas(self, omega: Params) -> Params:
        """sigma of each parameter of the plain layer, for all members: [M, ...]."""
        plain = [name for name, _ in self.plain.named_parameters() if name in omega]
        if self.learn:
            return {name: omega[name + LOG_SIGMA].exp() for name in plain}
        return {name: torch.full_like(omega[name], self.sigma).detach() for name in plain}

    def draw(self, omega: Params) -> Params:
        theta = self.inner.draw(omega) if isinstance(self.inner, StochasticLayer) else omega
        sigma = self.sigmas()
        return {name: w + sigma[self.base_of[name]] * normal(w) for name, w in theta.items()}

    def output(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(self.inner, StochasticLayer):  # theta is drawn, its outputs are not
            return self.inner.output(theta, args, kwargs)
        return super().output(theta, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.local:
            return super().forward(*args, **kwargs)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        y = self.run_inner(self.omega(), args, kwargs)
        x, *rest = args
        squared = x if isinstance(self.plain, LOOKUP) else x.square()
        variances = {name: s.square() for name, s in self.sigmas().items()}
        variance = functional_call(self.plain, variances, (squared, *rest), kwargs)
        return y + (variance + VARIANCE_FLOOR).sqrt() * normal(y, fresh=True)

    def mixtures(self, omega: Params) -> list[Mixture]:
        """The inner layer's components, each with this sigma."""
        sigmas = by_node(self.plain, self.stacked_sigmas(omega))
        return [
            inner._replace(sigma=sigma.reshape(inner.means[0].shape))
            for inner, sigma in zip(self.inner_mixtures(omega), sigmas, strict=True)
        ]

    def start(self, first: Params, second: Params) -> Params:
        inner = super().start(first, second)
        if not self.learn:
            return inner
        sigmas = {
            name + LOG_SIGMA: torch.full_like(p, math.log(self.sigma)) for name, p in first.items()
        }
        return {**inner, **sigmas}

    def noise_repr(self) -> str:
        return f"sigma={self.sigma}{', learned' if self.learn else ''}, "


def enters_linearly(layer: nn.Module) -> bool:
    """Whether outputs are linear in theta: a weight, a bias, and torch's own forward pass.

    A parametrised layer (weight norm) or a subclass that standardises its weights is not.
    """
    return (
        isinstance(layer, LINEAR + LOOKUP)
        and {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}
        and type(layer).forward.__module__.startswith("torch.nn.modules.")
    )


@dataclasses.dataclass(frozen=True)
class Gaussian(Method):
    """Gaussian noise of standard deviation sigma on every weight of every layer.

    `learn`: sigma becomes a trained number for each weight, starting at `sigma`, with its own KL
    terms. Composes: `[Dropout(0.1), Gaussian(0.05)]`.

    >>> Gaussian(0.1, learn=True).sigma
    0.1
    """

    sigma: float = 0.05
    learn: bool = False

    name: ClassVar[str] = "gaussian"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = (
        LINEAR + LOOKUP + ATTENTION + RECURRENT + NORM
    )
    goes_on_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sigma, (int, float)) or not 0 < self.sigma < math.inf:
            raise InputError(f"sigma must be a positive number, got {self.sigma!r}")

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return GaussianLayer(layer, self.sigma, learn=self.learn)

    def takes_output(self, path: str) -> bool:
        return True  # equation 3 has noise on all of theta
