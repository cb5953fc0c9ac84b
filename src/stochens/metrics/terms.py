"""Metrics that average a term of each example, which can be had one by one and resampled."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec

import torch
from torch import Tensor

from stochens.errors import InputError

P = ParamSpec("P")

PER_EXAMPLE: dict[
    Callable[..., object], tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]
] = {}


def averages(
    terms: Callable[P, Tensor], average: Callable[[Tensor], Tensor] = torch.mean
) -> Callable[P, float]:
    """The metric average(terms), from a function for the terms [B], kept for `per_example`."""

    @wraps(terms)
    def metric(*args: P.args, **kwargs: P.kwargs) -> float:
        return average(terms(*args, **kwargs)).item()

    shown = signature(terms).replace(return_annotation=float)
    metric.__signature__ = shown  # type: ignore[attr-defined]
    PER_EXAMPLE[metric] = terms, average
    return metric


def per_example(metric: Callable[..., float], *arrays: Tensor) -> Tensor:
    """The terms [B] that `metric` averages (for rmse, squares): accuracy, nll, ...

    >>> probs, labels = torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])
    >>> from stochens.metrics import accuracy
    >>> per_example(accuracy, probs, labels)
    tensor([1., 0.], dtype=torch.float64)
    """
    if metric not in PER_EXAMPLE:
        known = ", ".join(getattr(known, "__name__", "") for known in PER_EXAMPLE)
        raise InputError(f"{metric} does not average terms of single examples; these do: {known}")
    return PER_EXAMPLE[metric][0](*arrays)
