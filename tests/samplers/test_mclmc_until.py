"""`mclmc(until="arrived")`: further rounds, the budget, and going on."""

import pytest
import torch
from tests.posterior.sources import press_ctrl_c
from tests.samplers.going_on import quiet, same
from tests.samplers.truth import Linear
from torch import nn

import stochens
from stochens import InputError, Run
from stochens.samplers.diagnostics import SamplingWarning
from stochens.samplers.mclmc_plan import Schedule

# Three members of 8 draws are never worth 400: every budget is used up. Rounds end after
# 5 + 120 + 8 * 3 = 149 steps, after 149 + 2 (120 + 24) = 437, and after 437 + 4 (120 + 24) = 1013.
SHORT = {"members": 3, "warmup": 120, "training": 5, "thin": 3, "draws_per_member": 8}


@pytest.fixture
def data():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def sampled(data, **options) -> stochens.Posterior:
    return stochens.mclmc(nn.Linear(2, 2), data, **SHORT | options)


@pytest.mark.long
def test_it_goes_on_until_nothing_is_left_to_warn_of():
    """30 inputs that are not centred: the first round is too narrow in their stiffest direction.
    2,000 draws know it to 1.6 %, so that 7 % are 5 % and more than one of these."""
    problem = Linear(200, features=30, offset=1.0)
    options = {"warmup": 2000, "training": 300}
    first, told = problem.sample(stochens.mclmc, **options)
    assert "stiffest direction" in told[0]
    last, told = problem.sample(stochens.mclmc, until="arrived", **options)
    assert told == ()
    assert len(last) == len(first)
    assert float(problem.ratios(first)[-1]) < 0.9
    assert float(problem.ratios(last)[-1]) == pytest.approx(1, abs=0.07)
    round_, cuts = last.chains.state["counts"][[2, 4]].tolist()
    assert round_ >= 1
    assert cuts >= 1


def test_the_budget_ends_it_with_a_warning(data):
    with pytest.warns(SamplingWarning) as caught:
        posterior = sampled(data, until="arrived", budget=1012)
    (words,) = [str(w.message) for w in caught if "budget" in str(w.message)]
    assert "after 437 steps" in words
    assert "budget=1013 goes on" in words
    assert len(posterior) == 24
    assert posterior.chains.state["counts"][:3].tolist() == [437, 8, 1]
    assert any("R-hat" in str(w.message) for w in caught)


@quiet
def test_more_budget_goes_on_as_one_long_run(data):
    whole = sampled(data, until="arrived", budget=1013)
    plain = sampled(data)  # without until: its first round
    part = sampled(data, until="arrived", budget=500, resume=plain)
    same(sampled(data, until="arrived", budget=1013, resume=part), whole)
    assert whole.chains.state["counts"][:3].tolist() == [1013, 8, 2]


@quiet
@pytest.mark.parametrize(
    "after", [2, 28, 57], ids=["first round", "warm-up of the second", "draws"]
)
def test_a_stopped_run_goes_on_from_its_folder(data, after, tmp_path, monkeypatch):
    """The first round is 25 turns of the loop, the warm-up of the second 29."""
    options = {"until": "arrived", "budget": 437}
    whole = sampled(data, **options)
    options["run"] = Run(checkpoint=tmp_path / "run", every=1)
    with monkeypatch.context() as pressed:
        press_ctrl_c(pressed, after)
        try:
            stopped = sampled(data, **options)
        except KeyboardInterrupt:
            stopped = None
    assert stopped is None or not torch.equal(
        stopped.chains.state["counts"], whole.chains.state["counts"]
    )
    same(sampled(data, **options), whole)


@quiet
def test_a_stopped_run_has_the_draws_of_the_round_before(data, monkeypatch):
    whole = sampled(data, until="arrived", budget=437)
    with monkeypatch.context() as pressed:
        press_ctrl_c(pressed, 28)
        stopped = sampled(data, until="arrived", budget=437)
    same(stopped, sampled(data))
    same(sampled(data, until="arrived", budget=437, resume=stopped), whole)


def test_rounds_are_twice_as_long():
    first = Schedule(5, 120, 8, 3, 1e-3, True, 1.0)
    later = first.at_round(2, begin=437, cuts=1)
    assert (later.training, later.warmup, later.thin) == (0, 480, 12)
    assert later.energy_variance == pytest.approx(1e-3 / 8)
    assert later.steps == 1013
    assert later.phase(437) == "find"
    assert later.phase(437 + 480) == "draws"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": "soon"}, "until must be None or 'arrived'"),
        ({"until": "arrived", "budget": 100}, "less than the 149 of the first round"),
        ({"until": "arrived", "run": Run(engine="ray")}, "leave until out"),
        ({"target_accept": 1.0}, "target_accept must be in"),
    ],
)
def test_what_cannot_be_is_refused(data, options, words):
    with pytest.raises(InputError, match=words):
        sampled(data, **options)
