"""What to answer and what not to: thresholds on confidence, and alarms for foreign inputs.

>>> import torch, stochens
>>> generator = torch.Generator().manual_seed(0)
>>> probs = torch.rand(2000, 1, generator=generator) / 2 + 0.5
>>> probs = torch.cat([probs, 1 - probs], 1)  # [B, 2], and right as often as it says
>>> y = (torch.rand(2000, generator=generator) > probs[:, 0]).long()
>>> rule = stochens.selection.threshold_for_error(probs, y, error=0.15)
>>> rule.accepts(probs).float().mean() > 0.3  # without it one answer in four is wrong
tensor(True)
"""

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor

from stochens.checks import positive, whole
from stochens.errors import Failed, InputError, check_known
from stochens.likelihoods import Predicted
from stochens.metrics.information import entropy
from stochens.metrics.inputs import with_labels
from stochens.posterior.binomial import binomial_cdf, tolerance_rank, upper_bound
from stochens.posterior.conformal import exact, probs_of, rank
from stochens.posterior.outputs import outputs_of

__all__ = [
    "Alarm",
    "Rejection",
    "energy",
    "ood_score",
    "outputs_of",
    "threshold_for_coverage",
    "threshold_for_error",
    "threshold_for_false_alarms",
]

Score = Literal["max_prob", "entropy", "mutual_information"]
SCORES = ("max_prob", "entropy", "mutual_information")
CANDIDATES = 20  # thresholds that are tried for a wanted error: more are finer, and cost more


