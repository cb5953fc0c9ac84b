"""Gradients of samplers: the preconditioner of SGMCMC, a running average of their squares, and the
slope on all data that batches add up to."""

import pytest
import torch
from torch import nn

import stochens
from stochens.samplers import langevin
from stochens.samplers.arrival import Verdict
from stochens.samplers.gradients import Gradient, data_term_for
from stochens.samplers.langevin_steps import StepRule
from stochens.samplers.problem import SamplerRequest, prepare
from stochens.samplers.sgmcmc_plan import Cycle
from stochens.samplers.sgmcmc_steps import AVERAGING, State, adapted, step_scale, with_spread
from stochens.samplers.sgmcmc_steps import initial as begun


def initial(q: torch.Tensor) -> State:
    plan = Cycle(0.1, 0.9, 1.0, None, burn_in=9, thin=1, samples=1, cycles=None, cools=False)
    return begun(q, torch.arange(len(q)), plan)


def test_an_average_of_equal_gradients_is_that_gradient():
    """From the first one on: the zero that it began with is divided out by its weight."""
    g = torch.tensor([[3.0, -0.5], [0.0, 20.0]], dtype=torch.float64)
    state = initial(torch.zeros(2, 2, dtype=torch.float64))
    assert state.weight == 0
    for k in range(1, 6):
        state = adapted(state, g, 10)
        assert state.weight == pytest.approx(1 - AVERAGING**k, rel=1e-12)
        torch.testing.assert_close(state.square / state.weight, (g / 10).square())


def test_the_step_by_the_variance_of_gradients_is_its_formula():
    """s = sqrt(lr / (N m)), m = V + lambda / N, V = B / N^2 (g' - g)^2 / 2 averaged; the first
    gradient has none before it."""
    plan = Cycle(0.1, 0.9, 1.0, "fisher", burn_in=400, thin=1, samples=1, cycles=None, cools=False)
    state = begun(torch.zeros(1, 2, dtype=torch.float64), torch.arange(1), plan)
    for g in (torch.tensor([[5.0, 1.0]]), torch.tensor([[9.0, 1.0]])):
        state = with_spread(adapted(state, g.double(), 50), g.double(), 50, 10)
    V = (1 - AVERAGING) * torch.tensor([[10 / 2500 * 8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(state.spread, V)
    found = step_scale(state, 0.2, 50, 4.0, by_fisher=True)
    m = V / (1 - AVERAGING**2) + 4 / 50
    torch.testing.assert_close(found, (0.2 / (50 * m)).sqrt())


def test_the_step_is_the_formulas():
    """s = sqrt(lr / (N m)), m = sqrt(V) + sqrt(lambda) / N; m = 1 before there is any V."""
    state = initial(torch.zeros(1, 2, dtype=torch.float64))
    assert step_scale(state, 0.2, 50, 4.0) == pytest.approx((0.2 / 50) ** 0.5, rel=1e-12)
    g = torch.tensor([[5.0, 0.0]], dtype=torch.float64)
    found = step_scale(adapted(state, g, 50), 0.2, 50, 4.0)
    m = torch.tensor([[0.1 + 2 / 50, 2 / 50]], dtype=torch.float64)
    torch.testing.assert_close(found, (0.2 / (50 * m)).sqrt())


@pytest.mark.parametrize("batch", [7, 10, 30])
def test_the_slope_of_all_data_from_its_batches(batch):
    """N nll and its slope where Langevin's members end, whatever the size of a batch, a short last
    one too; against autograd on all of the data in float64."""
    x, y = stochens.toy_set("b", n=30)
    run = stochens.Run(device="cpu", precision="float64", engine="vmap")
    problem = prepare(SamplerRequest(net=nn.Linear(2, 2), data=(x, y), members=3, run=run))
    at, _ = langevin._beginning(problem)
    gradient = Gradient(problem, data_term_for(problem, batch, 1).of)
    energy, slope = langevin._of_all(gradient, at, batch, 30, 0)
    q = at.q.clone().requires_grad_()
    logits = [x.double() @ row[:4].view(2, 2).T + row[4:] for row in q]  # weight, then bias
    nll = torch.stack([nn.functional.cross_entropy(one, y, reduction="sum") for one in logits])
    torch.testing.assert_close(energy, nll.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(nll.sum(), q)[0])


@pytest.mark.parametrize(("last_step", "batch"), [(1.0, False), (0.1, True)])
def test_a_larger_batch_is_a_remedy_where_there_are_batches(last_step, batch):
    """Steps that shrink at the end are those of mini-batches."""
    plan = StepRule(None, 0.2, False, 1.0, 0.0, last_step, 1.0)
    verdict = Verdict((1.5, 0.1), (1.2, 0.1), 0.0, None)
    said = langevin._in_words(verdict, plan)
    assert ("a larger batch_size" in said) is batch
    assert "step_size=0.1" in said
    assert "most clearly" not in said
    said = langevin._in_words(verdict._replace(place="0.bias"), plan)
    assert "their mean or spread is wrong, most clearly in '0.bias': the virial is 1.5" in said
