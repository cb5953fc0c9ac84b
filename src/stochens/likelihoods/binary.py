"""y is 0 or 1, by one logit."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from stochens.errors import InputError
from stochens.likelihoods.base import (
    Likelihood,
    Targets,
    constant,
    mean_over_examples,
    over_places,
    wide,
)
from stochens.likelihoods.categorical import Categorical
from stochens.likelihoods.classes import Classes


@dataclasses.dataclass(frozen=True)
class Binary(Likelihood):
    """p(y = 1 | x) = 1 / (1 + exp(-output)): outputs [B, 1] or [B] are logits, y [B] is 0 or 1.

    Dense labels have one for each place: outputs [B, 1, H, W] and y [B, H, W]. Predictions have
    two classes, [B, 2], as those of "categorical" have.

    ignore_index, class_weights (of 0 and of 1): as in Categorical.

    >>> y = Binary().check_targets(torch.tensor([True, False]))
    >>> float(Binary().nll(torch.zeros(2, 1), y))
    0.6931...
    """

    ignore_index: int | None = None
    class_weights: tuple[float, ...] | None = None
    name: ClassVar[str] = "binary"
    coarse: ClassVar[bool] = True
    logits: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"

    def __post_init__(self) -> None:
        checked = Categorical(ignore_index=self.ignore_index, class_weights=self.class_weights)
        object.__setattr__(self, "class_weights", checked.class_weights)
        if checked.class_weights is not None and len(checked.class_weights) != 2:
            raise InputError(
                f"class_weights must be two, of 0 and of 1, got {checked.class_weights}"
            )

    def distribution(self, outputs: Tensor) -> Classes:
        """1 / (1 + exp(output)) and 1 / (1 + exp(-output)), so that neither is 1 minus a 1."""
        logits = _one(outputs, 1)
        return Classes(torch.stack([(-logits).sigmoid(), logits.sigmoid()], -1), self.ignore_index)

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """log(1 + exp(-logit)) where y is 1, log(1 + exp(logit)) where it is 0.

        Dense labels need the axis of members: outputs [M, B, ...] and y [M, B, ...].
        """
        logits = _one(wide(outputs), min(y.dim() - 1, 1))
        kept = None if self.ignore_index is None else y != self.ignore_index
        own = y if kept is None else y.where(kept, 0)
        terms = softplus((1 - 2 * own) * logits)
        if self.class_weights is not None:
            terms = terms * constant(self.class_weights, terms.dtype, terms.device)[own]
        if kept is not None:
            terms = terms.where(kept, 0.0)
        return mean_over_examples(over_places(terms), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        y = y.squeeze(1) if y.dim() > 1 and y.shape[1] == 1 else y
        zero_or_one = (y == 0) | (y == 1)
        wrong = (
            ~zero_or_one if self.ignore_index is None else ~zero_or_one & (y != self.ignore_index)
        )
        if y.dim() == 0 or bool(wrong.any()):
            found = sorted({float(v) for v in y[wrong].flatten()[:3]}) if y.dim() else []
            raise InputError(
                f"labels must be 0 or 1, one for each example, got {found or tuple(y.shape)}; for "
                "more classes use 'categorical', and for places without a label ignore_index"
            )
        return y.long()

    def classes(self, outputs: Tensor) -> int:
        if outputs.dim() > 1 and outputs.shape[1] != 1:
            raise InputError(
                f"the network must return one logit [B, 1] or [B], got {tuple(outputs.shape)}; for "
                "one logit for each class use 'categorical'"
            )
        return 2

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if _one(outputs, 0).shape[1:] != y.shape[1:]:
            more = (
                "; for several yes or no of each example use 'multilabel', for one logit for each "
                "class 'categorical'"
            )
            raise InputError(
                f"for labels {tuple(y.shape)} the network must return one logit each, got "
                f"{tuple(outputs.shape)}{more if outputs.dim() == 2 else ''}"
            )


def _one(outputs: Tensor, leading: int) -> Tensor:
    """[..., B, 1, ...] as [..., B, ...], with so many axes before B."""
    axis = leading + 1
    return outputs.squeeze(axis) if outputs.dim() > axis and outputs.shape[axis] == 1 else outputs
