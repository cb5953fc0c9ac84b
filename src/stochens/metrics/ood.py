"""How well inputs of another kind are told apart by scores."""

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.metrics.inputs import checked_probs


def ood_auroc(probs_in: Tensor, probs_out: Tensor) -> float:
    """AUROC = P(s_in > s_out) + 1/2 P(s_in = s_out), s = max_c p: 1 if in is always more confident.

    probs_in [B, C] in distribution (the positives), probs_out [B', C'] out of distribution

    >>> import torch
    >>> ood_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.4, 0.6]]))
    0.75
    """
    positive = checked_probs(probs_in, "probs_in").amax(-1)
    return _auroc(positive, checked_probs(probs_out, "probs_out").amax(-1))


def ood_auroc_mi(mi_in: Tensor, mi_out: Tensor) -> float:
    """The same by mutual information, s = -MI: 1 if the members always disagree less within.

    mi_in [B], mi_out [B'] in nats, as `Predictive.mutual_information`

    >>> import torch
    >>> ood_auroc_mi(torch.tensor([0.1, 0.3]), torch.tensor([0.2, 0.4]))
    0.75
    """
    for name, mi in (("mi_in", mi_in), ("mi_out", mi_out)):
        if mi.ndim != 1 or not len(mi) or not bool(mi.isfinite().all()):
            raise InputError(f"{name} must be finite numbers [B], got {tuple(mi.shape)}")
    return _auroc(-mi_in.detach().double(), -mi_out.detach().double())


def _auroc(positive: Tensor, negative: Tensor) -> float:
    """P(positive > negative) + 1/2 P(positive = negative), of scores [B] and [B']."""
    positive, negative = positive.cpu(), negative.cpu().sort().values
    wins = torch.searchsorted(negative, positive).sum()
    wins_and_ties = torch.searchsorted(negative, positive, right=True).sum()
    return (wins + wins_and_ties).item() / (2 * len(positive) * len(negative))
