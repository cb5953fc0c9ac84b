"""y are numbers with several modes: a mixture density network (Bishop, 1994)."""

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, limited, mean_over_examples, wide
from stochens.likelihoods.numbers import Numbers, location_scale
from stochens.likelihoods.targets import (
    Missing,
    check_missing,
    check_width,
    present,
    real_targets,
)

LOG_2_PI = math.log(2 * math.pi)


class GaussianMixture(Distribution):
    """sum_k softmax(logits)_k prod_d N(loc_kd, scale_kd^2): logits [..., K], the others
    [..., K, D]. `cdf` is that of each target by itself. NaN in a value is left out."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(
        self, logits: Tensor, loc: Tensor, scale: Tensor, validate_args: Any = None
    ) -> None:
        self.logits, self.loc, self.scale = logits.log_softmax(-1), loc, scale
        super().__init__(logits.shape[:-1], loc.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return (self.logits.exp().unsqueeze(-1) * self.loc).sum(-2)

    @property
    def variance(self) -> Tensor:
        away = (self.loc - self.mean.unsqueeze(-2)).square()
        return (self.logits.exp().unsqueeze(-1) * (away + self.scale.square())).sum(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        own, there = present(value.unsqueeze(-2))
        z = (own - self.loc) / self.scale
        terms = (-0.5 * (z.square() + LOG_2_PI) - self.scale.log()).where(there, 0.0)
        log_density: Tensor = (self.logits + terms.sum(-1)).logsumexp(-1)
        return log_density

    def cdf(self, value: Tensor) -> Tensor:
        z = (value.unsqueeze(-2) - self.loc) / self.scale
        found: Tensor = (self.logits.exp().unsqueeze(-1) * torch.special.ndtr(z)).sum(-2)
        return found

    def sample(self, sample_shape: Any = ()) -> Tensor:
        logits = self.logits.expand(*sample_shape, *self.logits.shape)
        gumbel = -(-torch.rand_like(logits).log()).log()
        chosen = (logits + gumbel).argmax(-1)[..., None, None]
        chosen = chosen.expand(*chosen.shape[:-1], self.loc.shape[-1])
        loc, scale = (
            t.expand(*sample_shape, *t.shape).gather(-2, chosen).squeeze(-2)
            for t in (self.loc, self.scale)
        )
        return loc + scale * torch.randn_like(loc)


@dataclasses.dataclass(frozen=True)
class MixtureDensity(Likelihood):
    """p(y | x) = sum_k w_k(x) prod_d N(y_d; m_kd(x), s_kd(x)^2), K = `components` of them.

    Outputs are [B, K + 2 K D]: the K logits of w, the means m [K, D], then log s^2 [K, D].
    missing="mask": NaN in y adds nothing to the likelihood.

    >>> like = MixtureDensity(components=2)
    >>> like.width(1)
    6
    >>> round(float(like.nll(torch.zeros(1, 6), torch.zeros(1, 1))), 4)  # log(2 pi) / 2
    0.9189
    """

    components: int = 3
    missing: Missing = "refuse"
    name: ClassVar[str] = "mixture"
    in_units: ClassVar[bool] = True
    usual_method: ClassVar[str] = "regular"

    def __post_init__(self) -> None:
        check_missing(self.missing)
        if isinstance(self.components, bool) or not isinstance(self.components, int):
            raise InputError(f"components must be a whole number, got {self.components!r}")
        if self.components < 1:
            raise InputError(f"components must be 1 or more, got {self.components}")

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [..., K], means and scales [..., K, D]."""
        k = self.components
        targets = (outputs.shape[-1] // k - 1) // 2
        logits, loc, log_square = outputs.split([k, k * targets, k * targets], -1)
        loc, log_square = (t.unflatten(-1, (k, targets)) for t in (loc, log_square))
        return logits, loc, (limited(log_square) / 2).exp()

    def distribution(self, outputs: Tensor) -> Numbers:
        """The mixture over components of each draw."""
        logits, loc, scale = self._parts(outputs)
        return Numbers(
            GaussianMixture,
            logits=logits,
            loc=loc,
            scale=scale,
            missing=self.missing,
            rescaled=location_scale,
        )

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """-log sum_k w_k prod_d N(y_d; m_kd, s_kd^2)"""
        terms = -GaussianMixture(*self._parts(wide(outputs))).log_prob(y)
        return mean_over_examples(terms, weights)

    def check_targets(self, y: Tensor) -> Tensor:
        return real_targets(y, self.missing)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        check_width(self, outputs, y)

    def width(self, targets: int) -> int:
        return self.components * (1 + 2 * targets)
