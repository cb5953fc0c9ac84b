"""R-hat, ESS and E-BFMI against ArviZ; troubles are named, and only real ones."""

import dataclasses
import warnings

import arviz
import numpy as np
import pytest
import torch

import stochens
from stochens import InputError
from stochens.samplers import diagnostics
from stochens.samplers.diagnostics import SamplingWarning, e_bfmi, sampler_troubles
from stochens.samplers.mixing import mixing


@pytest.fixture(scope="module")
def run() -> stochens.Posterior:
    x, y = stochens.toy_set("b", n=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return stochens.nuts(stochens.MLP(2, 4, 2), (x, y), samples=200, warmup=200)


def changed(posterior: stochens.Posterior, **stats: torch.Tensor) -> stochens.Posterior:
    assert posterior.chains is not None
    chains = dataclasses.replace(posterior.chains, stats={**posterior.chains.stats, **stats})
    return dataclasses.replace(posterior, chains=chains)


def test_energy_information_is_that_of_arviz():
    energy = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).cumsum(1).double()
    expected = arviz.bfmi(energy.numpy())
    # ArviZ takes the sum of squares of diffs over n - 1 and the variance over n, as we do
    np.testing.assert_allclose(e_bfmi(energy), expected, rtol=2 / 300)


@pytest.mark.parametrize(
    ("chains", "draws", "rho"),
    [
        (4, 400, 0.0),
        (4, 400, 0.9),
        (3, 51, 0.9),
        (4, 20, 0.99),
        (2, 4, 0.0),
        (4, 7, 0.3),
        (4, 200, -0.5),
    ],
)
def test_mixing_is_that_of_arviz_quantity_by_quantity(chains, draws, rho):
    noise = torch.randn(chains, draws, 5, generator=torch.Generator().manual_seed(0)).double()
    q = noise.clone()
    for t in range(1, draws):
        q[:, t] = rho * q[:, t - 1] + (1 - rho**2) ** 0.5 * noise[:, t]
    q[0, :, 1] += 3.0  # a chain that is elsewhere
    q[..., 2] = q[..., 2].round()  # ties
    q[..., 3] = q[..., 3] ** 5  # heavy tails
    q[:, :, 4] = 2.5  # it never moves
    found = mixing(q)
    for k in range(5):
        one = q[..., k].numpy()
        # float64 sums of some hundred terms, in another order and by another FFT
        assert found.ess_bulk[k] == pytest.approx(float(arviz.ess(one)), rel=1e-10)
        assert found.ess_tail[k] == pytest.approx(float(arviz.ess(one, method="tail")), rel=1e-10)
        assert found.rhat[k] == pytest.approx(float(arviz.rhat(one)), rel=1e-10, nan_ok=True)


def test_many_quantities_are_thinned_evenly():
    assert mixing(torch.randn(2, 10, 1001)).rhat.shape == (167,)


def test_a_good_run_has_no_trouble(run):
    fine = changed(run, diverged=torch.zeros(4, 200), depth=torch.full((4, 200), 5.0))
    found = stochens.diagnose(fine, torch.zeros(3, 2))
    assert found.divergences == 0
    assert found.predictions.rhat.shape == (3,)
    assert "R-hat" in str(found)
    assert "predictions" in str(found)
    assert not any("diverged" in t or "max_depth" in t for t in found.troubles)


def test_every_trouble_is_said_with_its_remedy(run):
    diverged = torch.zeros(4, 200)
    diverged[2, :7] = 1
    slow = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)).cumsum(1)
    accept = torch.full((4, 200), 0.8)
    accept[3] = 0.1
    bad = changed(
        run, diverged=diverged, depth=torch.full((4, 200), 10.0), energy=slow, accept=accept
    )
    words = "\n".join(sampler_troubles(bad))
    for part in ("7 of 800", "chain 2", "target_accept", "max_depth=12", "E-BFMI", "chain 3"):
        assert part in words
    with pytest.warns(SamplingWarning, match="7 of 800"):
        diagnostics.warn_of_trouble(bad, torch.zeros(3, 2))


def test_chains_that_disagree_are_said_to(run):
    params = {name: p.clone() for name, p in run.params.items()}
    params["2.bias"][:200, 0] += 20.0  # the first chain is sure of another class
    apart = dataclasses.replace(run, params=params)
    found = stochens.diagnose(apart, torch.zeros(3, 2))
    (said,) = [t for t in found.troubles if "R-hat" in t]
    assert "longer warmup" in said
    assert "independent" in said


def test_too_few_draws_say_so():
    x, y = stochens.toy_set("b", n=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        run = stochens.nuts(torch.nn.Linear(2, 2), (x, y), samples=2, warmup=10)
    found = stochens.diagnose(run, x)
    assert found.predictions is None
    assert any("2 draws of each chain are too few" in t for t in found.troubles)
    str(found)


def test_regressions_and_sgmcmc_are_diagnosed_too():
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    like = stochens.Homoscedastic(noise=0.5)
    run = stochens.nuts(torch.nn.Linear(1, 1), (x, x[:, 0]), likelihood=like, samples=60, warmup=60)
    assert stochens.diagnose(run, x).predictions.rhat.shape == (30,)
    chain = stochens.sgmcmc(torch.nn.Linear(1, 1), (x, x[:, 0]), likelihood=like, samples=20)
    found = stochens.diagnose(chain, x)
    assert found.leapfrogs is None
    assert found.divergences == 0


def test_one_chain_alone_has_no_r_hat():
    data = stochens.toy_set("b", n=60)
    with pytest.warns(SamplingWarning, match="one chain alone has no R-hat, so .* worth as few as"):
        one = stochens.nuts(torch.nn.Linear(2, 2), data, chains=1, samples=20, warmup=20)
    troubles = stochens.diagnose(one, data[0]).troubles
    assert any("one chain alone has no R-hat" in said for said in troubles)
    assert not any("nan" in said for said in troubles)


def test_without_chains_there_is_nothing_to_diagnose(xor):
    fitted = stochens.fit(stochens.MLP(2, 4, 2), xor, members=2, epochs=1)
    with pytest.raises(InputError, match="this posterior has none"):
        stochens.diagnose(fitted, xor[0])


def test_arviz_is_not_needed(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "arviz", None)
    assert stochens.diagnose(run, torch.zeros(3, 2)).predictions.rhat.shape == (3,)


def test_a_chain_that_stands_still_has_the_worst_e_bfmi():
    energy = torch.stack([torch.arange(20.0) % 3, torch.full((20,), 5.0)])
    found = e_bfmi(energy)
    assert found[0] > 0.3
    assert found[1] == 0
