"""What the outputs of a network mean: p(y | x, theta)."""

import abc
import dataclasses
from typing import Any, ClassVar

from torch import Tensor, nn

from stochens.errors import InputError
from stochens.likelihoods.draws import Draws


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

    @abc.abstractmethod
    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """-log p(y | x, theta), the mean over examples: [..., B, C], [..., B, ...] -> [...].

        weights [..., B]: the mean of weights * nll, for weights whose mean over all data is 1.
        """

    def distribution(self, outputs: Tensor) -> Draws:
        """What each draw says of y: outputs [S, B, C] -> Classes, Numbers or Draws of one's own.

        All of `predict`, `export` and `compare` follows from it.
        """
        raise InputError(_unstated(self))

    @abc.abstractmethod
    def check_targets(self, y: Tensor) -> Tensor:
        """The targets as `nll` wants them, or an InputError that names what is wrong."""

    @abc.abstractmethod
    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        """Whether the network's outputs [B, C] fit all the targets."""

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
        """What it was made with, by name: what a saved posterior keeps of it."""
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) else dict(vars(self))

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


def draws_of(likelihood: Likelihood, outputs: Tensor) -> Draws:
    """`likelihood.distribution`, held against the outputs [S, B, C]."""
    outputs = wide(outputs)
    found = likelihood.distribution(outputs)
    said = f"{type(likelihood).__qualname__}.distribution"
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
