"""Options of `langevin` with which it was once wrong without a word: it is right there now, or says
so. What it does by itself is in the table that all samplers share (test_truth.py).
"""

from typing import Any

import pytest
from tests.long import long_but
from tests.samplers.truth import NETWORKS, Linear, listen, ratio_to_nuts
from torch import nn

import stochens
from stochens import Failed

RIGHT = 0.1  # of a standard deviation
M = 100


LINEAR: dict[str, tuple[Linear, dict[str, Any]]] = {  # as the audit ran them
    "N1500-1250-steps": (Linear(1500), {"steps": 1250}),
    "N2400-1250-steps": (Linear(2400), {"steps": 1250}),
    "N2400-friction-3": (Linear(2400), {"steps": 1250, "friction": 3.0}),
    "N10000-time-5": (Linear(10_000), {"steps": 2500, "members": 20}),
    "batch-20-noise-.15": (Linear(400, 0.15), {"batch_size": 20}),
    "batch-20-noise-.3": (Linear(400, 0.3), {"batch_size": 20}),
    "batch-100": (Linear(1000, 0.2), {"batch_size": 100}),
    "batch-30": (Linear(900, 0.25), {"batch_size": 30}),
    "fixed-step-noise-.1": (Linear(400, 0.1), {"steps": 1250, "step_size": 0.01}),
    "fixed-step-wide-prior": (Linear(400, prior=0.01), {"steps": 1250, "step_size": 0.01}),
}
ARE_RIGHT = {"N2400-friction-3"}


@pytest.mark.parametrize("case", long_but({"batch-20-noise-.3"}, LINEAR))
def test_linear_regressions_are_right_or_called_wrong(case):
    """The mean over parameters; its standard error is 1 / sqrt(2 M) = 7 % for one, and 3 % for
    the five together, which are nearly independent."""
    problem, options = LINEAR[case]
    posterior, told = problem.sample(stochens.langevin, **{"members": M} | options)
    if case in ARE_RIGHT:
        assert not told
    if not told:
        assert abs(float(problem.ratios(posterior)[:-1].mean()) - 1) < RIGHT


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [{}, {"steps": 1250, "step_size": 0.02}], ids=["now", "before"])
def test_tanh_regressions_are_right_or_called_wrong(seed, options):
    """With the step of before, all members were kept and their spread was twice NUTS's."""
    name = f"tanh-{seed}"
    posterior, told = NETWORKS[name].sample(stochens.langevin, members=M, **options)
    assert bool(told) == bool(options)
    if not told:
        # the median over inputs, of M draws each: 1 / sqrt(2 M) = 7 %, less over several inputs
        assert abs(ratio_to_nuts(name, posterior) - 1) < RIGHT


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
    found = listen(lambda: stochens.langevin(net, (x, y), members=60, **options))
    assert bool(found.warnings) == wrong


def test_few_members_that_diverge_are_refused():
    """31 of 50 were kept once, the largest weight being 7e17."""
    x, y = Linear(400, 0.15).data()
    options = {"batch_size": 20, "steps": 1250, "step_size": 0.01, "members": 50}
    like = stochens.Homoscedastic(0.15)
    with pytest.raises(Failed, match="50 members diverged"):
        stochens.langevin(nn.Linear(4, 1), (x, y), likelihood=like, **options)
