"""Cases in which `langevin` was once wrong without a word: it is right there now, or says so.

Truth is the closed form of Bayesian linear regression, or long NUTS runs whose results are kept
in langevin_truth.py, which makes them again.
"""

import warnings
from typing import Any

import pytest
import torch
from tests.long import long_but
from tests.samplers.langevin_truth import GRID, TANH, tanh_data, tanh_net
from torch import nn

import stochens
from stochens import Failed
from stochens.samplers.diagnostics import SamplingWarning

RIGHT = 0.1  # of a standard deviation
M = 100


def linear(N: int, noise: float, *, scale: float = 1.0, features: int = 4):
    generator = torch.Generator().manual_seed(N)
    x = scale * torch.randn(N, features, generator=generator)
    y = x.sum(1) / scale + 0.3 + noise * torch.randn(N, generator=generator)
    return x, y


def exact_sd(x: torch.Tensor, noise: float, precision: float) -> torch.Tensor:
    """Of the weights and the bias under the posterior, [D]."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    inverse = design.T @ design / noise**2 + precision * torch.eye(design.shape[1]).double()
    return torch.linalg.inv(inverse).diagonal().sqrt()


def said(train) -> tuple[stochens.Posterior | None, bool]:
    """What comes of it, and whether it was called wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior = train()
        except Failed:
            return None, True
    return posterior, any(issubclass(w.category, SamplingWarning) for w in caught)


def ratio_of_sd(posterior: stochens.Posterior, sd: torch.Tensor) -> float:
    """The mean over parameters; its standard error is 1 / sqrt(2 M) = 7 % for one, and 3 % for
    the five together, which are nearly independent."""
    draws = torch.cat([posterior.params["weight"].flatten(1), posterior.params["bias"]], 1)
    return float((draws.double().std(0) / sd).mean())


LINEAR: dict[
    str, tuple[int, float, dict[str, Any], float, float]
] = {  # N, noise, options, input scale, prior precision; as the audit ran them
    "small-noise": (400, 0.1, {}, 1.0, 1.0),
    "large-inputs": (100, 1.0, {}, 10.0, 1.0),
    "small-inputs": (400, 1.0, {}, 0.01, 1.0),
    "wide-prior": (100, 1.0, {}, 1.0, 0.01),
    "narrow-prior": (400, 1.0, {}, 1.0, 100.0),
    "N1500": (1500, 1.0, {}, 1.0, 1.0),
    "N1500-1250-steps": (1500, 1.0, {"steps": 1250}, 1.0, 1.0),
    "N2400-1250-steps": (2400, 1.0, {"steps": 1250}, 1.0, 1.0),
    "N2400-friction-3": (2400, 1.0, {"steps": 1250, "friction": 3.0}, 1.0, 1.0),
    "N10000-time-5": (10_000, 1.0, {"steps": 2500, "members": 20}, 1.0, 1.0),
    "batch-20-noise-.15": (400, 0.15, {"batch_size": 20}, 1.0, 1.0),
    "batch-20-noise-.3": (400, 0.3, {"batch_size": 20}, 1.0, 1.0),
    "batch-100": (1000, 0.2, {"batch_size": 100}, 1.0, 1.0),
    "batch-30": (900, 0.25, {"batch_size": 30}, 1.0, 1.0),
    "fixed-step-noise-.1": (400, 0.1, {"steps": 1250, "step_size": 0.01}, 1.0, 1.0),
    "fixed-step-wide-prior": (400, 1.0, {"steps": 1250, "step_size": 0.01}, 1.0, 0.01),
}
ARE_RIGHT = {
    "small-noise", "large-inputs", "small-inputs", "wide-prior", "narrow-prior", "N1500",
    "N2400-friction-3",
}  # fmt: skip


# one that is right by default, one with mini-batches
@pytest.mark.parametrize("case", long_but({"large-inputs", "batch-20-noise-.3"}, LINEAR))
def test_linear_regressions_are_right_or_called_wrong(case):
    N, noise, options, scale, precision = LINEAR[case]
    x, y = linear(N, noise, scale=scale)
    posterior, called_wrong = said(
        lambda: stochens.langevin(
            nn.Linear(4, 1),
            (x, y),
            likelihood=stochens.Homoscedastic(noise),
            prior=precision,
            **{"members": M} | options,
        )
    )
    if case in ARE_RIGHT:
        assert not called_wrong
    if not called_wrong:
        assert abs(ratio_of_sd(posterior, exact_sd(x, noise, precision)) - 1) < RIGHT


@pytest.mark.long
@pytest.mark.parametrize("seed", sorted(TANH))
@pytest.mark.parametrize("options", [{}, {"steps": 1250, "step_size": 0.02}], ids=["now", "before"])
def test_tanh_regressions_are_right_or_called_wrong(seed, options):
    """With the step of before, all members were kept and their spread was twice NUTS's."""
    posterior, called_wrong = said(
        lambda: stochens.langevin(
            tanh_net(),
            tanh_data(seed),
            members=M,
            likelihood=stochens.Homoscedastic(0.6),
            **options,
        )
    )
    assert called_wrong == bool(options)
    if not called_wrong:
        sd = posterior.predict(GRID).epistemic.sqrt().flatten()
        # the median over inputs, of M draws each: 1 / sqrt(2 M) = 7 %, less over several inputs
        assert abs(float((sd / torch.tensor(TANH[seed])).median()) - 1) < RIGHT


TOY = {
    "before": ({"steps": 1250, "step_size": 0.01, "prior": 0.1}, True),
    "batch-5": ({"batch_size": 5}, True),
    "full": ({}, False),
}


@pytest.mark.long
@pytest.mark.parametrize("case", TOY)
def test_the_toy_problem_is_called_what_it_is(case):
    """b with a wide prior diverged and was kept; mini-batches of five were ten times too far."""
    options, wrong = TOY[case]
    x, y = stochens.toy_set("b", n=400)
    net = stochens.MLP(2, 10, 10, 2)
    assert said(lambda: stochens.langevin(net, (x, y), members=60, **options))[1] == wrong


def test_few_members_that_diverge_are_refused():
    """31 of 50 were kept once, the largest weight being 7e17."""
    x, y = linear(400, 0.15)
    options = {"batch_size": 20, "steps": 1250, "step_size": 0.01, "members": 50}
    like = stochens.Homoscedastic(0.15)
    with pytest.raises(Failed, match="50 members diverged"):
        stochens.langevin(nn.Linear(4, 1), (x, y), likelihood=like, **options)
