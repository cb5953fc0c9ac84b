"""Entropy and mutual information of predictive distributions, in nats and in float64.

Nothing is checked but the shape: NaN stays NaN, and a negative "probability" gives -inf or NaN.
"""

import torch
from torch import Tensor

from stochens.errors import InputError


def entropy(probs: Tensor) -> Tensor:
    """H[p] = -sum_c p_c log p_c over the last axis, with 0 log 0 = 0.

    probs [..., C] -> [...]

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    terms: Tensor = torch.special.entr(probs.double())  # -p log p, [..., C]
    return terms.sum(-1)


def mutual_information(draws: Tensor) -> Tensor:
    """MI = H[mean_s p_s] - mean_s H[p_s]: what the draws disagree about (epistemic uncertainty).

    draws [S, B, C] -> [B]. Jensen makes it non-negative; rounding below 0 is clamped.

    >>> sure_but_opposed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> mutual_information(sure_but_opposed)
    tensor([0.6931], dtype=torch.float64)
    """
    if draws.ndim != 3 or len(draws) == 0:
        raise InputError(
            f"draws must be [S, B, C] with S >= 1, got {tuple(draws.shape)}; "
            "did you average the draws? One draw is draws[None]"
        )
    draws = draws.double()
    return (entropy(draws.mean(0)) - entropy(draws).mean(0)).clamp(min=0)
