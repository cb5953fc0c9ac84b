"""What samplers tell: a diagnosis in print, limits that are said only beyond them, refusals."""

import math

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens import InputError
from stochens.samplers.adaptation import windows
from stochens.samplers.diagnostics import (
    ESS_LIMIT,
    RHAT_LIMIT,
    Diagnosis,
    _mixing_in_words,
    mixing_trouble,
)
from stochens.samplers.mixing import Mixing, mixing
from stochens.samplers.sampling import HamiltonianRequest, _sample, _sample_block
from stochens.samplers.trajectory import Rules

PRINTED = """\
             R-hat, largest  bulk ESS, least  tail ESS, least
-------------------------------------------------------------
predictions           1.020              900              800
parameters            1.500               20               31

3 divergences, acceptance 0.80, E-BFMI 0.90 to 1.10, tree depth 2.3, 1,234 leapfrogs a draw
! too hot"""


def of(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_a_diagnosis_in_print():
    """Of each quantity the worst; a range where its two ends differ in print; no unknown ones."""
    found = Diagnosis(
        predictions=Mixing(of(1.001, 1.0204), of(1234, 900), of(800, 1500)),
        parameters=Mixing(of(1.5), of(20), of(31)),
        divergences=3,
        e_bfmi=of(0.9, 1.1),
        accept=of(0.8, 0.801),
        depth=2.26,
        leapfrogs=1234.5,
        troubles=["too hot"],
    )
    assert [line.rstrip() for line in str(found).splitlines()] == PRINTED.splitlines()
    bare = found._replace(accept=None, e_bfmi=None, depth=None, leapfrogs=None, troubles=[])
    assert str(bare).endswith("\n3 divergences\nnothing to worry about")


def test_what_is_wrong_with_the_mixing_is_said_and_no_more():
    """R-hat above its limit and ESS below it are troubles; at the limit they are none."""
    limit = torch.tensor([RHAT_LIMIT], dtype=torch.float64)
    just = Mixing(limit, of(2.0 * ESS_LIMIT), of(1.0))
    assert _mixing_in_words(just, 2, "these") is None
    said = _mixing_in_words(just._replace(rhat=of(RHAT_LIMIT + 0.001)), 2, "these")
    assert said.startswith("R-hat of these is up to 1.011 (good: at most 1.01). Ask for more")
    said = _mixing_in_words(just._replace(ess_bulk=of(2.0 * ESS_LIMIT - 1)), 2, "these")
    few = 2 * ESS_LIMIT - 1
    assert said.startswith(f"the draws are worth as few as {few} independent ones for these (good")
    assert said.endswith("for each chain). Ask for more samples")
    assert "R-hat" in str(_mixing_in_words(just._replace(rhat=of(torch.nan)), 2, "these"))
    said = _mixing_in_words(just._replace(rhat=of(torch.nan)), 1, "these")
    assert said.endswith("whether it arrived. Ask for several chains")
    said = _mixing_in_words(Mixing(of(torch.nan), of(7), of(7)), 1, "these")
    assert said.endswith("Ask for several chains and more samples")


def test_two_values_as_far_from_their_middle_have_an_r_hat():
    """Their distances to it are all the same, of which there is no R-hat."""
    draws = (torch.arange(80) % 2).view(2, 40, 1).double()
    assert float(mixing(draws).rhat) < RHAT_LIMIT


@pytest.fixture(scope="module")
def data():
    return stochens.toy_set("b", n=30)


@pytest.mark.filterwarnings("ignore")  # so few draws are troubled
def test_fewer_draws_than_there_are_cannot_be_asked_for(data, tmp_path):
    options = {"kind": "sgld", "chains": 2, "burn_in": 0, "thin": 1, "lr": 1e-3}

    def sample(samples: int, **more):
        return stochens.sgmcmc(nn.Linear(2, 2), data, samples=samples, **gather(**options, **more))

    run = sample(4)
    assert torch.equal(sample(4, resume=run).params["weight"], run.params["weight"])
    with pytest.raises(InputError, match="samples must be at least the 4 that resume has"):
        sample(3, resume=run)
    sample(4, checkpoint=tmp_path / "run")
    with pytest.raises(InputError, match="samples must be at least the 4 of the run there"):
        sample(3, checkpoint=tmp_path / "run")


@pytest.mark.filterwarnings("ignore")  # so few draws are troubled
def test_the_prior_energy_of_sgmcmc_is_that_of_its_draws(data):
    """1/2 lambda |q|^2 of each draw, in float64."""
    options = {"chains": 2, "samples": 3, "burn_in": 2, "thin": 1}
    run = stochens.sgmcmc(nn.Linear(2, 2), data, prior=3.0, **gather(**options))
    flat = torch.cat([p.flatten(1) for p in run.params.values()], 1).double()  # [6, D]
    prior = 0.5 * 3.0 * flat.square().sum(1).view(2, 3)
    # sums of 6 squares in another order
    torch.testing.assert_close(run.chains.stats["prior"], prior, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore")  # a single transition of warm-up is troubled
@pytest.mark.parametrize("sampler", [stochens.nuts, stochens.hmc])
def test_samplers_run_four_chains_and_refuse_no_draws(data, sampler):
    run = sampler(nn.Linear(2, 2), data, samples=1, warmup=1, step_size=0.1)
    assert (run.chains.count, len(run)) == (4, 4)
    with pytest.raises(InputError, match="samples must be"):
        sampler(nn.Linear(2, 2), data, samples=0, warmup=1)
    with pytest.raises(InputError, match="step_size must be"):
        sampler(nn.Linear(2, 2), data, samples=1, warmup=1, step_size=-0.1)


@pytest.mark.filterwarnings("ignore")
def test_a_trajectory_is_a_quarter_turn_of_the_prior(data):
    """pi / 2 standard deviations of N(0, 1 / 4), as Izmailov et al. (2021) have it."""
    options = {"samples": 1, "warmup": 1, "step_size": 0.1, "prior": 4.0}
    run = stochens.hmc(nn.Linear(2, 2), data, **gather(**options))
    assert run.chains.settings["length"] == pytest.approx(math.pi / 4, rel=1e-15)
    assert run.chains.settings["jitter"] == 0.2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sampler", [stochens.nuts, stochens.hmc])
def test_a_checkpoint_of_another_beginning_is_refused(data, sampler, tmp_path):
    """Where chains began, and the step size that they began with, are part of a run."""
    options = {"samples": 2, "warmup": 2, "chains": 1, "checkpoint": tmp_path / "run"}
    sampler(nn.Linear(2, 2), data, step_size=0.1, **gather(**options))
    with pytest.raises(InputError, match=r"step_size was 0\.1 there and is 0\.2 now"):
        sampler(nn.Linear(2, 2), data, step_size=0.2, **gather(**options))
    with pytest.raises(InputError, match="start was"):
        sampler(nn.Linear(2, 2), data, step_size=0.1, start="reset", **gather(**options))


@pytest.mark.filterwarnings("ignore")
def test_one_chain_may_start_from_a_posterior_of_one_member(data):
    net = nn.Linear(2, 2)
    member = stochens.fit(net, data, method="regular", members=1, epochs=1)
    options = {"samples": 1, "warmup": 1, "chains": 1, "step_size": 1e-12, "max_depth": 1}
    run = stochens.nuts(net, data, start=member, **gather(**options))
    # a step of 1e-12 leads nowhere
    torch.testing.assert_close(run.params["weight"], member.params["weight"])


def test_a_start_that_lacks_some_parameters_is_refused(data):
    without = stochens.fit(nn.Linear(2, 2, bias=False), data, method="regular", members=1, epochs=1)
    with pytest.raises(InputError, match=r"'bias' must be .* got absent"):
        stochens.nuts(nn.Linear(2, 2), data, start=without, chains=1, samples=1, warmup=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sampler", [stochens.nuts, stochens.hmc])
def test_chains_start_from_the_prior_or_as_the_network_is_initialised(data, sampler):
    """N(0, 100^2), or torch's own for 2 inputs, which is within 1 / sqrt(2). Steps of 1e-12 lead
    nowhere."""
    options = {"samples": 1, "warmup": 1, "step_size": 1e-12, "prior": 1e-4}
    if sampler is stochens.hmc:
        options["max_leapfrogs"] = 1
    else:
        options["max_depth"] = 1
    for start, least, most in (("prior", 5, 1000), ("reset", 0, 0.7072)):
        run = sampler(nn.Linear(2, 2), data, start=start, **gather(**options))
        values = run.params["weight"].abs()  # 16 of them: the largest is above 5 but for e-21
        assert least <= float(values.max()) <= most


@pytest.mark.filterwarnings("ignore:1 draws of each")
def test_a_run_on_many_machines_has_no_resume(data):
    with pytest.warns(UserWarning, match="transitions diverged"):
        run = stochens.nuts(nn.Linear(2, 2), data, samples=1, warmup=1, chains=1, step_size=50.0)
    with pytest.raises(InputError, match="resume is for one machine"):
        stochens.nuts(
            nn.Linear(2, 2), data, samples=2, warmup=1, run=stochens.Run(engine="ray"), resume=run
        )


def test_a_part_of_the_chains_says_nothing_of_trouble(data, recwarn):
    """The whole run does, once; the parts of it are on other machines."""
    rules = Rules(1, windows(1), 0.8, max_depth=1)
    request = HamiltonianRequest(
        net=nn.Linear(2, 2),
        data=data,
        members=2,
        sampler="nuts",
        rules=rules,
        samples=2,
        step_size=50.0,
        run=stochens.Run(progress=False),
    )
    _sample_block(request)
    assert not recwarn.list
    _sample(request)
    assert "transitions diverged" in str(recwarn.list[0].message)


@pytest.mark.filterwarnings("ignore")
def test_what_did_not_mix_is_named(data):
    """The log density is among it where it is known: of a mini-batch it is mostly noise."""
    x, _ = data
    options = {"samples": 6, "chains": 2, "seed": 3}
    exact = stochens.nuts(
        nn.Linear(2, 2), data, warmup=1, step_size=1e-6, max_depth=1, **gather(**options)
    )
    assert "training inputs and the log density is up to" in str(mixing_trouble(exact, x))
    rough = stochens.sgmcmc(nn.Linear(2, 2), data, burn_in=1, thin=1, lr=1e-9, **gather(**options))
    assert "training inputs is up to" in str(mixing_trouble(rough, x))
