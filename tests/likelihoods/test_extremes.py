"""Sizes at which a careless formula gives numbers that are wrong and look right."""

import math
from typing import Any

import pytest
import torch
from tests.tolerance import close, rounding
from torch import distributions

import stochens
from stochens import Heteroscedastic, Homoscedastic, InputError
from stochens.likelihoods import (
    Laplace,
    MixtureDensity,
    NegativeBinomial,
    NumberPredictive,
    Numbers,
    Poisson,
    Quantiles,
    StudentT,
)
from stochens.likelihoods.counts import PoissonCounts
from stochens.likelihoods.special import betainc


@pytest.mark.parametrize("count", [0, 1, 1_000_000_000, 2**53])
@pytest.mark.parametrize("like", [Poisson(), NegativeBinomial()], ids=["poisson", "nb"])
def test_large_counts(like, count):
    """In float32, as a network has it; log y! of 1e9 is 2e10, and the answer about 11."""
    y = like.check_targets(torch.tensor([count]))
    log_mean = torch.tensor([[math.log(max(count, 1) * 1.00001)]])
    log_mean = torch.cat([log_mean] + [torch.full((1, 1), 3.0)] * (like.width(1) - 1), 1)
    found = like.nll(log_mean, y)
    rate, y = log_mean[:, :1].double().exp(), y.double()
    each: Any = distributions.Poisson(rate)
    if like.width(1) == 2:
        total = log_mean[:, 1:].double().exp()
        each = distributions.NegativeBinomial(total, logits=log_mean[:, :1].double() - total.log())
    wanted = -each.log_prob(y).sum(-1).mean()
    # both in float64, where terms of the size y log y cancel; what is found is rounded to float32
    within = close(torch.float32, terms=2)
    within["atol"] += rounding(torch.float64, terms=4) * count * math.log(count + 2)
    torch.testing.assert_close(found.double(), wanted, **within)


def test_a_count_beyond_the_largest_is_refused_though_float32_would_round_it_down():
    with pytest.raises(InputError, match=r"whole numbers from 0 to 2\^53"):
        Poisson().check_targets(torch.tensor([2**53 + 2]))


def test_quantiles_of_large_counts_are_near_the_gaussian_ones():
    rate = torch.tensor([[[1e9]]])
    p = NumberPredictive.of(Numbers(PoissonCounts, rate=rate.double()))
    sd = math.sqrt(1e9)
    for level, z in ((0.025, -1.959964), (0.5, 0.0), (0.975, 1.959964)):
        # Cornish and Fisher: the next term is (z^2 - 1) / 6, below 1, and whole numbers are 1 apart
        assert float(p.quantile(level)) == pytest.approx(1e9 + z * sd, abs=3)
    assert p._counts() is None, "too many to add up"
    # of one Poisson distribution: about that of a Gaussian, with no mutual information
    assert float(p.entropy) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1e9), abs=0.2)
    assert float(p.mutual_information) == pytest.approx(0.0, abs=1e-6)


def test_negative_binomial_with_a_large_dispersion_is_a_poisson_distribution():
    y = torch.arange(20.0).unsqueeze(1)
    log_mean = torch.full((20, 1), 1.5)
    near = NegativeBinomial().nll(torch.cat([log_mean, torch.full((20, 1), 99.0)], 1), y)
    # r = 1e8: the variance differs by m / r = 4e-8; log Gamma of 1e8 is 2e9, twice, in float64; the
    # mean of 20 numbers is rounded to float32
    within = close(torch.float32, terms=20)
    within["atol"] += rounding(torch.float64, terms=2) * 2e9
    torch.testing.assert_close(near, Poisson().nll(log_mean, y), **within)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_small_and_large_scales(scale):
    """A standard deviation of 1e-12 around 0, and of 1e12, in float32."""
    log_square = 2 * math.log(scale)
    # log_square is 55 in size, and its rounding is that of the logarithm of a scale: the NLL's own,
    # and relative to the scale
    within = rounding(torch.float32, terms=0, condition=abs(log_square))
    y = torch.tensor([[0.5 * scale]])
    outputs = torch.tensor([[0.0, log_square]])
    references = {
        Heteroscedastic(): distributions.Normal(0.0, scale),
        StudentT(df=5.0): distributions.StudentT(5.0, 0.0, scale),
        Laplace(): distributions.Laplace(0.0, scale),
    }
    for like, reference in references.items():
        wanted = -reference.log_prob(y.double()).item()
        assert like.nll(outputs, y).item() == pytest.approx(wanted, abs=within)
        draws = like.distribution(outputs.unsqueeze(0))
        _mean, variance = draws.moments()
        sd = reference.stddev
        assert variance.sqrt().item() == pytest.approx(float(sd), rel=within)
        centre = draws.centre()
        terms = tuple(t.double() for t in draws.terms(*centre))  # of one draw, and so averages
        p = draws.averaged(terms, centre, draws.parameters)
        low, high = p.interval(0.9)
        assert high.item() == pytest.approx(-low.item(), rel=within)
        share = reference.cdf(high.double()) if not isinstance(like, StudentT) else None
        assert share is None or share.item() == pytest.approx(0.95, abs=within)
        assert p.crps(y).item() > 0
    wide = MixtureDensity(components=1).nll(torch.tensor([[0.0, 0.0, log_square]]), y)
    wanted = -distributions.Normal(0.0, scale).log_prob(y.double()).item()
    assert wide.item() == pytest.approx(wanted, abs=within)


