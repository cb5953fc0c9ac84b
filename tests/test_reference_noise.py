"""The row of a reference's own noise, where the truth is known: chains over Dirichlet draws."""

import numpy as np
import pytest
import torch

from stochens.comparison import closeness, own_noise
from stochens.posterior.predictive import Predictive
from stochens.reference_noise import as_if_apart, stand_ins

B, REPEATS = 60, 20
MONTE_CARLO = 4.0  # standard errors of a mean over the repeats


def sampled(alpha, chains, draws, stay, rng):
    """Draws [chains, draws, B, C] of Dirichlet(alpha), alpha [B, C]: each is the one before it with
    probability `stay`, so that their autocorrelation is stay^lag and their law is still exact."""
    fresh = rng.standard_gamma(alpha, size=(chains, draws, *alpha.shape))
    fresh /= fresh.sum(-1, keepdims=True)
    stays = rng.random(fresh.shape[:-1]) < stay
    stays[:, 0] = False
    since = np.where(stays, 0, np.arange(draws)[:, None])
    since = np.maximum.accumulate(since, axis=1)[..., None]
    return torch.from_numpy(np.take_along_axis(fresh, since, axis=1))


def predictive(draws):
    chains = tuple(Predictive.of(chain) for chain in draws)
    mean, aleatoric = (
        torch.stack([getattr(chain, name) for chain in chains]).mean(0)
        for name in ("mean", "aleatoric")
    )
    return Predictive(mean, aleatoric, None, chains)


def truth(alpha):
    """E p = alpha / sum alpha, and E H[p] in closed form."""
    alpha = torch.from_numpy(alpha)
    total = alpha.sum(-1, keepdim=True)
    mean = alpha / total
    entropy = -(mean * (torch.digamma(alpha + 1) - torch.digamma(total + 1))).sum(-1)
    return Predictive(mean, entropy, None)


def values(row):
    return np.array([interval.value for interval in row.values()])


@pytest.mark.parametrize(
    ("chains", "draws", "stay"),
    [(2, 60, 0.0), (4, 25, 0.0), (4, 300, 0.8), (3, 200, 0.5), (8, 150, 0.8), (10, 20, 0.0)],
)
def test_the_row_is_the_distance_to_the_truth(chains, draws, stay):
    rng = np.random.default_rng(chains)
    alpha = rng.uniform(0.5, 3.0, size=(B, 3))
    said, actual, apart = [], [], []
    for _ in range(REPEATS):
        p = predictive(sampled(alpha, chains, draws, stay, rng))
        said.append(values(own_noise(p, resamples=None)))
        actual.append(values(closeness(p, truth(alpha), resamples=None)))
        a = chains // 2
        halves = [[1 / a] * a + [0.0] * (chains - a), [0.0] * a + [1 / (chains - a)] * (chains - a)]
        one, other = (p.of_chains(weights) for weights in halves)
        apart.append(values(closeness(one, other, resamples=None)))
    difference = np.array(said) - np.array(actual)
    error = difference.std(0, ddof=1) / REPEATS**0.5
    assert (np.abs(difference.mean(0)) < MONTE_CARLO * error).all()
    # what stood there before: half against half is twice as far, for an odd number yet farther
    assert np.mean(apart, 0)[1] / np.mean(actual, 0)[1] == pytest.approx(2.05, rel=0.1)


def test_half_of_the_chains_against_all_of_them():
    p = predictive(sampled(np.ones((5, 3)), 4, 10, 0.0, np.random.default_rng(0)))
    found = list(stand_ins(p))
    assert len(found) == 6
    torch.testing.assert_close(found[0].mean, (p.chains[0].mean + p.chains[1].mean) / 2)
    for weights in ([0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4]):
        assert p.of_chains(weights).mean.sum(-1).numpy() == pytest.approx(1.0)


@pytest.mark.parametrize("chains", [2, 3, 5, 9, 16])
def test_weights_never_leave_the_probabilities(chains):
    """One class or the other for sure: an average with a negative weight would leave [0, 1]."""
    sure = torch.eye(2, dtype=torch.float64)[torch.arange(chains) % 2]  # [chains, C]
    p = predictive(sure[:, None, None, :])
    means = torch.stack([h.mean for h in stand_ins(p)])
    assert len(means) <= 70
    assert float(means.min()) >= 0
    assert float(means.max()) <= 1


@pytest.mark.parametrize(("chains", "stay"), [(4, 0.0), (4, 0.8), (3, 0.5)])
def test_few_draws_of_a_reference_are_held_against_it_as_against_another(chains, stay):
    rng = np.random.default_rng(1)
    alpha = rng.uniform(0.5, 3.0, size=(B, 3))
    said, actual = [], []
    for _ in range(REPEATS):
        own, another = (sampled(alpha, chains, 200, stay, rng) for _ in range(2))
        few = Predictive.of(own[: chains // 2].flatten(0, 1)[::5])
        said.append(values(closeness(few, as_if_apart(predictive(own)), resamples=None)))
        actual.append(values(closeness(few, predictive(another), resamples=None)))
    difference = np.array(said) - np.array(actual)
    error = difference.std(0, ddof=1) / REPEATS**0.5
    assert (np.abs(difference.mean(0)) < MONTE_CARLO * error).all()
