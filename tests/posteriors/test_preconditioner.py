"""The preconditioner of SGMCMC: a running average of squared gradients, and the step it makes."""

import pytest
import torch

from stochens.posteriors.sgmcmc_steps import AVERAGING, adapted, initial, step_scale


def test_an_average_of_equal_gradients_is_that_gradient():
    """From the first one on: the zero that it began with is divided out by its weight."""
    g = torch.tensor([[3.0, -0.5], [0.0, 20.0]], dtype=torch.float64)
    state = initial(torch.zeros(2, 2, dtype=torch.float64))
    assert state.weight == 0
    for k in range(1, 6):
        state = adapted(state, g, 10)
        assert state.weight == pytest.approx(1 - AVERAGING**k, rel=1e-12)
        torch.testing.assert_close(state.square / state.weight, (g / 10).square())


def test_the_step_is_the_formulas():
    """s = sqrt(lr / (N m)), m = sqrt(V) + sqrt(lambda) / N; m = 1 before there is any V."""
    state = initial(torch.zeros(1, 2, dtype=torch.float64))
    assert step_scale(state, 0.2, 50, 4.0) == pytest.approx((0.2 / 50) ** 0.5, rel=1e-12)
    g = torch.tensor([[5.0, 0.0]], dtype=torch.float64)
    found = step_scale(adapted(state, g, 50), 0.2, 50, 4.0)
    m = torch.tensor([[0.1 + 2 / 50, 2 / 50]], dtype=torch.float64)
    torch.testing.assert_close(found, (0.2 / (50 * m)).sqrt())
