"""Natural gradients on fourteen kinds of models that nothing was settled on (natural_cases.py),
each with three seeds and two lengths of training; natural_judged.py prints the table.

What follows from a model of errors is asserted. A gain that `fit` measures at some place is, but
for noise, at most what there is to gain; from it three standard errors are taken off, at two
places. So a member that is right is told with a probability of 2 P(t > 3) = 0.9 % at most (15
degrees of freedom), and of eight at most one: two have 0.2 %. That members which are wrong are told
follows from nothing: docs/which-method.md has the counts.
"""

import pytest
import torch
from tests.training.natural_cases import KINDS
from tests.training.natural_judged import SEEDS, STEPS, judge


@pytest.mark.long
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_members_that_are_right_are_not_told(float64, kind, seed, steps):
    found = judge(kind, seed, steps)
    assert (found.gap > -0.01).all()  # or the best is not the best
    assert found.counts()["right and told"] <= 1
    assert torch.isfinite(found.left).all()
