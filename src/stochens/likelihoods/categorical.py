"""y is one of C classes: one label for each example, or one for each of its places."""

import dataclasses
import math
from typing import ClassVar

from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods.base import (
    Kernel,
    Likelihood,
    Targets,
    constant,
    mean_over_examples,
    over_places,
    wide,
)
from stochens.likelihoods.classes import Classes

IMAGE = 4  # axes of outputs from which on the classes are the second one, as convolutions have them
ROUNDING = 1e-4  # of probabilities that sum to 1


@dataclasses.dataclass(frozen=True)
class Categorical(Likelihood):
    """p(y | x) = softmax(outputs)_y: outputs [B, C] are logits, y [B] integers.

    Dense labels have one for each place: outputs [B, T, C] and y [B, T] (tokens), or outputs
    [B, C, H, W] and y [B, H, W] (segmentation). log p(y | x) is the sum over places then. Its
    posterior takes places of one example for independent; where they are not, it is too narrow,
    and `fit(kl_weight=...)` above 1 widens it.

    ignore_index: a label that is none (padding, unlabelled pixels). Such places add nothing; data
        that are all such leave the prior.
    class_weights: w [C], so that each label y counts w_y times: the posterior is that of
        prod_b p(y_b | x_b)^w_y, as a sample weight of w_y gives it, and the sum of the weights of
        all labels stands where N stood. That is no likelihood of these data, but one of data in
        which class c is w_c times as frequent, and so are the probabilities.
    class_axis: of the outputs; when None, 1 where they have four axes or more, else the last.

    >>> import torch
    >>> float(Categorical().nll(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])))
    0.6931...
    >>> padded = Categorical(ignore_index=-100).check_targets(torch.tensor([[0, 1, -100]]))
    >>> float(Categorical(ignore_index=-100).nll(torch.zeros(1, 1, 3, 2), padded[None]))
    1.386...
    """

    _: dataclasses.KW_ONLY
    ignore_index: int | None = None
    class_weights: tuple[float, ...] | None = None  # given as any sequence, or a tensor
    class_axis: int | None = None
    name: ClassVar[str] = "categorical"
    coarse: ClassVar[bool] = True
    logits: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"

    def __post_init__(self) -> None:
        if self.class_weights is not None:
            weights = tuple(float(w) for w in self.class_weights)
            object.__setattr__(self, "class_weights", weights)  # of a tensor, or of what JSON has
            if not weights or not all(0 <= w < math.inf for w in weights) or not any(weights):
                raise InputError(
                    f"class_weights must be numbers >= 0 that are not all 0, got {weights}"
                )
        if self.class_axis not in (None, 1, -1):
            raise InputError(
                "class_axis must be 1 (outputs [B, C, ...]), -1 (outputs [B, ..., C]) or None, got "
                f"{self.class_axis!r}"
            )
        if self.ignore_index is not None and not isinstance(self.ignore_index, int):
            raise InputError(
                f"ignore_index must be a whole number or None, got {self.ignore_index!r}"
            )

    def _classes_last(self, outputs: Tensor, leading: int) -> Tensor:
        """[..., B, C, H, W] as [..., B, H, W, C], with so many axes before B."""
        axes = outputs.dim() - leading
        axis = self.class_axis or (1 if axes >= IMAGE else -1)
        return outputs.movedim(leading + 1, -1) if axis == 1 and axes > 2 else outputs

    def distribution(self, outputs: Tensor) -> Classes:
        """softmax(outputs)"""
        return Classes(self._classes_last(outputs, 1).softmax(-1), self.ignore_index)

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """sum_places w_y -log softmax(outputs)_y

        Dense labels need the axis of members: outputs [M, B, ...] and y [M, B, ...].
        """
        logp = self._classes_last(wide(outputs), min(y.dim() - 1, 1)).log_softmax(-1)
        kept = None if self.ignore_index is None else y != self.ignore_index
        own = y if kept is None else y.where(kept, 0)
        terms = -logp.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        if self.class_weights is not None:
            terms = terms * constant(self.class_weights, terms.dtype, terms.device)[own]
        if kept is not None:
            terms = terms.where(kept, 0.0)
        return mean_over_examples(over_places(terms), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() == 0:
            raise InputError("labels must be [N], or [N, ...] for dense ones, got one number")
        if y.is_floating_point() or y.is_complex():
            raise InputError(f"labels must be integers, got {y.dtype}; {_of_floats(y)}")
        return y.long()

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        classes, last = self.classes(outputs), self._classes_last(outputs, 0)
        if last.shape[1:-1] != y.shape[1:]:
            raise InputError(_wrong_places(outputs, y, last))
        count = len(self.class_weights or ())
        if count not in (0, classes):
            raise InputError(f"class_weights are {count}, and the network has {classes} classes")
        real = y if self.ignore_index is None else y[y != self.ignore_index]
        low, high = (int(real.min()), int(real.max())) if real.numel() else (0, 0)
        if low < 0 or high >= classes:
            raise InputError(_out_of_range(low if low < 0 else high, classes))

    def classes(self, outputs: Tensor) -> int:
        if outputs.dim() < 2:
            raise InputError(f"the network must return logits [B, C], got {tuple(outputs.shape)}")
        return self._classes_last(outputs, 0).shape[-1]

    def kernel(self) -> Kernel | None:
        return "categorical" if self == Categorical() else None  # of this very class

    def advice(self, outputs: Tensor) -> str | None:
        """Of outputs that are probabilities already."""
        return ends_in_softmax(self._classes_last(outputs, 0))


@dataclasses.dataclass(frozen=True)
class SoftLabels(Likelihood):
    """E_y~labels log softmax(outputs)_y: outputs [B, C] are logits, y [B, C] probabilities, as of
    several people who label one example.

    Its posterior counts each example once, however many people have labelled it; sample weights
    say how many there were.

    >>> import torch
    >>> y = torch.tensor([[0.75, 0.25]])
    >>> float(SoftLabels().nll(torch.zeros(1, 2), y))
    0.6931...
    """

    name: ClassVar[str] = "soft-labels"
    coarse: ClassVar[bool] = True
    logits: ClassVar[bool] = True
    targets: ClassVar[Targets] = "shares"

    def distribution(self, outputs: Tensor) -> Classes:
        """softmax(outputs)"""
        return Classes(outputs.softmax(-1))

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """-sum_c y_c log softmax(outputs)_c"""
        logp = wide(outputs).log_softmax(-1)
        return mean_over_examples(-(y * logp).sum(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() != 2 or not y.is_floating_point():
            raise InputError(
                f"soft labels must be probabilities [N, C], got {y.dtype} {tuple(y.shape)}; for "
                "integers use likelihood='categorical'"
            )
        wrong = ~((y >= 0).all(1) & ((y.double().sum(1) - 1).abs() <= ROUNDING))  # NaN is wrong
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"soft labels must be >= 0 and sum to 1; row {row} is {y[row].tolist()}"
            )
        return y

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.dim() != 2 or outputs.shape[1] != y.shape[1]:
            raise InputError(
                f"for soft labels [N, {y.shape[1]}] the network must return logits "
                f"[B, {y.shape[1]}], got {tuple(outputs.shape)}"
            )

    def advice(self, outputs: Tensor) -> str | None:
        """Of outputs that are probabilities already."""
        return ends_in_softmax(outputs)


def ends_in_softmax(outputs: Tensor) -> str | None:
    """What is said of outputs [B, ..., C] that sum to 1."""
    if outputs.shape[-1] < 2 or bool((outputs < 0).any()):
        return None
    if float((outputs.double().sum(-1) - 1).abs().max()) > ROUNDING:
        return None
    return (
        "the network's outputs sum to 1: it seems to end in a softmax, which the likelihood "
        "applies again; let it return logits"
    )


def _of_floats(y: Tensor) -> str:
    """What to do with targets that are no integers."""
    if y.dim() == 2 and y.shape[1] > 1 and len(y):
        if bool(((y == 0) | (y == 1)).all() & (y.sum(1) == 1).all()):
            return f"each row is one-hot: use y.argmax(1), with a network of {y.shape[1]} outputs"
        if bool((y >= 0).all() & ((y.sum(1) - 1).abs() <= ROUNDING).all()):
            return "rows are probabilities: use likelihood='soft-labels'"
    return (
        "use y.long(), or likelihood='gaussian' for regression, which takes numbers [N] or [N, D]"
    )


def _wrong_places(outputs: Tensor, y: Tensor, last: Tensor) -> str:
    """Where labels are not one for each place of the outputs."""
    shapes = f"the network gives {tuple(outputs.shape)} for labels {tuple(y.shape)}"
    if outputs.dim() == 2:
        if y.dim() == 2 and y.shape[1] == 1:
            return f"labels must be [N], got {tuple(y.shape)}; use y.squeeze(1)"
        if y.dim() == 2 and bool(((y == 0) | (y == 1)).all() & (y.sum(1) == 1).all()):
            return (
                f"labels must be [N], got {tuple(y.shape)}; each row is one-hot: use y.argmax(1), "
                f"with a network of {y.shape[1]} outputs"
            )
        return (
            f"{shapes}, which is one prediction for each example: labels must be [N], or the "
            "network must return logits [B, ..., C]; for several yes or no use 'multilabel', for "
            "counts 'poisson'"
        )
    if y.dim() == 1:
        return f"for labels [N] the network must return logits [B, C], got {tuple(outputs.shape)}"
    other = outputs.movedim(1, -1) if last is outputs else outputs
    if other.shape[1:-1] == y.shape[1:]:
        axis = 1 if last is outputs else -1
        return f"{shapes}: classes are on axis {axis}; use stochens.Categorical(class_axis={axis})"
    wanted = "[B, C, H, W]" if last is not outputs else "[B, ..., C]"
    return f"{shapes}; there must be one label for each place of {wanted}"


def _out_of_range(wrong: int, classes: int) -> str:
    if classes == 1:
        return (
            f"label {wrong} is out of range: the network has one output, and two classes need two "
            "(logits, one for each class), or likelihood='binary'"
        )
    return (
        f"label {wrong} is out of range: the network has {classes} outputs, so labels must be 0 to "
        f"{classes - 1}; places without a label are for Categorical(ignore_index={wrong})"
    )
