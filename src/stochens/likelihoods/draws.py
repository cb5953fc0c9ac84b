"""What draws of a network say of y, one by one and together: the two halves of a prediction."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.figures.plots import Plots
from stochens.figures.views import Views

Parameters = tuple[Tensor, ...]
MOST_QUANTILE = 1 << 24  # elements that torch.quantile takes at once
Measure = tuple[Callable[..., Any], *tuple[Tensor, ...]]  # a metric, and what it is a function of


class Predicted(abc.ABC):
    """p(y | x, data) = 1/S sum_s p(y | x, theta_s) at B inputs: what `posterior.predict` returns.

    Whatever kind it is of, it has these.
    """

    mean: Tensor  # [B, ...], of y; of classes their probabilities
    chains: "tuple[Any, ...]" = ()  # of a sampler: what each of its chains says, alone

    def numpy(self) -> "dict[str, np.ndarray[Any, np.dtype[Any]]]":
        """What `summaries` says of each input, as numpy arrays [B, ...]; draws are not among them.

        >>> import torch
        >>> from stochens import Predictive
        >>> found = Predictive.of(torch.full((3, 5, 2), 0.5)).numpy()
        >>> {name: array.shape for name, array in found.items()}
        {'probs': (5, 2), 'entropy': (5,), 'mutual_information': (5,)}
        """
        return {name: t.detach().cpu().numpy() for name, t in self.summaries().items()}

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

    def moved(self, shift: Tensor, scale: Tensor) -> Self:
        """The prediction of  shift + scale y  in float64, both [D], of numbers in units."""
        raise InputError(f"a {type(self).__name__} has no units that could be changed")

    @property
    def entropy(self) -> Tensor:
        """The whole uncertainty in nats, [B, ...]."""
        raise InputError(f"a {type(self).__name__} does not say its entropy")

    @property
    def mutual_information(self) -> Tensor:
        """What the parameters are unsure of, in nats: [B, ...]."""
        raise InputError(f"a {type(self).__name__} does not say its mutual information")

    @property
    def probs(self) -> Tensor:
        """Of classes: the probabilities of each draw, [S, B, ..., C]."""
        raise InputError(
            f"this is for classes: a prediction or probs [S, B, C], got {type(self).__name__}"
        )

    def draw_moments(self) -> tuple[Tensor, Tensor]:
        """Of numbers: mean and variance of y by each draw, [S, B, D]."""
        raise InputError(
            "this is for numbers: a prediction of a regression with its draws, got a "
            f"{type(self).__name__}"
        )

    @property
    def std(self) -> Tensor:
        """Of numbers: the standard deviation of y, [B, D]."""
        raise InputError(_no_numbers(self))

    def quantile(self, level: float) -> Tensor:
        """Of numbers: y with P(Y <= y) = level, [B, D]."""
        raise InputError(_no_numbers(self))

    @property
    def views(self) -> Views:
        """What figures and reports show of it; nothing, unless its kind states more."""
        return Views()

    @property
    def plot(self) -> Plots:
        """Figures, as matplotlib's axes: `p.plot.reliability(y)`, `risk_coverage(y)` and
        `uncertainty(ood)`."""
        return Plots(self)

    def of_draws(self, rows: slice) -> Self:
        """What some of its draws say alone, as a member's; the draws must have been kept."""
        raise InputError(f"a {type(self).__name__} cannot be taken apart into draws")

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

    def summaries(self, level: float | None = None) -> dict[str, Tensor]:
        """What is said of each example, by name, each [B, ...]: what `predict(x, out=...)` writes,
        by the names that `export` has.

        level: with an interval of this level, low and high, which needs the draws.
        """
        return {"mean": self.mean}

    def by_draw(self) -> dict[str, Tensor]:
        """Likewise what each draw says, [B, S, ...], where draws are kept."""
        kind = type(self).__name__
        raise InputError(f"a {kind} does not say what its draws are; leave keep_draws out")

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
    def summed_up(self) -> bool:
        """Whether averages of the terms make all of `Predicted.summaries`; an interval needs the
        draws themselves."""
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

    def whole(self, kept: Parameters) -> Predicted | None:
        """The prediction where all draws are here and kept, if it can be made without averages of
        the terms: what of it comes from the draws may then wait until it is asked for."""
        return None

    @abc.abstractmethod
    def exported(self) -> dict[str, Tensor]:
        """The same averages by name, each [B, ...], for a file that needs no stochens: in the
        network's own precision, by operations that ONNX has."""


def mean_of_draws(terms: Tensor) -> Tensor:
    """In float64, as of one chain: [S, ...] -> [1, ...]."""
    return terms.sum(0, True, dtype=torch.float64) / float(len(terms))


def over_chains(averages: Tensor) -> Tensor:
    """Their mean: [chains, ...] -> [...]. Most posteriors have one, which is its own mean."""
    return averages[0] if len(averages) == 1 else averages.mean(0)


def central_interval(values: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The central interval that holds a share `level` of the draws: [S, B, ...] -> [B, ...] each.

    >>> low, high = central_interval(torch.linspace(0, 1, 101).view(101, 1), 0.9)
    >>> round(low.item(), 2), round(high.item(), 2)
    (0.05, 0.95)
    """
    if not 0 < level < 1:
        raise InputError(f"an interval's level must be in (0, 1), got {level!r}")
    at = torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(values)
    rows = max(1, MOST_QUANTILE // max(1, values[:, :1].numel()))
    low, high = torch.cat([part.quantile(at, 0) for part in values.split(rows, 1)], 1)
    return low, high


def _no_numbers(p: Predicted) -> str:
    return (
        "this needs a prediction of numbers, as posterior.predict(x) gives it for a regression; "
        f"got a {type(p).__name__}"
    )


def how_many(draws: int | None) -> str:
    """
    >>> how_many(3), how_many(None)
    ('3 draws', 'draws not kept')
    """
    return "draws not kept" if draws is None else f"{draws} draws"