def ood_score(p: Predicted | Tensor, score: Score = "entropy") -> Tensor:
    """How foreign each input looks, [B]: larger is more so.

    "max_prob" is 1 - max_c p, "entropy" H[mean p] in nats: the whole uncertainty, which hard inputs
    have too. "mutual_information" is what the members disagree about, and needs a prediction, not
    probs. `energy` is another, of logits.

    >>> import torch
    >>> ood_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    check_known("score", score, SCORES)
    probs = probs_of(p)
    if score == "entropy":
        return entropy(probs)
    if score == "max_prob":
        return 1 - probs.amax(-1)
    if isinstance(p, Tensor):
        raise InputError(
            "mutual information is of a prediction, posterior.predict(x); probs [B, C] are the "
            "mean of its members, which does not tell how they differ"
        )
    return p.mutual_information.detach().cpu().double()


def energy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """-T log sum_c exp(logits_c / T), the mean over draws: logits [S, B, C] -> [B].

    Larger where all logits are small, as far from the data (Liu et al. 2020). Probabilities do not
    have it, since softmax takes it away: `outputs_of(posterior, x)` gives the logits.

    >>> import torch
    >>> energy(torch.zeros(3, 5, 2))[0]
    tensor(-0.6931, dtype=torch.float64)
    """
    positive(temperature=temperature)
    if logits.dim() != 3 or 0 in logits.shape or not logits.is_floating_point():
        raise InputError(
            f"logits must be [S, B, C], got {tuple(logits.shape)}; outputs_of(posterior, x) gives "
            "them"
        )
    each = (logits.detach().cpu().double() / temperature).logsumexp(-1)  # [S, B]
    return -temperature * each.mean(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejection:
    """Answer where the score (1 - max p, entropy, ...) is below the threshold.

    `coverage` and `error` are those of the held-out examples: how many are answered, and how many
    of these wrongly. `promise` says what is guaranteed.

    >>> import torch
    >>> rule = Rejection(score="max_prob", threshold=0.2, coverage=0.5, error=0.1, promise="")
    >>> rule.accepts(torch.tensor([[0.9, 0.1], [0.7, 0.3]]))
    tensor([ True, False])
    """

    score: Score
    threshold: float
    coverage: float
    error: float
    promise: str

    def accepts(self, p: Predicted | Tensor) -> Tensor:
        """Whether each of the inputs is answered, [B]."""
        return ood_score(p, self.score) < self.threshold


def threshold_for_error(
    p: Predicted | Tensor,
    y: Tensor,
    *,
    error: float,
    delta: float = 0.05,
    score: Score = "max_prob",
    candidates: int = CANDIDATES,
) -> Rejection:
    """Reject so much that at most a share `error` of the answers is wrong, with a guarantee.

    p, y: a prediction (or probs [n, C]) and the labels [n] of held-out examples.

    Guaranteed: with probability 1 - delta over the draw of the held-out examples, the error rate of
    future answers, P(wrong | score < threshold), is at most `error`. Assumed: held-out and future
    examples are independent draws of one distribution, and the held-out ones were used for nothing
    else, neither for training nor for a temperature.

    Why it holds: the threshold is one of the scores, that of rank m + 1, for ranks that are fixed
    beforehand (`candidates` coverages up to 1). Given that score, the examples below it are
    independent draws of those below it, so that P(Bin(m, error) <= mistakes) is a p-value for "the
    error is larger"; a threshold is taken where it is at most delta / candidates (Bonferroni, as in
    Learn then Test, Angelopoulos et al. 2021), and of these the one that answers most.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1]] * 500 + [[0.6, 0.4]] * 500)
    >>> y = torch.tensor([0] * 500 + [0, 1] * 250)  # the unsure half is wrong every other time
    >>> rule = threshold_for_error(probs, y, error=0.05)
    >>> rule.coverage, rule.error
    (0.5, 0.0)
    """
    whole(candidates=candidates)
    wanted, small = float(exact("error", error)), float(exact("delta", delta))
    scores, wrong = _held_out(p, y, score)
    n, tried, ordered = len(scores), [], scores.sort().values
    for step in range(candidates, 0, -1):  # from all examples down
        keep = n * step // candidates
        limit = math.inf if keep == n else ordered[keep].item()  # so many are below, without ties
        below = scores < limit
        m, mistakes = int(below.sum()), int(wrong[below].sum())
        if m == 0:
            continue
        tried.append((mistakes, m))
        if binomial_cdf(mistakes, m, wanted) <= small / candidates:
            promise = (
                f"P(wrong | answered) <= {error:g} with confidence {1 - small:g}, for examples "
                f"drawn as the {n} held-out ones"
            )
            return Rejection(
                score=score,
                threshold=limit,
                coverage=m / n,
                error=mistakes / m,
                promise=promise,
            )
    promised = [(upper_bound(k, m, small / candidates), m / n) for k, m in tried]
    least = min(promised, default=(1.0, 0.0))
    needed = math.ceil(math.log(small / candidates) / math.log1p(-wanted))
    raise Failed(
        f"no threshold has an error of {error:g} with confidence {1 - small:g} on these {n} "
        f"examples: the least that can be promised is {least[0]:.3g}, at coverage {least[1]:.2g}. "
        f"Ask for more error, or give more examples: {needed} answers without a mistake would do"
    )


def threshold_for_coverage(
    p: Predicted | Tensor,
    y: Tensor,
    *,
    coverage: float,
    delta: float = 0.05,
    score: Score = "max_prob",
) -> Rejection:
    """Reject as much as leaves a share `coverage` of answers, with a guarantee.

    Guaranteed: with probability 1 - delta over the draw of the held-out examples, a future example
    is answered with probability `coverage` at least. Assumed: they are independent draws of one
    distribution. The error rate of the answers is not guaranteed; `error` is what it was here.

    Why it holds: the share of examples whose score is above the r-th largest of n is Beta(r, n + 1
    - r) where scores have no ties, and smaller where they have; r is the largest that fits.

    >>> import torch
    >>> scores = torch.linspace(0.5, 1, 200)
    >>> probs = torch.stack([scores, 1 - scores], 1)
    >>> rule = threshold_for_coverage(probs, torch.zeros(200, dtype=torch.long), coverage=0.8)
    >>> rule.coverage  # a little more than 0.8, for the confidence
    0.85...
    """
    wanted, small = float(exact("coverage", coverage)), float(exact("delta", delta))
    scores, wrong = _held_out(p, y, score)
    limit = _tolerance(scores, 1 - wanted, small, what="coverage")
    # at or below that score; `accepts` is strict
    limit = math.nextafter(limit, math.inf)
    below = scores < limit
    return Rejection(
        score=score,
        threshold=limit,
        coverage=below.double().mean().item(),
        error=wrong[below].mean().item(),
        promise=(
            f"P(answered) >= {coverage:g} with confidence {1 - small:g}, for examples drawn as the "
            f"{len(scores)} held-out ones"
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """Ring where a score is above the threshold. `promise` says what is guaranteed.

    >>> import torch
    >>> Alarm(threshold=0.5, promise="")(torch.tensor([0.2, 0.7]))
    tensor([False,  True])
    """

    threshold: float
    promise: str

    def __call__(self, scores: Tensor) -> Tensor:
        """scores [B], of the kind that it was made with."""
        return _scores(scores) > self.threshold


def threshold_for_false_alarms(
    scores: Tensor, *, rate: float = 0.05, delta: float | None = None
) -> Alarm:
    """An alarm for foreign inputs, which rings at a share `rate` of in-domain ones at most.

    scores [n] of held-out in-domain examples, larger where more foreign: `ood_score`, `energy`, or
    any other, as `p.epistemic` of a regression.

    Without delta: the alarm rings at a new in-domain example with probability `rate` at most, over
    the draw of the held-out ones too; they must be exchangeable with it. It is a conformal test,
    whose threshold is the ceil((n + 1) (1 - rate))-th smallest score. With delta: with probability
    1 - delta over the draw of the held-out examples, the share of false alarms from then on is
    `rate` at most; they must be independent draws of one distribution. How many foreign inputs it
    finds, nobody can promise.

    >>> import torch
    >>> alarm = threshold_for_false_alarms(torch.arange(99.0), rate=0.1)
    >>> alarm.threshold, alarm(torch.tensor([89.0, 90.0]))
    (89.0, tensor([False,  True]))
    """
    scores = _scores(scores)
    share, n = float(exact("rate", rate)), len(scores)
    if delta is None:
        limit = scores.sort().values[rank(n, rate, name="rate") - 1].item()
        promise = (
            f"P(alarm) <= {rate:g} at a new in-domain example, over the draw of the {n} held-out "
            "ones too"
        )
    else:
        small = float(exact("delta", delta))
        limit = _tolerance(scores, share, small, what="rate")
        promise = (
            f"P(alarm) <= {rate:g} with confidence {1 - small:g}, for examples drawn as the {n} "
            "held-out ones"
        )
    return Alarm(threshold=limit, promise=promise)


def _tolerance(scores: Tensor, share: float, delta: float, *, what: str) -> float:
    """The r-th largest score, r the largest with P(share above it <= `share`) >= 1 - delta."""
    r, n = tolerance_rank(len(scores), share, delta), len(scores)
    if r == 0:
        needed = math.ceil(math.log(delta) / math.log1p(-share))
        raise InputError(
            f"to promise this {what} with confidence {1 - delta:g} needs at least {needed} "
            f"held-out examples, got {n}"
        )
    return scores.sort().values[n - r].item()


def _held_out(p: Predicted | Tensor, y: Tensor, score: Score) -> tuple[Tensor, Tensor]:
    """Scores [n], and 1 where the likeliest class is wrong, [n]."""
    probs, labels = with_labels(probs_of(p), torch.as_tensor(y).cpu())
    return ood_score(p, score), (probs.argmax(-1) != labels).double()


def _scores(scores: Any) -> Tensor:
    if not isinstance(scores, Tensor) or scores.dim() != 1 or not len(scores):
        raise InputError(f"scores must be a tensor [B], got {getattr(scores, 'shape', scores)}")
    found = scores.detach().cpu().double()
    if bool(found.isnan().any()):
        raise InputError(f"{int(found.isnan().sum())} of {len(found)} scores are NaN")
    return found
