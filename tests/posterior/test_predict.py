"""Predictive distributions against closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerance import rounding
from torch import nn

from stochens import GaussianPredictive, InputError, Predictive, fit


def test_uncertainty_splits_into_its_parts():
    draws = torch.rand(6, 5, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    p = Predictive.of(draws)
    for b in range(5):
        mean = [sum(float(draws[s, b, c]) for s in range(6)) / 6 for c in range(4)]
        total = -sum(q * math.log(q) for q in mean)
        noise = sum(-sum(float(q) * math.log(float(q)) for q in draws[s, b]) for s in range(6)) / 6
        # p log p of the mean of 6 draws, 4 of them, in float32
        within = rounding(torch.float32, terms=6, depth=2)
        assert float(p.entropy[b]) == pytest.approx(total, rel=within)
        assert float(p.aleatoric[b]) == pytest.approx(noise, rel=within)
        # the difference of two numbers near 1.4
        assert float(p.mutual_information[b]) == pytest.approx(total - noise, abs=2 * 1.4 * within)
    assert torch.equal(p.labels, draws.mean(0).argmax(-1))
    with pytest.raises(InputError, match=r"probs must be \[S, B, C\].*did you average the draws"):
        Predictive.of(draws[0])


def test_samples_follow_the_mean_and_covary_by_draw():
    draws = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    labels = Predictive.of(draws).sample(2000, seed=1)
    assert labels.shape == (2000, 2)
    assert torch.equal(labels[:, 0], labels[:, 1])  # both inputs come from one draw
    assert abs(labels[:, 0].float().mean() - 0.5) < 5 * 0.5 / math.sqrt(2000)
    uneven = Predictive(torch.tensor([[0.2, 0.3, 0.5]]), torch.zeros(1), None)
    counts = uneven.sample(20000).flatten().bincount(minlength=3) / 20000
    # five standard errors of a share
    torch.testing.assert_close(counts, uneven.mean[0], rtol=0, atol=5 * 0.5 / math.sqrt(20000))
    assert torch.equal(uneven.sample(5, seed=3), uneven.sample(5, seed=3))


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3)), min_size=1, max_size=6),
    st.floats(0.02, 0.98),
)
def test_mixture_quantiles_invert_the_mixture_cdf(components, level):
    means = torch.tensor([m for m, _ in components], dtype=torch.float64).view(-1, 1, 1)
    sds = torch.tensor([s for _, s in components], dtype=torch.float64).view(-1, 1, 1)
    p = GaussianPredictive.of(means, sds.square())
    q = float(p.quantile(level))
    cdf = sum(0.5 * (1 + math.erf((q - m) / (s * math.sqrt(2)))) for m, s in components)
    assert cdf / len(components) == pytest.approx(level, abs=1e-9)


def test_gaussian_moments_intervals_and_samples():
    means = torch.tensor([[[0.0]], [[2.0]]])
    p = GaussianPredictive.of(means, torch.full((2, 1, 1), 0.25))
    assert (p.mean.item(), p.aleatoric.item(), p.epistemic.item()) == (1.0, 0.25, 1.0)
    assert p.std.item() == pytest.approx(math.sqrt(1.25))
    low, high = p.interval(0.9)
    y = p.sample(20000, seed=0)
    inside = ((y > low) & (y < high)).float().mean()
    assert abs(inside - 0.9) < 5 * math.sqrt(0.09 / 20000)
    assert y.var() == pytest.approx(1.25, rel=0.05)
    for bad in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="level must be in"):
            p.interval(bad)
    with pytest.raises(InputError, match="must both be"):
        GaussianPredictive.of(means, means[0])


def test_a_spread_that_is_small_beside_the_mean():
    """Two parts in 1e9: the mean of the squares less the square of the mean has no digits left."""
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).unsqueeze(1)

    def net():
        return nn.Linear(1, 1, dtype=torch.float64)

    posterior = fit(net, (x, x), method="regular", members=8, epochs=1, likelihood="gaussian")
    posterior.params["bias"].mul_(1e-3).add_(1e6)
    posterior.params["weight"].mul_(1e-3)
    for cut in (None, 7):
        p = posterior.predict(x, batch_size=cut)
        wanted = p.components()[0].var(0, correction=0)
        # Means of 1e6 with a spread of 7e-4, and a square: a sum of squares would keep no digit.
        within = rounding(torch.float64, terms=2, condition=2 * 1e6 / 7e-4)
        torch.testing.assert_close(p.epistemic, wanted, rtol=within, atol=0)


def test_they_show_their_sizes_and_no_numbers():
    probs, means = torch.full((5, 40, 2), 0.5), torch.zeros(5, 40, 3)
    p = Predictive.of(probs)
    assert repr(p) == "Predictive(5 draws, 40 examples, 2 classes)"
    light = Predictive(p.mean, p.aleatoric, None)
    assert repr(light) == "Predictive(draws not kept, 40 examples, 2 classes)"
    of_numbers = GaussianPredictive.of(means, means + 1)
    assert str(of_numbers) == "GaussianPredictive(5 draws, 40 examples, 3 targets)"


def test_arrays_in_and_arrays_out(xor):
    x, y = xor
    posterior = fit(nn.Linear(2, 2), (x, y), method="regular", members=3, epochs=1)
    p = posterior.predict(x)
    frame = pytest.importorskip("pandas").DataFrame(x.double().numpy(), columns=["a", "b"])
    for given_x in (x.numpy(), x.double().numpy(), x.tolist(), frame):
        found = posterior.predict(given_x).numpy()
        assert set(found) == {"probs", "entropy", "mutual_information"}
        for name, array in found.items():
            assert isinstance(array, np.ndarray)
            assert np.array_equal(array, getattr(p, "mean" if name == "probs" else name).numpy())
    one = posterior.predict(x[:1].numpy(), keep_draws=False).numpy()
    assert one["probs"].shape == (1, 2)
