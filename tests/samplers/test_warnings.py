"""Samplers say by themselves that their draws are not enough, or not right; and only then."""

import re
import warnings

import pytest
import torch
from torch import nn

import stochens
from stochens.samplers.diagnostics import SamplingWarning, mixing_trouble

OFFSETS = [1e4, 1e6]  # at the first energies are small beside 1 / eps, and chains stand still


@pytest.fixture(scope="module")
def data():
    return stochens.toy_set("c", n=60)


def said(sample, *arguments, **options):
    """The posterior, and the messages of the SamplingWarnings, which are laid to our door."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = sample(*arguments, progress=False, **options)
    found = [w for w in caught if issubclass(w.category, SamplingWarning)]
    assert all(w.filename == __file__ for w in found)
    return posterior, [str(w.message) for w in found]


@pytest.mark.parametrize("sample", [stochens.nuts, stochens.hmc])
def test_a_good_run_says_nothing(sample, data):
    _, found = said(sample, nn.Linear(2, 2), data, samples=1000, warmup=500)
    assert found == []


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        (stochens.nuts, {"samples": 30, "warmup": 60}),
        (stochens.hmc, {"samples": 30, "warmup": 60}),
        (stochens.sgmcmc, {"samples": 30, "burn_in": 60, "thin": 1}),
    ],
)
def test_a_short_run_says_how_little_its_draws_are_worth(sample, options, data):
    posterior, found = said(sample, nn.Linear(2, 2), data, **options)
    (told,) = [text for text in found if "R-hat" in text]
    numbers = re.search(r"is up to ([\d.]+) \(good: at most 1.01\).* few as ([\d,]+) indep", told)
    assert numbers is not None
    inputs = data[0][::3]  # 20 of the 60
    m = stochens.diagnose(posterior, inputs).predictions
    assert "20 training inputs" in told
    assert "400, which is 100 for each chain" in told
    assert float(numbers[1]) >= round(float(m.rhat.max()), 3)  # the log density may be worse
    assert int(numbers[2].replace(",", "")) <= round(float(m.ess_bulk.min()))
    assert float(m.ess_bulk.min()) < 400


def test_chains_that_stay_where_they_began_are_named(data):
    net = stochens.MLP(2, 5, 2)
    start = {n: 3.0 * torch.randn(2, *p.shape) for n, p in net.named_parameters()}
    _, found = said(
        stochens.sgmcmc, net, data, chains=2, samples=200, thin=1, burn_in=0, lr=1e-6, start=start
    )
    still, told = found
    assert "these chains have not arrived" in still
    (rhat,) = re.findall(r"is up to ([\d.]+|inf) ", told)  # inf: where no draw moved at all
    assert float(rhat) > 1.5


def test_draws_that_are_too_few_to_tell_and_chains_that_are_cold(data):
    _, found = said(stochens.sgmcmc, nn.Linear(2, 2), data, samples=2, burn_in=5)
    assert any("2 draws of each chain are too few for R-hat" in text for text in found)
    _, found = said(stochens.sgmcmc, nn.Linear(2, 2), data, samples=9, burn_in=5, temperature=0.0)
    assert found == []  # they descend to modes, and are not meant to mix


def test_chains_that_are_nan_do_not_hide_the_others(data):
    posterior, _ = said(stochens.sgmcmc, nn.Linear(2, 2), data, samples=30, burn_in=5)
    posterior.params["weight"][:30] = torch.nan  # the first of four chains
    told = mixing_trouble(posterior, data[0])
    assert told is not None
    assert "nan" not in told
    assert "300, which is 100 for each chain" in told


def shifted(offset):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(100, generator=generator, dtype=torch.float64)
    return x, x[:, 0] - x[:, 1] + noise + offset


@pytest.mark.parametrize("offset", OFFSETS)
def test_targets_far_from_zero_are_too_much_for_float32(offset):
    """The posterior is that of the centred targets, but for a shift of the bias. In float32 chains
    stand still wherever they are, and depth says nothing of it."""
    x, y = shifted(offset)
    options = {"likelihood": stochens.Homoscedastic(0.3), "samples": 150, "warmup": 150}
    coarse, found = said(
        stochens.nuts, nn.Linear(2, 1), (x.float(), y.float()), max_depth=5, **options
    )
    (told,) = [text for text in found if "float32 is too coarse here" in text]
    assert "dtype=torch.float64, or bring the targets to mean 0" in told
    assert f"targets up to {offset:.3g}" in told
    assert not any("are right" in text for text in found)
    within = coarse.params["bias"].double().view(4, -1).std(1)
    assert float(within.max()) < 0.01  # the truth is 0.03
    fine, found = said(stochens.nuts, nn.Linear(2, 1).double(), (x, y), **options)
    assert not any("coarse" in text for text in found)
    # 0.3 / sqrt(100 + 0.09), given the weights; 600 draws give their sd to 3 %, if independent
    within = fine.params["bias"].view(4, -1).std(1).mean()
    assert float(within) == pytest.approx(0.03, rel=0.2)


def test_centred_targets_are_fine_in_float32():
    x, y = shifted(0.0)
    _, found = said(
        stochens.nuts,
        nn.Linear(2, 1),
        (x.float(), y.float()),
        likelihood=stochens.Homoscedastic(0.3),
        samples=500,
        warmup=300,
    )
    assert found == []
