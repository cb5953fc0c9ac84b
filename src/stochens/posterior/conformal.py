"""The quantile behind every conformal promise, for all examples or for each group of them."""

import fractions
import math
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods import Predicted
from stochens.metrics.inputs import checked_probs


def exact(name: str, value: Any) -> fractions.Fraction:
    """A number in (0, 1) as it was written: 0.1 is one tenth, so that 10 * (1 - 0.1) is 9 and its
    ceiling is not 10.

    >>> exact("alpha", 0.1)
    Fraction(1, 10)
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name} must be a number in (0, 1), got {value!r}")
    return fractions.Fraction(str(float(value)))


def smallest_calibration_set(alpha: float) -> int:
    """How many held-out examples (of each group) a conformal promise needs: n >= (1 - alpha) /
    alpha, so that ceil((n + 1) (1 - alpha)) <= n.

    >>> smallest_calibration_set(0.1), smallest_calibration_set(0.05), smallest_calibration_set(0.3)
    (9, 19, 3)
    """
    rate = exact("alpha", alpha)
    return math.ceil((1 - rate) / rate)


def rank(n: int, alpha: float, *, of: str = "", name: str = "alpha") -> int:
    """k = ceil((n + 1) (1 - alpha)): the k-th smallest of n scores is the threshold.

    >>> rank(9, 0.1), rank(99, 0.1), rank(100, 0.1)
    (9, 90, 91)
    """
    if n < (needed := smallest_calibration_set(alpha)):
        raise InputError(
            f"{name} = {alpha:g} needs at least {needed} held-out examples{of}, got {n}; give "
            f"more, or {name} of at least {1 / (n + 1):.2g}"
        )
    return math.ceil((n + 1) * (1 - exact("alpha", alpha)))


def threshold(scores: Tensor, alpha: float, *, of: str = "") -> Tensor:
    """The k-th smallest of scores [n, ...] along the first axis, k = ceil((n + 1) (1 - alpha))."""
    k = rank(len(scores), alpha, of=of)
    return scores.sort(0).values[k - 1]


def group_names(groups: Any, rows: int) -> list[Hashable]:
    """One for each example: numbers or words."""
    try:
        values = groups.tolist() if isinstance(groups, Tensor) else [*groups]
    except TypeError:
        raise InputError(
            f"groups must hold one name or number for each example, got {groups!r}"
        ) from None
    names = [value.item() if hasattr(value, "item") else value for value in values]
    if len(names) != rows or not all(isinstance(name, Hashable) for name in names):
        raise InputError(
            f"groups must hold one name or number for each of the {rows} examples, got {len(names)}"
        )
    return names


def group_thresholds(scores: Tensor, alpha: float, groups: Sequence[Hashable]) -> dict[Any, Tensor]:
    """Of scores [n, ...], by group, in the order in which groups come first."""
    found = {}
    for name in dict.fromkeys(groups):
        own = torch.tensor([g == name for g in groups])
        found[name] = threshold(scores[own], alpha, of=f" of group {name!r}")
    return found


def of_each(by_group: Mapping[Any, Any], groups: Any, rows: int) -> list[Any]:
    """The thresholds of some examples, by their groups."""
    if groups is None:
        raise InputError("the thresholds are of groups: pass groups=, the group of each example")
    names = group_names(groups, rows)
    if unknown := [name for name in names if name not in by_group]:
        raise InputError(
            f"group {unknown[0]!r} was not among the held-out examples, so that nothing is known "
            f"of it; known: {', '.join(map(repr, by_group))}"
        )
    return [by_group[name] for name in names]


def probs_of(p: Predicted | Tensor) -> Tensor:
    """Probabilities [B, C] in float64, of a prediction or as they are given."""
    return checked_probs(p.mean if isinstance(p, Predicted) else torch.as_tensor(p)).cpu()
