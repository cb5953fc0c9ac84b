"""Gaussian members: the ansatz of equations 3 and 7 with sigma kept finite.

It adds sigma * eps to whatever theta the layer has, so it goes on top of the other methods, as in
equation 7, where every component of the mixture has the same sigma.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
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
    owner_of,
    register,
)
from stochens.methods.reach import LISTS, own_parameters
from stochens.private_names import (
    TransposedLinear,
    buffers_of,
    parameters_of,
    parts_of,
    unsaved_buffers_of,
)
from stochens.randomness.noise import normal

LOG_SIGMA = "_log_sigma"  # "weight" has its learned log sigma in "weight_log_sigma"
VARIANCE_FLOOR = 1e-12  # keeps the gradient of sqrt finite where the input is all zeros


class GaussianLayer(StochasticLayer):
    """theta = theta_inner + sigma * eps,  eps ~ N(0, 1) for each weight.

    For layers linear in theta the local reparameterisation draws the output instead, fresh for each
    example:  y = layer(x; theta_inner) + sqrt(layer(x^2; sigma^2)) * eps  (Kingma et al., 2015).
    """

    last: ClassVar[bool] = True
    fusable: bool = False  # each layer says it for itself

    def __init__(self, layer: nn.Module, sigma: float, *, learn: bool) -> None:
        super().__init__(layer)
        self.sigma = sigma
        self.learn = learn
        masked = isinstance(layer, StochasticLayer) and layer.masks_inputs
        self.local = enters_linearly(self.plain) and not masked
        inner = layer.fusable if isinstance(layer, StochasticLayer) else True
        self.fusable = self.local and inner
        for name in self.noisy if learn else ():
            p = self.plain.get_parameter(name)
            start = torch.full_like(p, math.log(sigma))
            register(self, name + LOG_SIGMA, beside(p, start))

    def shared_by_batch(self) -> bool:
        return not self.local or super().shared_by_batch()

    def sigmas(self) -> Params:
        """sigma of each parameter of the plain layer that has noise."""
        if self.learn:
            return {name: attrgetter(name + LOG_SIGMA)(self).exp() for name in self.noisy}
        return {name: self._full(name, self.sigma) for name in self.noisy}

    def _full(self, name: str, value: float) -> Tensor:
        """By shape alone: the plain layer's own tensors are not part of the network."""
        p = attrgetter(name)(self)
        return torch.full(tuple(p.shape), value, dtype=p.dtype, device=p.device)

    def stacked_sigmas(self, omega: Params) -> Params:
        """Likewise for all members: [M, ...]."""
        plain = [name for name in self.noisy if name in omega]
        if self.learn:
            return {name: omega[name + LOG_SIGMA].exp() for name in plain}
        return {name: torch.full_like(omega[name], self.sigma).detach() for name in plain}

    def draw(self, omega: Params) -> Params:
        theta = self.inner.draw(omega) if isinstance(self.inner, StochasticLayer) else omega
        sigma = self.sigmas()
        return {
            name: w + sigma[base] * normal(w) if (base := self.base_of[name]) in sigma else w
            for name, w in theta.items()
        }

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
        frozen = {name: self._full(name, 0.0) for name in self.plain_names()}
        variances = frozen | {name: s.square() for name, s in self.sigmas().items()}
        variance = functional_call(self.plain, variances, (squared, *rest), kwargs)
        return y + (variance + VARIANCE_FLOOR).sqrt() * normal(y, fresh=True)

    def mixtures(self, omega: Params) -> list[Mixture]:
        """The inner layer's components, each with this sigma."""
        sigmas = self.nodes(self.stacked_sigmas(omega))
        return [
            inner._replace(sigma=sigma.reshape(inner.means[0].shape))
            for inner, sigma in zip(self.inner_mixtures(omega), sigmas, strict=True)
        ]

    def start(self, first: Params, second: Params) -> Params:
        inner = super().start(first, second)
        if not self.learn:
            return inner
        sigmas = {
            name + LOG_SIGMA: torch.full_like(p, math.log(self.sigma))
            for name, p in first.items()
            if name in self.noisy  # not what a likelihood has added
        }
        return {**inner, **sigmas}

    def noise_repr(self) -> str:
        return f"sigma={self.sigma}{', learned' if self.learn else ''}, "

    def noise_words(self) -> str:
        how = "learned, from " if self.learn else ""
        return f"gaussian {how}{self.sigma:g} on weights"


