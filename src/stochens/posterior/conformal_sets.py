"""Sets of classes that hold the true one as often as they say."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from stochens.checks import not_negative, whole, whole_seed
from stochens.errors import InputError, check_known
from stochens.likelihoods import Predicted
from stochens.metrics.inputs import with_labels
from stochens.posterior.conformal import (
    exact,
    group_names,
    group_thresholds,
    of_each,
    probs_of,
    threshold,
)
from stochens.randomness.seeds import derive

Score = Literal["lac", "aps", "raps"]
Last = Literal["include", "randomized"]
SCORES, LASTS = ("lac", "aps", "raps"), ("include", "randomized")
FITTING, PREDICTING = 0, 1  # streams of random numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConformalSets:
    """Sets of classes, by `conformal_sets`. Call it with a prediction or probs [B, C]; what comes
    back says of each class whether it is in the set, [B, C].

    Its fields are plain numbers, words and tuples: dataclasses.asdict makes JSON of it, and
    ConformalSets(**fields) is the same again.

    >>> sets = ConformalSets(alpha=0.1, score="lac", thresholds=(0.6,))
    >>> sets(torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]]))
    tensor([[ True, False, False],
            [ True,  True, False]])
    """

    alpha: float
    score: Score
    thresholds: tuple[float, ...]  # one; or one for each group; or one for each class
    groups: tuple[Any, ...] | None = None  # their names
    of_classes: bool = False
    last: Last = "include"
    penalty: float = 0.0
    free_ranks: int = 1
    seed: int = 0

    def __call__(self, p: Predicted | Tensor, *, groups: Any = None) -> Tensor:
        """p: a prediction or probs [B, C]; groups: of each example, where thresholds are."""
        probs = probs_of(p)
        if self.groups is not None:
            by_group = dict(zip(self.groups, self.thresholds, strict=True))
            each = of_each(by_group, groups, len(probs))
            limit = torch.tensor(each, dtype=torch.float64).unsqueeze(1)  # [B, 1]
        elif groups is not None:
            raise InputError("these sets were made without groups; call them without")
        else:
            limit = torch.tensor(self.thresholds, dtype=torch.float64)  # [1] or [C]
            if self.of_classes and len(limit) != probs.shape[1]:
                raise InputError(
                    f"these sets are of {len(limit)} classes, and probs of {probs.shape[1]}"
                )
        if self.score == "lac":
            return 1 - probs <= limit
        above, upto = summed(probs, self.penalty, self.free_ranks)
        if self.last == "include":
            return above <= limit
        u = uniform(len(probs), self.seed, PREDICTING)
        return upto - u * probs <= limit


def conformal_sets(
    p: Predicted | Tensor,
    y: Tensor,
    *,
    alpha: float = 0.1,
    score: Score = "lac",
    groups: Any = None,
    last: Last = "include",
    penalty: float = 0.01,
    free_ranks: int = 5,
    seed: int = 0,
) -> ConformalSets:
    """Sets that hold the true class with probability 1 - alpha or more, from held-out examples.

    p, y: a prediction (or probs [n, C]) and the labels [n] of examples that were used for nothing
        else: not for training, and not for the temperature.
    score: "lac" (1 - p_y, the smallest sets on average), "aps" (the probability of all classes up
        to y, the likeliest first: larger sets where it is hard) or "raps" (aps and `penalty` for
        each class after the first `free_ranks`). As MAPIE has them; so aps and raps take u p_y
        off, u from U(0, 1) by `seed`.
    last: "include" has the class at which the sum passes the threshold, so that no set is empty and
        coverage is a little above 1 - alpha; "randomized" has it as often as is exact.
    groups: what each example is of, and 1 - alpha holds in every group (Mondrian); "class" for the
        true classes themselves.

    The threshold is the ceil((n + 1) (1 - alpha))-th smallest score. Where held-out and new
    examples are exchangeable (drawn alike, in any order), a new y is in its set with probability
    1 - alpha at least, and 1 - alpha + 1/(n + 1) at most for "lac" without ties and for
    "randomized". That is over the draw of both. Given these held-out examples, coverage has the law
    Beta(k, n + 1 - k), k the rank above: about 0.90 +- 0.03 of n = 100.

    >>> probs = torch.tensor([[0.7, 0.3], [0.2, 0.8]] * 10)
    >>> sets = conformal_sets(probs, torch.tensor([0, 1] * 10), alpha=0.1)
    >>> [round(t, 4) for t in sets.thresholds]
    [0.3]
    """
    check_known("score", score, SCORES)
    check_known("last", last, LASTS)
    not_negative(penalty=penalty)
    whole(free_ranks=free_ranks)
    whole_seed(seed)
    exact("alpha", alpha)
    probs, labels = with_labels(probs_of(p), torch.as_tensor(y).cpu())
    penalty, free_ranks = (float(penalty), int(free_ranks)) if score == "raps" else (0.0, 1)
    own = probs.gather(1, labels.unsqueeze(1))  # [n, 1]
    if score == "lac":
        scores = 1 - own
    else:
        _, upto = summed(probs, penalty, free_ranks)
        scores = upto.gather(1, labels.unsqueeze(1)) - uniform(len(probs), seed, FITTING) * own
    made: dict[str, Any] = {
        "alpha": float(alpha),
        "score": score,
        "last": last,
        "penalty": penalty,
        "free_ranks": free_ranks,
        "seed": int(seed),
    }
    scores = scores.squeeze(1)
    if groups is None:
        return ConformalSets(thresholds=(threshold(scores, alpha).item(),), **made)
    if isinstance(groups, str):
        check_known("groups", groups, ("class",))
        each = (
            threshold(scores[labels == c], alpha, of=f" of class {c}").item()
            for c in range(probs.shape[1])
        )
        return ConformalSets(thresholds=tuple(each), of_classes=True, **made)
    found = group_thresholds(scores, alpha, group_names(groups, len(scores)))
    limits = tuple(t.item() for t in found.values())
    return ConformalSets(thresholds=limits, groups=tuple(found), **made)


def summed(probs: Tensor, penalty: float, free_ranks: int) -> tuple[Tensor, Tensor]:
    """Of each class [B, C], the likeliest first: the sum of all classes above it, and up to it,
    each with the penalty of its rank.

        upto_(r) = sum_{j <= r} p_(j) + penalty max(0, r - free_ranks),  above_(r) = upto_(r - 1)

    >>> above, upto = summed(torch.tensor([[0.2, 0.5, 0.3]]), 0.0, 1)
    >>> [round(v, 4) for v in above[0].tolist()], [round(v, 4) for v in upto[0].tolist()]
    ([0.8, 0.0, 0.5], [1.0, 0.5, 0.8])
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(1, probs.shape[1] + 1, dtype=probs.dtype)
    upto = ordered.cumsum(-1) + penalty * (ranks - free_ranks).clamp_min(0)
    above = torch.cat([torch.zeros_like(upto[:, :1]), upto[:, :-1]], 1)
    return (
        torch.empty_like(probs).scatter_(1, order, above),
        torch.empty_like(probs).scatter_(1, order, upto),
    )


def uniform(rows: int, seed: int, stream: int) -> Tensor:
    """One number from U(0, 1) for each example, [B, 1]."""
    generator = torch.Generator().manual_seed(derive(int(seed), stream))
    return torch.rand(rows, 1, generator=generator, dtype=torch.float64)
