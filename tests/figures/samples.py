"""Predictions of every kind, and truths beside them."""

import torch
from tests.likelihoods.table import Row, outputs_of
from torch import Tensor

from stochens import Predictive
from stochens.likelihoods import Predicted, draws_of

DRAWS, EXAMPLES = 4, 50


def predicted(row: Row, like: object = None, seed: int = 0) -> Predicted:
    """S = 4 draws at 50 examples, in float64."""
    outputs = outputs_of(row, DRAWS, EXAMPLES, seed=seed)
    draws = draws_of(row.like if like is None else like, outputs)
    centre = draws.centre()
    averages = tuple(t.double().mean(0, keepdim=True) for t in draws.terms(*centre))
    return draws.averaged(averages, centre, draws.parameters)


def truth(row: Row, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return row.like.check_targets(row.targets(EXAMPLES, generator))


def flat(classes: int = 3, seed: int = 0) -> tuple[Predictive, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(DRAWS, EXAMPLES, classes, generator=generator).double().softmax(-1)
    return Predictive.of(draws), torch.randint(classes, (EXAMPLES,), generator=generator)