class GaussianOwn(GaussianLayer):
    """theta = omega + sigma * eps  for the parameters that a module holds itself, whatever it does
    with them: a scale, a class token, the matrix of an einsum, a layer of another library.

    The module's parts stay parts of the network, each with the noise that it has by itself.
    """

    on_call: Callable[[], None] | None = None  # told of calls that are none of `forward`

    def __init__(self, module: nn.Module, sigma: float, *, learn: bool) -> None:
        super().__init__(module, sigma, learn=learn)
        self.local = self.fusable = False

    def lent(self) -> dict[str, nn.Parameter]:
        return own_parameters(self.inner)

    def plain_names(self) -> list[str]:
        return self.names

    def owned(self) -> dict[str, nn.Parameter]:
        own = {*self.names, *(name + LOG_SIGMA for name in self.noisy)}
        return {name: p for name, p in super().owned().items() if name in own}

    def _own(self) -> None:
        for name, child in parts_of(self.inner).items():
            if not isinstance(child, LISTS):
                parts_of(self)[name] = child
        for name, p in self.lent().items():
            register(self, name, p)
        buffers_of(self).update(buffers_of(self.inner))
        unsaved_buffers_of(self).update(unsaved_buffers_of(self.inner))

    def mixtures(self, omega: Params) -> list[Mixture]:
        """N(omega, sigma^2) for each parameter by itself."""
        return [
            Mixture((1.0,), (_one_node(omega[name]),), _one_node(sigma))
            for name, sigma in self.stacked_sigmas(omega).items()
        ]

    def run_inner(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        buffers = {name: b for name, b in buffers_of(self).items() if b is not None}
        # Not tied: another place of the same tensor has noise of its own.
        given = {**buffers, **theta}
        return functional_call(self.inner, given, args, kwargs, tie_weights=False)

    def __getattr__(self, name: str) -> Any:
        """Another method than `forward` is called with a draw too: the module's own parameters are
        those of no member."""
        found = super().__getattr__(name)
        if not inspect.ismethod(found) or found.__self__ is not self.inner:
            return found
        return functools.partial(self._call, found)

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.on_call is not None:
            self.on_call()
        theta = self.draw(self.omega())
        places = [(*owner_of(self.inner, name), value) for name, value in theta.items()]
        before = [parameters_of(owner)[name] for owner, name, _ in places]
        try:
            for owner, name, value in places:
                parameters_of(owner)[name] = value  # type: ignore[assignment]
            return method(*args, **kwargs)
        finally:
            for (owner, name, _), p in zip(places, before, strict=True):
                parameters_of(owner)[name] = p

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.noise_repr()}{', '.join(self.noisy)} of {self.inner!r})"
        )


def _one_node(p: Tensor) -> Tensor:
    """[M, ...] -> [M, 1, D]."""
    return p.reshape(len(p), 1, -1)


def enters_linearly(layer: nn.Module) -> bool:
    """Whether outputs are linear in theta: a weight, a bias, and torch's own forward pass.

    A parametrised layer (weight norm) or a subclass that standardises its weights is not.
    """
    return (
        isinstance(layer, LINEAR + LOOKUP)
        and {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}
        and (
            isinstance(layer, TransposedLinear)
            or type(layer).forward.__module__.startswith("torch.nn.modules.")
        )
    )


@dataclasses.dataclass(frozen=True)
class Gaussian(Method):
    """Gaussian noise of standard deviation sigma on every trainable parameter, of whatever module.

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
    everywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sigma, (int, float)) or not 0 < self.sigma < math.inf:
            raise InputError(f"sigma must be a positive number, got {self.sigma!r}")

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return GaussianLayer(layer, self.sigma, learn=self.learn)

    def wrap_own(self, module: nn.Module, path: str) -> nn.Module:
        return GaussianOwn(module, self.sigma, learn=self.learn)

    def takes_output(self, path: str) -> bool:
        return True  # equation 3 has noise on all of theta
