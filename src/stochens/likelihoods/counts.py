"""y are counts: 0, 1, 2, ..."""

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.nn.functional import softplus

from stochens.likelihoods.base import Likelihood, limited, mean_over_examples
from stochens.likelihoods.numbers import Numbers
from stochens.likelihoods.special import betainc
from stochens.likelihoods.targets import (
    Missing,
    check_missing,
    check_width,
    count_targets,
    present,
)

LEAST, MOST = 1e-6, 1e8  # of a dispersion; a larger one is a Poisson distribution to float64
LARGEST = 2.0**53  # of a negative binomial's mean: its variance is a float32 still


class CountLikelihood(Likelihood):
    """What likelihoods of counts share: targets [N, D], and terms in float64, since the logarithms
    of large factorials differ by little."""

    missing: Missing

    def __post_init__(self) -> None:
        check_missing(self.missing)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """-log p(y_d), [..., B, D], of float64 outputs and counts."""
        raise NotImplementedError

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        own, there = present(y.double())
        terms = self.terms(outputs, own).where(there, 0.0)
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        return mean_over_examples(terms.sum(-1).to(dtype), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        return count_targets(y, self.missing)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        check_width(self, outputs, y)


class PoissonCounts(distributions.Poisson):
    """With the cdf that torch's has not: P(Y <= k) = Q(k + 1, rate)."""

    def cdf(self, value: Tensor) -> Tensor:
        found: Tensor = torch.special.gammaincc(value.floor().clamp_min(0) + 1, self.rate)
        return found.where(value >= 0, 0.0)


@dataclasses.dataclass(frozen=True)
class Poisson(CountLikelihood):
    """y ~ Poisson(exp(outputs)): outputs [B, D] are the logarithms of the rates, y [B, D] counts.

    Rates are between exp(-60) and exp(60) in float32. missing="mask": NaN in y is a count that
    nobody made; it adds nothing to the likelihood.

    >>> float(Poisson().nll(torch.zeros(1, 1), torch.zeros(1, 1)))  # P(0) = exp(-1)
    1.0
    """

    missing: Missing = "refuse"
    name: ClassVar[str] = "poisson"

    def distribution(self, outputs: Tensor) -> Numbers:
        """Poisson(exp(outputs))"""
        return Numbers(PoissonCounts, rate=limited(outputs).exp(), missing=self.missing)

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """rate - y log rate + log y!"""
        log_rate = limited(outputs).double()
        return log_rate.exp() - y * log_rate + (y + 1).lgamma()

    def width(self, targets: int) -> int:
        return targets


class NegativeBinomialCounts(distributions.NegativeBinomial):
    """By mean and dispersion r, so that the variance is mean + mean^2 / r, and with the cdf that
    torch's has not: P(Y <= k) = I_(r / (r + mean))(r, k + 1)."""

    def __init__(self, mean: Tensor, dispersion: Tensor, validate_args: Any = None) -> None:
        logits = mean.log() - dispersion.log()
        super().__init__(dispersion, logits=logits, validate_args=validate_args)

    def cdf(self, value: Tensor) -> Tensor:
        total, logits = self.total_count, self.logits
        whole = value.floor().clamp_min(0)
        found = betainc(total, whole + 1, (-logits).sigmoid(), logits.sigmoid())
        return found.where(value >= 0, 0.0)


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(CountLikelihood):
    """y ~ NB(mean m, dispersion r), of variance m + m^2 / r: outputs [B, 2 D] are the D log m, then
    the D log r, and y [B, D] counts that vary more than a Poisson distribution's.

    m is held to at most 2^53, r to between 1e-6 and 1e8. missing="mask": as in Poisson.

    >>> draws = NegativeBinomial().distribution(torch.zeros(1, 1, 2))
    >>> draws.each.mean.item(), draws.each.variance.item()
    (1.0, 2.0)
    """

    missing: Missing = "refuse"
    name: ClassVar[str] = "negative-binomial"

    def distribution(self, outputs: Tensor) -> Numbers:
        """NB(exp(outputs[:D]), exp(outputs[D:]))"""
        log_mean, log_r = _halves(outputs)
        return Numbers(
            NegativeBinomialCounts,
            mean=log_mean.exp(),
            dispersion=log_r.exp(),
            missing=self.missing,
        )

    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log y! + log Gamma(r) - log Gamma(y + r) + r log(1 + m / r) + y log(1 + r / m)"""
        log_mean, log_r = (t.double() for t in _halves(outputs))
        r, logit = log_r.exp(), log_mean - log_r
        factorials = (y + 1).lgamma() + r.lgamma() - (y + r).lgamma()
        return factorials + r * softplus(logit) + y * softplus(-logit)

    def width(self, targets: int) -> int:
        return 2 * targets


def _halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    log_mean, log_r = outputs.chunk(2, dim=-1)
    log_mean = log_mean.clamp(-math.log(LARGEST), math.log(LARGEST))
    return log_mean, log_r.clamp(math.log(LEAST), math.log(MOST))
