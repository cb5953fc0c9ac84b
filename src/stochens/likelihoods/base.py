"""What the outputs of a network mean: p(y | x, theta)."""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.likelihoods.draws import Draws
from stochens.likelihoods.targets import Missing

# What y is in a table: one column with names of classes, a column of yes or no for each label, one
# with the share of each class, or one for each number.
Targets = Literal["classes", "labels", "shares", "numbers"]
Kernel = Literal["categorical", "gaussian-heteroscedastic"] | tuple[Literal["gaussian"], float]


class Likelihood(abc.ABC):
    """p(y | x, theta): the loss, and what predictions are made of. One's own is a subclass:

    >>> import torch
    >>> from stochens.likelihoods import Numbers
    >>> @dataclasses.dataclass(frozen=True)
    ... class Poisson(Likelihood):
    ...     name: ClassVar[str] = "poisson"
    ...
    ...     def distribution(self, outputs):  # logarithms of the rates, [S, B, D]
    ...         return Numbers(torch.distributions.Poisson, rate=outputs.exp())
    ...
    ...     def nll(self, outputs, y, weights=None):
    ...         terms = (outputs.exp() - y * outputs + (y + 1).lgamma()).sum(-1)  # [..., B]
    ...         return mean_over_examples(terms, weights)
    ...
    ...     def check_targets(self, y):
    ...         return y.reshape(len(y), -1).float()
    ...
    ...     def check_outputs(self, outputs, y):
    ...         assert outputs.shape[1:] == y.shape[1:]
    >>> Poisson().distribution(torch.zeros(5, 3, 1)).each.mean.shape  # [S, B, D]
    torch.Size([5, 3, 1])
    """

    name: ClassVar[str]
    in_units: ClassVar[bool] = False  # whether outputs are in the targets' own units
    coarse: ClassVar[bool] = False  # whether outputs may be off by half a percent, as in bfloat16
    logits: ClassVar[bool] = False  # whether outputs are logits, which a temperature divides
    usual_method: ClassVar[str] = "dropout"  # of `fit`, where none is named
    least_squares: ClassVar[bool] = False  # whether a learned noise is the root of squared errors
    targets: ClassVar[Targets] = "numbers"  # of a file with columns
    ordered: ClassVar[bool] = False  # whether classes have an order, which names may not tell
    missing: Missing = "refuse"  # what is done with targets that are NaN

    @abc.abstractmethod
    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """-log p(y | x, theta), the mean over examples: [M, B, C], [M, B, ...] -> [M], and
        [B, C], [B] -> [] where that is unambiguous.

        weights [..., B]: the mean of weights * nll, for weights whose mean over all data is 1.
        """

    def distribution(self, outputs: Tensor) -> Draws:
        """What each draw says of y: outputs [S, B, C] -> Classes, Numbers or Draws of one's own.

        All of `predict`, `export` and `compare` follows from it.
        """
        raise InputError(_unstated(self))

    def tempered(self, outputs: Tensor, temperature: float) -> Draws:
        """The same at the temperature that `stochens.calibration.fit_temperature` found: classes
        divide their logits by it, numbers stretch the distances from their mean by it."""
        if self.logits:
            return self.distribution(outputs / temperature)
        own = type(self).__qualname__
        raise InputError(
            f"the likelihood {own} does not say what a temperature does to its predictions: set "
            f"{own}.logits = True where outputs are logits, which are divided by it, or write "
            f"{own}.tempered(outputs, temperature), which returns what distribution does"
        )

    @abc.abstractmethod
    def check_targets(self, y: Tensor) -> Tensor:
        """The targets as `nll` wants them, or an InputError that names what is wrong."""

    @abc.abstractmethod
    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        """Whether the network's outputs [B, C] fit all the targets."""

    def advice(self, outputs: Tensor) -> str | None:
        """A warning about the network's first outputs [B, ...], before training; None: all well."""
        return None

    def width(self, targets: int) -> int:
        """How many outputs the user's network needs for D targets [N, D]."""
        raise InputError(f"the likelihood {self.name!r} does not say how many outputs it needs")

    def classes(self, outputs: Tensor) -> int:
        """How many classes a network with outputs [B, ...] tells apart, where targets are classes.

        >>> from stochens.likelihoods import Ordinal
        >>> Ordinal().classes(torch.zeros(5, 3))
        4
        """
        raise InputError(f"the likelihood {self.name!r} has no classes")

    def kernel(self) -> Kernel | None:
        """What the kernels for whole networks call it; None where they know nothing of it, as of
        ignored labels, weights of classes, missing targets, or a subclass."""
        return None

    @property
    def learns_noise(self) -> bool:
        """Whether the spread of y may be learned: not where it was given."""
        return True

    def noise_parameter(self) -> str | None:
        """Which of the parameters that it `adds` is the log variance of Gaussian noise, [D]."""
        return None

    def prepare(self, net: nn.Module, y: Tensor) -> nn.Module:
        """The network with whatever parameters the likelihood adds to it, which `adds` names.

        Of y [N, ...] only the shape counts. When a posterior is loaded, the first of the added
        parameters stands in for it: one number for each target, [D], or one for all, [].
        """
        return net

    def adds(self) -> tuple[str, ...]:
        """The names of the parameters that `prepare` adds to the network."""
        return ()

    def options(self) -> dict[str, Any]:
        """What it was made with, by name: what a saved posterior keeps of it. Of fields that are
        keywords alone, those that are not at their default."""
        own: Any = self
        if not dataclasses.is_dataclass(own):
            return dict(vars(own))
        unsaid = {f.name: f.default for f in dataclasses.fields(own) if f.kw_only}
        said = dataclasses.asdict(own).items()  # type: ignore[arg-type]
        return {n: value for n, value in said if n not in unsaid or value != unsaid[n]}

    def __eq__(self, other: object) -> bool:
        """Two of one class with the same options mean the same: members of both can be joined."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))


def _unstated(likelihood: Likelihood) -> str:
    own = type(likelihood).__qualname__
    return (
        f"the likelihood {own} does not say what it predicts: write {own}.distribution(outputs), "
        "which takes [S, B, C] and returns stochens.likelihoods.Classes(probs) or "
        "Numbers(torch.distributions.Poisson, rate=...)"
    )


def refuse_unstated(likelihood: Likelihood) -> None:
    """Before training, since nothing could be predicted after it."""
    if type(likelihood).distribution is Likelihood.distribution:
        raise InputError(_unstated(likelihood))


def draws_of(likelihood: Likelihood, outputs: Tensor, temperature: float = 1.0) -> Draws:
    """`likelihood.distribution`, or `tempered`, held against the outputs [S, B, C]."""
    outputs = wide(outputs)
    said = f"{type(likelihood).__qualname__}.distribution"
    if temperature == 1:
        found = likelihood.distribution(outputs)
    else:
        found = likelihood.tempered(outputs, temperature)
        said = f"{type(likelihood).__qualname__}.tempered"
    if not isinstance(found, Draws):
        raise InputError(
            f"{said} must return stochens.likelihoods.Classes(probs) or Numbers(...), got a "
            f"{type(found).__name__}"
        )
    for p in found.parameters:
        if p.shape[:2] != outputs.shape[:2]:
            raise InputError(
                f"{said} must keep the first two axes of the outputs {tuple(outputs.shape)}, draws "
                f"and examples, in each of its parameters; one is {tuple(p.shape)}"
            )
    return found


def check_distribution(likelihood: Likelihood, outputs: Tensor) -> None:
    """Whether predictions can be made of the outputs [B, C]; said before training."""
    found = draws_of(likelihood, outputs.unsqueeze(0))
    found.terms(*found.centre())


def wide(outputs: Tensor) -> Tensor:
    """bf16 is too coarse for logarithms."""
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs


def mean_over_examples(nll: Tensor, weights: Tensor | None) -> Tensor:
    """(1/B) sum_b w_b nll_b: [..., B] -> [...]. Not divided by the batch's own sum of weights,
    which would be biased: a batch of light rows would count as much as one of heavy rows."""
    return (nll if weights is None else weights * nll).mean(-1)


def over_places(terms: Tensor) -> Tensor:
    """The sum over the places of each example: [M, B, ...] -> [M, B], and [B] as it is."""
    return terms.flatten(2).sum(2) if terms.dim() > 2 else terms


@functools.lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor, made once: a CUDA graph cannot hold a copy from the host."""
    return torch.tensor(values, dtype=dtype, device=device)


def limited(logs: Tensor) -> Tensor:
    """Logarithms of scales and rates, held to where their squares and gradients are still numbers:
    +-60 in float32, +-482 in float64.

    >>> limited(torch.tensor([-1e4, 3.0]))
    tensor([-60.3..., 3.0...])
    """
    most = 0.68 * math.log(torch.finfo(logs.dtype).max)
    return logs.clamp(-most, most)
