"""CRPS, interval score and pinball loss, against loops and quadrature in float64."""

import math

import pytest
import torch
from torch import Tensor, distributions

from stochens import InputError
from stochens.metrics import (
    bootstrap,
    crps,
    gaussian_crps,
    interval_score,
    laplace_crps,
    per_example,
    pinball,
    ranked_probability_score,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_crps_of_draws_is_the_loop_over_pairs():
    draws, y = normal(7, 4, 2), normal(4, 2, seed=1)
    wanted = torch.zeros(4, dtype=torch.float64)
    for b in range(4):
        for k in range(2):
            own = draws[:, b, k]
            near = (own - y[b, k]).abs().mean()
            pairs = sum(float((own[i] - own[j]).abs()) for i in range(7) for j in range(7))
            wanted[b] += (near - pairs / (2 * 7 * 6)) / 2
    torch.testing.assert_close(per_example(crps, draws, y), wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="needs two draws"):
        crps(draws[:1], y)


def by_quadrature(each: distributions.Distribution, y: Tensor) -> Tensor:
    """int (F - 1[y <= t])^2 dt of the mixture over the first axis, in two smooth pieces."""
    found = torch.zeros_like(y)
    for b in range(len(y)):
        at = float(y[b, 0])
        for low, high, step in ((-60.0, at, 0.0), (at, 60.0, 1.0)):
            t = torch.linspace(low, high, 200_001, dtype=torch.float64)
            cdf = each.cdf(t.view(-1, 1, 1, 1))[:, :, b, 0].mean(1)
            found[b] += torch.trapezoid((cdf - step).square(), t)
    return found[:, 0]


def test_crps_of_mixtures_in_closed_form():
    loc, scale, y = 2 * normal(3, 4, 1), normal(3, 4, 1, seed=1).exp(), normal(4, 1, seed=2)
    # the rule's error is h^2 / 12 of the slope's change, h = 6e-4; tails end at exp(-60 / scale)
    close = {"rtol": 1e-5, "atol": 1e-6}
    found = per_example(gaussian_crps, loc, scale.square(), y)
    wanted = by_quadrature(distributions.Normal(loc, scale), y)
    torch.testing.assert_close(found, wanted, **close)
    found = per_example(laplace_crps, loc, scale, y)
    wanted = by_quadrature(distributions.Laplace(loc, scale), y)
    torch.testing.assert_close(found, wanted, **close)


def test_laplace_scales_that_are_almost_equal():
    """The formula for two scales and that for one meet: no jump where they change over."""
    loc, y = torch.tensor([[[0.0]], [[0.7]]]).double(), torch.tensor([[0.3]]).double()
    values = []
    for gap in (0.0, 0.99e-4, 1.01e-4, 1e-3):
        scale = torch.tensor([[[1.0]], [[1.0 + gap]]]).double()
        values.append(laplace_crps(loc, scale, y))
    assert values[2] - values[1] == pytest.approx(0, abs=1e-6)  # the slope is below 1
    assert values[1] == pytest.approx(values[0], abs=1e-4)


def test_a_gaussian_of_no_width_is_its_absolute_error():
    zero = torch.zeros(1, 3, 1)
    y = torch.tensor([[1.0], [-2.0], [0.0]])
    assert per_example(gaussian_crps, zero, zero, y).tolist() == [1.0, 2.0, 0.0]


def test_interval_score_and_pinball_by_hand():
    low, high = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])
    y = torch.tensor([-0.5, 0.5, 3.0])
    assert per_example(interval_score, low, high, y, 0.9).tolist() == pytest.approx(
        [1 + 0.5 * 20, 1.0, 1 + 2 * 20]
    )
    assert per_example(pinball, low, y, 0.9).tolist() == pytest.approx([0.05, 0.45, 2.7])
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="level must be in"):
            interval_score(low, high, y, level)
        with pytest.raises(InputError, match="level must be in"):
            pinball(low, y, level)


def test_twice_the_mean_pinball_loss_is_the_crps():
    """Of N(0, 1), over 20,000 levels: the midpoint rule's error is of the tails, about 1e-4."""
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    quantiles = distributions.Normal(0.0, 1.0).icdf(levels)
    y = torch.tensor(0.8, dtype=torch.float64)
    error = y - quantiles
    mean = torch.maximum(levels * error, (levels - 1) * error).mean()
    exact = gaussian_crps(torch.zeros(1, 1, 1), torch.ones(1, 1, 1), y.view(1, 1))
    assert 2 * float(mean) == pytest.approx(exact, abs=2e-4)


def test_a_proper_score_prefers_the_truth():
    """N(0, 1) data: its own distribution has the least CRPS, interval score and pinball loss."""
    y = normal(4000, 1)
    one = torch.ones(1, 4000, 1, dtype=torch.float64)
    own = gaussian_crps(0 * one, one, y)
    assert own < gaussian_crps(0 * one, 4 * one, y)
    assert own < gaussian_crps(0 * one + 0.5, one, y)
    assert own == pytest.approx(1 / math.sqrt(math.pi), abs=0.03)  # E, within five standard errors
    z = 1.959964 * torch.ones_like(y)
    assert interval_score(-z, z, y) < interval_score(-2 * z, 2 * z, y)
    assert interval_score(-z, z, y) < interval_score(-z / 2, z / 2, y)


def test_ranked_probability_score_is_the_loop():
    probs = normal(6, 4).softmax(-1)
    y = torch.tensor([0, 3, 1, 2, 2, 0])
    for p, label, found in zip(
        probs, y, per_example(ranked_probability_score, probs, y), strict=True
    ):
        wanted = sum((float(p[: k + 1].sum()) - float(label <= k)) ** 2 for k in range(4))
        assert float(found) == pytest.approx(wanted)


def test_intervals_of_scores():
    low, high, y = normal(50) - 2, normal(50, seed=1) + 2, normal(50, seed=2)
    found = bootstrap(interval_score, low, high, y, resamples=50)
    assert found.low <= found.value <= found.high