def test_a_noise_that_is_given_may_be_tiny():
    like, y = Homoscedastic(1e-12), torch.zeros(3, 1)
    assert like.nll(torch.zeros(3, 1), y).item() == pytest.approx(
        0.5 * math.log(2 * math.pi) + math.log(1e-12), rel=rounding(torch.float32, terms=3)
    )
    p = like.distribution(torch.zeros(1, 3, 1))
    assert p.variances.min() > 0


def test_quantiles_that_are_equal_or_cross():
    """Their distribution has a least width, and no density is infinite."""
    like = Quantiles((0.1, 0.5, 0.9))
    outputs = torch.tensor([[[1.0, 1.0, 1.0]], [[3.0, 1.0, 2.0]]])  # [S, B, 3]
    p = NumberPredictive.of(like.distribution(outputs))
    assert p.log_prob(torch.ones(1, 1)).isfinite().all()
    assert p.variance.isfinite().all()
    crossed = NumberPredictive.of(like.distribution(outputs[1:]))
    for level, wanted in ((0.1, 1.0), (0.5, 2.0), (0.9, 3.0)):
        # a number of the outputs, by a spline of 3 terms
        rel = rounding(torch.float32, terms=3)
        assert crossed.quantile(level).item() == pytest.approx(wanted, rel=rel)


def test_bad_options():
    for make, said in (
        (lambda: StudentT(df=2.0), "df must be above 2"),
        (lambda: StudentT(scale=0.0), "scale must be a positive number or None"),
        (lambda: Laplace(scale=math.nan), "scale must be a positive number or None"),
        (lambda: Laplace(missing="drop"), "missing must be 'refuse' or 'mask'"),
        (lambda: Quantiles((0.5,)), "levels must be two or more, rising"),
        (lambda: Quantiles((0.9, 0.1)), "levels must be two or more, rising"),
        (lambda: Quantiles((0.0, 0.5)), r"rising, in \(0, 1\)"),
        (lambda: Quantiles(scale=0.0), "scale must be a positive number"),
        (lambda: MixtureDensity(components=0), "components must be 1 or more"),
        (lambda: MixtureDensity(components=1.5), "components must be a whole number"),
        (lambda: stochens.likelihoods.Binary(class_weights=[1.0]), "class_weights must be two"),
    ):
        with pytest.raises(InputError, match=said):
            make()


def test_targets_with_nan_are_refused_by_predictions_that_do_not_mask():
    p = NumberPredictive.of(Poisson().distribution(torch.zeros(2, 3, 1)))
    holes = torch.tensor([1.0, math.nan, 2.0])
    with pytest.raises(InputError, match="targets have 1 NaN; a likelihood with missing='mask'"):
        p.log_prob(holes)
    masked = NumberPredictive.of(Poisson(missing="mask").distribution(torch.zeros(2, 3, 1)))
    assert masked.log_prob(holes).tolist() == pytest.approx([-1.0, 0.0, -1.0 - math.log(2)])
    rows = masked.measures(holes)
    metric, *arrays = rows["RMSE"]
    assert metric(*arrays) == pytest.approx(math.sqrt(0.5))
    assert {len(arrays[-1]) for _, *arrays in rows.values()} == {2}, "one row is left out"
    two = NumberPredictive.of(Poisson(missing="mask").distribution(torch.zeros(2, 3, 2)))
    y = torch.tensor([[1.0, math.nan], [3.0, 1.0], [1.0, 1.0]])
    metric, *arrays = two.measures(y)["RMSE"]
    assert metric(*arrays) == pytest.approx(math.sqrt(4 / 5))
    metric, *arrays = two.measures(y)["95 % coverage"]
    assert metric(*arrays) == pytest.approx(1.0)


def test_the_incomplete_beta_function_is_scipys():
    special = pytest.importorskip("scipy.special")
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return 10 ** (low + (high - low) * torch.rand(500, generator=generator).double())

    # terms of the size a log a cancel: 1e-16 of 1e5 and of 1e9 times their logarithms
    for low, high, within in ((-2, 3, 1e-11), (3, 5, 1e-9), (-1, 8, 1e-5)):
        a, b = draw(low, high), draw(low, high)
        sd = (a * b / ((a + b) ** 2 * (a + b + 1))).sqrt()
        x = (a / (a + b) + 2 * sd * torch.randn(500, generator=generator)).clamp(1e-12, 1 - 1e-12)
        found = betainc(a, b, x, 1 - x)
        assert (
            found - torch.as_tensor(special.betainc(a.numpy(), b.numpy(), x.numpy()))
        ).abs().max() < within
    ends = betainc(torch.ones(2), torch.ones(2), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert ends.tolist() == [0.0, 1.0]
