"""What draws of a network say of y, one by one and together: the two halves of a prediction."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from stochens.errors import InputError

Parameters = tuple[Tensor, ...]
Measure = tuple[Callable[..., Any], *tuple[Tensor, ...]]  # a metric, and what it is a function of


class Predicted(abc.ABC):
    """p(y | x, data) = 1/S sum_s p(y | x, theta_s) at B inputs: what `posterior.predict` returns.

    Whatever kind it is of, it has these.
    """

    mean: Tensor  # [B, ...], of y; of classes their probabilities
    chains: "tuple[Any, ...]" = ()  # of a sampler: what each of its chains says, alone
    summaries: ClassVar[tuple[str, ...]] = ("mean",)  # what `numpy` gives, by name

    def numpy(self) -> "dict[str, np.ndarray[Any, np.dtype[Any]]]":
        """What it says of each input as numpy arrays, by the names that they have here: of classes
        mean [B, C], labels, entropy, aleatoric and mutual_information [B]; of numbers mean, std,
        aleatoric and epistemic [B, D]. Each [B, ...]; the draws are not among them.

        >>> import torch
        >>> from stochens import Predictive
        >>> found = Predictive.of(torch.full((3, 5, 2), 0.5)).numpy()
        >>> {name: array.shape for name, array in found.items()}
        {'mean': (5, 2), 'labels': (5,), 'entropy': (5,), 'aleatoric': (5,),
         'mutual_information': (5,)}
        """
        return {name: getattr(self, name).detach().cpu().numpy() for name in self.summaries}

    @abc.abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y | x, data) in nats and float64: y [B, ...] -> [B]."""

    @abc.abstractmethod
    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """y drawn from it, [n, B, ...]; each row from one draw of the network."""

    @abc.abstractmethod
    def measures(self, y: Tensor) -> dict[str, Measure]:
        """How good it is, as `compare` shows it: name -> (metric, its arguments)."""

    def of_chains(self, weights: Sequence[float]) -> Self:
        """What the chains say together when each counts so much; the weights sum to 1."""
        raise InputError(f"a {type(self).__name__} has no chains")

    def beside(self, reference: Self) -> dict[str, Tensor]:
        """How far it is from a reference at the same inputs, by name, example by example [B]."""
        kind = type(self).__name__
        raise InputError(f"reference is for classes, and these are {kind}s; leave it out")

    def apart(self, far: Self) -> dict[str, Measure]:
        """How well inputs of another kind, predicted as `far`, are told from these."""
        kind = type(self).__name__
        raise InputError(f"ood is for classes, and these are {kind}s; leave it out")

    @abc.abstractmethod
    def quantities(self) -> Tensor:
        """What each draw predicts, [S, K]: numbers that chains of a sampler must agree about."""

    @property
    @abc.abstractmethod
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""

    @abc.abstractmethod
    def light(self) -> Self:
        """The same without its draws."""

    @classmethod
    @abc.abstractmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Predictions at some inputs and at others, as one, in order."""


class Draws(abc.ABC):
    """p(y | x, theta_s) for S draws of a network at B inputs, as `Likelihood.distribution` has it.

    `Classes` and `Numbers` are what a likelihood of one's own needs. Draws come a few at a time, so
    that not all need to be held: terms are summed over them, and `averaged` makes the prediction.
    """

    @property
    @abc.abstractmethod
    def parameters(self) -> Parameters:
        """Each [S, B, ...]; all that is kept of the draws."""

    @property
    def large(self) -> bool:
        """Whether one example has so many numbers (pixels, tokens) that draws are kept only where
        that is asked for."""
        return False

    @property
    def scale(self) -> Tensor | None:
        """The spread of y beside its mean, where the family has one apart from it: [S, B, D]."""
        return None

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y by each draw, [S, B, D], of numbers."""
        raise InputError(f"{type(self).__name__} are no numbers, and have no mean and variance")

    @abc.abstractmethod
    def at(self, parameters: Parameters) -> Self:
        """The same kind with other parameters."""

    def centre(self) -> Parameters:
        """Each [B, ...], of the first draw: what distances are measured from, if any are."""
        return ()

    @abc.abstractmethod
    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        """What is to be averaged over the draws, each [S, B, ...]."""

    @abc.abstractmethod
    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> Predicted:
        """The prediction, from averages of the terms, each [chains, B, ...] in float64, and all of
        the draws' parameters where they were kept. Of `self` only the kind counts."""

    @abc.abstractmethod
    def exported(self) -> dict[str, Tensor]:
        """The same averages by name, each [B, ...], for a file that needs no stochens: in the
        network's own precision, by operations that ONNX has."""


def how_many(draws: int | None) -> str:
    """
    >>> how_many(3), how_many(None)
    ('3 draws', 'draws not kept')
    """
    return "draws not kept" if draws is None else f"{draws} draws"
