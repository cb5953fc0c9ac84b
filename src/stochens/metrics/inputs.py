"""What metrics take, checked once at the boundary and turned to float64."""

import torch
from torch import Tensor

from stochens.errors import InputError

Pair = tuple[Tensor, Tensor]
SUM_TOLERANCE = 1e-3  # on sum_c p = 1: far above float32 rounding, far below any logits


def checked_probs(probs: Tensor, name: str = "probs", axes: str = "[B, C]") -> Tensor:
    """Probabilities with these axes, in float64; anything else is refused."""
    shape = tuple(probs.shape)
    if probs.ndim != axes.count(",") + 1 or 0 in shape:
        hint = {
            ("[B, C]", 1): f"for two classes, torch.stack([1 - {name}, {name}], -1)",
            ("[B, C]", 3): f"did you mean {name}.mean(0)?",
            ("[S, B, C]", 2): f"did you average the draws? One draw is {name}[None]",
        }.get((axes, probs.ndim), "no axis may be empty or missing")
        raise InputError(f"{name} must be {axes}, got {shape}; {hint}")
    if not probs.is_floating_point():
        raise InputError(f"{name} must be floating point, got {probs.dtype}; pass probabilities")
    # Rounding the entries to their dtype moves the sum by up to eps / 2: 0.004 in bfloat16.
    tolerance = max(SUM_TOLERANCE, torch.finfo(probs.dtype).eps)
    probs = probs.detach().double()
    total = probs.sum(-1)
    if not total.isfinite().all():
        bad = f"{int((~total.isfinite()).sum())} of {total.numel()} rows"
        raise InputError(f"{name} {shape} has NaN or inf in {bad}; drop the members that diverged")
    if probs.min() < 0 or (total - 1).abs().max() > tolerance:
        raise InputError(
            f"{name} {shape} must be >= 0 and sum to one over the last axis, got a minimum of "
            f"{probs.min():.4g} and sums from {total.min():.4g} to {total.max():.4g}; "
            f"for logits, pass {name}.softmax(-1)"
        )
    return probs


def with_labels(probs: Tensor, labels: Tensor) -> Pair:
    probs = checked_probs(probs)
    size, classes = probs.shape
    if labels.shape != (size,):
        shapes = f"labels must be [B] = ({size},), got {tuple(labels.shape)}"
        raise InputError(f"{shapes}; {_other_labels(labels, size, classes)}")
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"labels must be integers, got {labels.dtype}; pass labels.long()")
    labels = labels.to(probs.device, torch.long)
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"labels must lie in 0..{classes - 1} for probs {tuple(probs.shape)}, got "
            f"{labels.min()}..{labels.max()}; drop or renumber the other classes"
        )
    return probs, labels


def _other_labels(labels: Tensor, size: int, classes: int) -> str:
    """What to do with labels that are not [B], for probs [B, C]."""
    if labels.shape == (size, 1):
        return "use labels.squeeze(1)"
    if labels.shape == (size, classes) and _is_one_hot(labels):
        return "each row is one-hot: use labels.argmax(1)"
    return f"there must be one label for each row of probs ({size}, {classes})"


def _is_one_hot(labels: Tensor) -> bool:
    return bool(((labels == 0) | (labels == 1)).all() & (labels.sum(1) == 1).all())


def with_reference(probs: Tensor, reference: Tensor, axes: str = "[B, C]") -> Pair:
    names = ("probs", "reference") if axes == "[B, C]" else ("draws", "reference_draws")
    probs = checked_probs(probs, names[0], axes)
    reference = checked_probs(reference, names[1], axes).to(probs.device)
    if probs.shape[-2:] != reference.shape[-2:]:  # the numbers of draws may differ
        shapes = f"{tuple(probs.shape)} and {tuple(reference.shape)}"
        raise InputError(f"{' and '.join(names)} must share [B, C], got {shapes}; same inputs?")
    return probs, reference


def checked_real(tensor: Tensor, name: str, like: Tensor) -> Tensor:
    """`tensor` in float64 where `like` is, whose shape it must have; NaN is refused."""
    if tensor.shape != like.shape or tensor.numel() * tensor.ndim == 0 or tensor.isnan().any():
        raise InputError(
            f"{name} must be {tuple(like.shape)}, not empty and without NaN, got "
            f"{tuple(tensor.shape)} with {int(tensor.isnan().sum())} NaN; "
            f"one output is {name}[..., None], one shared value {name}.expand(...)"
        )
    return tensor.detach().to(like.device, torch.double)


def with_targets(means: Tensor, y: Tensor) -> Pair:
    if means.ndim != 3:
        hint = "one Gaussian is means[None], one output D = 1"
        raise InputError(f"means must be [S, B, D], got {tuple(means.shape)}; {hint}")
    means = checked_real(means, "means", means)
    return means, checked_real(y, "y", means[0])
