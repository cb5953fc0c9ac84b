"""What targets may be, checked once, and those of them that are missing."""

from typing import Any, Literal

import torch
from torch import Tensor

from stochens.errors import InputError

Missing = Literal["refuse", "mask"]  # what to do with targets that are NaN
MOST_COUNT = 2.0**53  # whole numbers above it are not all there, even in float64


def check_missing(missing: object) -> None:
    """
    >>> check_missing("drop")
    Traceback (most recent call last):
    stochens.errors.InputError: missing must be 'refuse' or 'mask', got 'drop'
    """
    if missing not in ("refuse", "mask"):
        raise InputError(f"missing must be 'refuse' or 'mask', got {missing!r}")


def real_targets(y: Tensor, missing: Missing, what: str = "regression targets") -> Tensor:
    """[N] or [N, D] numbers as floating point [N, D]."""
    y = y.unsqueeze(1) if y.dim() == 1 else y
    if y.dim() != 2:
        raise InputError(f"{what} must be [N] or [N, D], got {tuple(y.shape)}")
    if y.is_complex():
        raise InputError(f"{what} must be real; give real and imaginary part as two")
    if not y.is_floating_point():
        y = y.to(torch.get_default_dtype())
    wrong = y.isinf() if missing == "mask" else ~y.isfinite()
    if bool(wrong.any()):
        row = int(wrong.any(1).nonzero()[0])
        remedy = "" if y[row].isinf().any() else "; missing='mask' leaves NaN out"
        raise InputError(f"{what} must be finite; row {row} is {y[row].tolist()}{remedy}")
    return y


def count_targets(y: Tensor, missing: Missing) -> Tensor:
    """[N] or [N, D] whole numbers from 0 on, as floating point [N, D]."""
    exact = not y.is_floating_point() and not y.is_complex()
    large = exact and y.numel() and float(y.max()) > MOST_COUNT
    y = real_targets(y, missing, "counts")
    wrong = (y < 0) | (y != y.round()) & ~y.isnan()
    if large or bool(wrong.any()) or bool((y > MOST_COUNT).any()):
        row = int((wrong | (y > MOST_COUNT)).any(1).double().argmax())
        raise InputError(
            f"counts must be whole numbers from 0 to 2^53; row {row} is {y[row].tolist()}"
        )
    return y


def present(y: Tensor) -> tuple[Tensor, Tensor]:
    """y with 0 where it is NaN, and where it is not: both as y."""
    there = ~y.isnan()
    return y.where(there, 0.0), there


def check_width(like: Any, outputs: Tensor, y: Tensor) -> None:
    """Whether outputs are [B, like.width(D)] for targets [N, D]."""
    want = like.width(y.shape[1])
    if outputs.dim() != 2 or outputs.shape[1] != want:
        raise InputError(
            f"for targets [N, {y.shape[1]}] the likelihood {like.name!r} needs a network with "
            f"outputs [B, {want}], got {tuple(outputs.shape)}"
        )
