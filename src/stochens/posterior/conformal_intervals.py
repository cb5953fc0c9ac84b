"""Intervals of numbers that hold the true one as often as they say."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from stochens.errors import InputError, check_known
from stochens.likelihoods import Predicted
from stochens.posterior.conformal import exact, group_names, group_thresholds, of_each, threshold

Score = Literal["absolute", "normalized", "quantile"]
SCORES = ("absolute", "normalized", "quantile")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConformalIntervals:
    """Intervals, by `conformal_intervals`. Call it with a prediction of B inputs; what comes back
    is (low, high), each [B, D].

    Its fields are plain numbers, words and tuples: dataclasses.asdict makes JSON of it, and
    ConformalIntervals(**fields) is the same again.

    >>> intervals = ConformalIntervals(alpha=0.1, score="absolute", thresholds=((0.5,),))
    >>> [end.tolist() for end in intervals(torch.tensor([[1.0], [2.0]]))]
    [[[0.5], [1.5]], [[1.5], [2.5]]]
    """

    alpha: float
    score: Score
    thresholds: tuple[tuple[float, ...], ...]  # of all or of each group: one for each target
    groups: tuple[Any, ...] | None = None  # their names

    def __call__(self, p: Predicted | Tensor, *, groups: Any = None) -> tuple[Tensor, Tensor]:
        """p: a prediction of numbers, or for "absolute" the mean [B, D]; groups: of each example,
        where thresholds are."""
        low, high, scale = ends(p, self.score, self.alpha)
        if self.groups is not None:
            by_group = dict(zip(self.groups, self.thresholds, strict=True))
            limit = torch.tensor(of_each(by_group, groups, len(low)), dtype=torch.float64)
        elif groups is not None:
            raise InputError("these intervals were made without groups; call them without")
        else:
            limit = torch.tensor(self.thresholds, dtype=torch.float64)  # [1, D]
        if limit.shape[1] != low.shape[1]:
            raise InputError(
                f"these intervals are of {limit.shape[1]} targets, and the prediction of "
                f"{low.shape[1]}"
            )
        return low - limit * scale, high + limit * scale


def conformal_intervals(
    p: Predicted | Tensor,
    y: Tensor,
    *,
    alpha: float = 0.1,
    score: Score = "normalized",
    groups: Any = None,
) -> ConformalIntervals:
    """Intervals that hold y with probability 1 - alpha or more, from held-out examples.

    p, y: a prediction of numbers and the targets [n] or [n, D] of examples that were used for
        nothing else: not for training, and not for the temperature.
    score: "absolute" (|y - mean|: all intervals are as wide), "normalized" (|y - mean| / std: as
        wide as the posterior is unsure) or "quantile" (max(low - y, y - high), where low and high
        are the predictive quantiles alpha/2 and 1 - alpha/2; conformalized quantile regression, as
        MAPIE's with symmetric_correction=True).
    groups: what each example is of, and 1 - alpha holds in every group (Mondrian).

    The threshold is the ceil((n + 1) (1 - alpha))-th smallest score. Where held-out and new
    examples are exchangeable, a new y is in its interval with probability 1 - alpha at least, and
    1 - alpha + 1/(n + 1) at most where scores have no ties; of D targets each one by itself, not
    all at once.

    >>> y = torch.arange(1.0, 20.0)  # [19]
    >>> conformal_intervals(torch.zeros(19, 1), y, alpha=0.1, score="absolute").thresholds
    ((18.0,),)
    """
    check_known("score", score, SCORES)
    exact("alpha", alpha)
    low, high, scale = ends(p, score, alpha)
    y = torch.as_tensor(y).detach().cpu().double()
    y = y.unsqueeze(1) if y.dim() == 1 else y
    if y.shape != low.shape:
        raise InputError(f"targets must be {tuple(low.shape)}, got {tuple(y.shape)}")
    if not bool(y.isfinite().all()):
        bad = int((~y.isfinite()).any(1).sum())
        raise InputError(f"targets must be finite; {bad} of {len(y)} rows have NaN or inf")
    scores = torch.maximum(low - y, y - high) / scale  # [n, D]
    if groups is None:
        found = {None: threshold(scores, alpha)}
    else:
        found = group_thresholds(scores, alpha, group_names(groups, len(scores)))
    return ConformalIntervals(
        alpha=float(alpha),
        score=score,
        thresholds=tuple(tuple(t.tolist()) for t in found.values()),
        groups=None if groups is None else tuple(found),
    )


def ends(p: Any, score: Score, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """What intervals are widened from, and by how much a threshold of 1 widens them: [B, D] each,
    in float64."""
    if score == "absolute":
        mean = _numbers(p if isinstance(p, Tensor) else p.mean, "the mean")
        return mean, mean, torch.ones_like(mean)
    if not isinstance(p, Predicted):
        raise InputError(
            f"score={score!r} needs a prediction of numbers, as posterior.predict(x) gives it, got "
            f"{type(p).__name__}; score='absolute' takes the mean [B, D]"
        )
    if score == "quantile":
        low, high = (_numbers(p.quantile(q), "a quantile") for q in (alpha / 2, 1 - alpha / 2))
        return low, high, torch.ones_like(low)
    mean, std = _numbers(p.mean, "the mean"), _numbers(p.std, "the standard deviation")
    if not bool((std > 0).all()):
        raise InputError("a predictive standard deviation is 0; use score='absolute'")
    return mean, mean, std


def _numbers(values: Tensor, what: str) -> Tensor:
    if values.dim() != 2 or not bool(values.isfinite().all()):
        raise InputError(f"{what} must be finite numbers [B, D], got {tuple(values.shape)}")
    return values.detach().cpu().double()
