"""y is one of C classes in an order: grades, stars, stages."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from stochens import metrics
from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, Targets, mean_over_examples, wide
from stochens.likelihoods.classes import Classes, Predictive
from stochens.likelihoods.draws import Measure


@dataclasses.dataclass(frozen=True)
class Ordinal(Likelihood):
    """P(y <= k | x) = 1 / (1 + exp(-c_k)), c_0 < c_1 < ...: y [B] is one of C classes in an order.

    Outputs o [B, C - 1] make the cumulative logits:  c_0 = o_0,  c_k = c_(k-1) + log(1 + exp(o_k)).
    They all depend on x. Where only c_0 should (proportional odds), let the network give the other
    o_k as parameters.

    >>> draws = Ordinal().distribution(torch.zeros(1, 1, 3))  # of four classes
    >>> float(draws.probs[0, 0, 0])
    0.5
    """

    name: ClassVar[str] = "ordinal"
    coarse: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"
    ordered: ClassVar[bool] = True

    def distribution(self, outputs: Tensor) -> Classes:
        """P(y <= k) - P(y <= k - 1)"""
        return Classes(_log_probs(outputs).exp(), more=ordered_measures)

    def tempered(self, outputs: Tensor, temperature: float) -> Classes:
        """softmax(log p / temperature): a common factor of the outputs would be none of log p."""
        return Classes((_log_probs(outputs) / temperature).softmax(-1), more=ordered_measures)

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        terms = -_log_probs(wide(outputs)).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return mean_over_examples(terms, weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() != 1 or y.is_floating_point() or y.is_complex():
            raise InputError(
                f"labels must be integers [N] from 0 on, in order, got {y.dtype} {tuple(y.shape)}"
            )
        return y.long()

    def classes(self, outputs: Tensor) -> int:
        if outputs.dim() != 2:
            raise InputError(
                f"the network must return [B, C - 1] for C classes, got {tuple(outputs.shape)}"
            )
        return outputs.shape[1] + 1

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        classes, low, high = self.classes(outputs), int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise InputError(
                f"label {low if low < 0 else high} is out of range: the network has "
                f"{classes - 1} outputs, which are for {classes} classes, 0 to {classes - 1}"
            )


def _log_probs(outputs: Tensor) -> Tensor:
    """[..., C - 1] -> [..., C].

    With s(c) = 1 / (1 + exp(-c)) it is  s(b) - s(a) = s(b) s(-a) (1 - exp(a - b)),  and for
    b = a + log(1 + exp(o)) the last factor is s(o): no difference of two near numbers is left.
    """
    gaps = torch.cat([outputs[..., :1], softplus(outputs[..., 1:])], -1)
    c = gaps.cumsum(-1)
    first, last = logsigmoid(c[..., :1]), logsigmoid(-c[..., -1:])
    between = logsigmoid(c[..., 1:]) + logsigmoid(-c[..., :-1]) + logsigmoid(outputs[..., 1:])
    return torch.cat([first, between, last], -1)


def ordered_measures(p: Predictive, y: Tensor) -> dict[str, Measure]:
    """How far off, in classes: the ranked probability score, and the error of the median."""
    median = (p.mean.double().cumsum(-1) < 0.5).sum(-1)
    return {
        "RPS": (metrics.ranked_probability_score, p.mean, y),
        "MAE": (torch.mean, (median - y.to(median)).abs().double()),
    }
