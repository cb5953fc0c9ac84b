"""What each draw says of one number."""

from typing import Any

from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods import Predicted


def draw_moments(p: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance of y by each draw of a prediction of one target, each [S, B] in float64."""
    if not isinstance(p, Predicted):
        raise InputError(f"this is for what posterior.predict(x) gives, got a {type(p).__name__}")
    means, variances = p.draw_moments()
    if means.dim() != 3 or means.shape[2] != 1:
        raise InputError(
            f"this is for one target, and the prediction has draws {tuple(means.shape)}; "
            "improvement of several has no one meaning, so train on the one that counts"
        )
    if not bool(means.isfinite().all()):
        raise InputError("predictions are NaN or inf; drop the members that diverged")
    return means.detach().cpu().double()[..., 0], variances.detach().cpu().double()[..., 0]
