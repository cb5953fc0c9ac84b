"""What predictions show of themselves: the numbers of the metrics, of loops and of others."""

import dataclasses
import math

import pytest
import torch
from scipy import stats
from sklearn.metrics import precision_recall_fscore_support
from tests.figures.samples import DRAWS, EXAMPLES, flat, predicted, truth
from tests.likelihoods.table import ROWS, outputs_of
from tests.long import long_but
from tests.tolerance import close

from stochens import GaussianPredictive, InputError, Predictive, metrics
from stochens.figures.views import few, means_of_surest, wilson
from stochens.likelihoods import draws_of
from stochens.likelihoods.moments import Moments, has_cdf

SUMS = close(torch.float64, terms=100)


@pytest.mark.parametrize("name", ROWS)
def test_draws_taken_apart_are_the_prediction_of_these_draws(name):
    row = ROWS[name]
    p, y = predicted(row), truth(row)
    again, alone = p.of_draws(slice(None)), p.of_draws(slice(1, None, DRAWS))
    torch.testing.assert_close(again.mean, p.mean, **SUMS)
    torch.testing.assert_close(again.log_prob(y), p.log_prob(y), **SUMS)
    one = draws_of(row.like, outputs_of(row, DRAWS, EXAMPLES)[1:2])
    wanted = one.averaged(
        tuple(t.double().mean(0, keepdim=True) for t in one.terms(*one.centre())),
        one.centre(),
        one.parameters,
    )
    torch.testing.assert_close(alone.mean, wanted.mean, **SUMS)
    torch.testing.assert_close(alone.log_prob(y), wanted.log_prob(y), **SUMS)


@pytest.mark.parametrize("name", ROWS)
def test_every_likelihood_states_what_it_shows(name):
    row = ROWS[name]
    p, y = predicted(row), truth(row)
    views, names = p.views, [f"name {k}" for k in range(p.views.width())]
    risk, amounts, rankings = views.risk(y), views.amounts(y, names), views.rankings(y)
    assert risk is not None
    assert bool(risk.risk.isfinite().all())
    assert risk.coverage[-1] == 1
    assert len(amounts) >= 2
    assert [r.title for r in rankings] == ["Most uncertain", "Most confidently wrong"]
    assert all(len(r.score) == EXAMPLES for r in rankings)
    assert views.say(3, y, names)
    if name != "soft-labels":
        table = views.parts(y, names)
        assert table is not None
        assert table.names == names
        assert all(len(column) == len(names) for column in table.columns.values())


# Classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [None, 2])
def test_reliability_has_the_bins_of_the_ece(ignored):
    p, y = flat()
    p = dataclasses.replace(p, ignore_index=ignored)
    found = p.views.reliability(y)
    kept = torch.ones(EXAMPLES, dtype=torch.bool) if ignored is None else y != ignored
    confidence, chosen = p.mean[kept].max(-1)
    order = confidence.argsort().tolist()
    right = (chosen == y[kept]).tolist()
    n, bins, gap, at = len(order), 20, 0.0, 0
    for k in range(bins):  # the larger first, as metrics.calibration_curve says
        size = n // bins + (k < n % bins)
        own = order[at : at + size]
        at += size
        said = math.fsum(float(confidence[i]) for i in own) / size
        came = sum(right[i] for i in own) / size
        torch.testing.assert_close(float(found.promised[k]), said, **SUMS)
        assert float(found.came[k]) == pytest.approx(came, rel=1e-12)
        gap += size / n * abs(said - came)
        low, high = (float(end[k]) for end in found.ends)
        wanted = stats.binomtest(round(came * size), size).proportion_ci(0.95, "wilson")
        assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)  # scipy's z
    assert gap == pytest.approx(float(metrics.ece(p.mean[kept], y[kept])), rel=1e-12)


def test_the_area_under_risk_and_coverage_is_the_aurc():
    p, y = flat()
    tied = dataclasses.replace(p, mean=(p.mean * 8).round().clamp_min(1).div(8))
    tied = dataclasses.replace(tied, mean=tied.mean / tied.mean.sum(-1, keepdim=True))
    for one in (p, tied):
        found, wanted = one.views.risk(y), metrics.risk_coverage(one.mean, y)
        torch.testing.assert_close(found.risk, wanted.risk, **SUMS)
        torch.testing.assert_close(found.coverage, wanted.coverage, **SUMS)
        assert float(found.risk.mean()) == pytest.approx(metrics.aurc(one.mean, y), rel=1e-12)


def test_dense_labels_are_counted_place_by_place():
    row = ROWS["categorical, images"]
    p, y = predicted(row), truth(row)
    y[:, 0, 1] = 255
    rows = p.measures(y)
    seen = p.views.reliability(y)
    kept = y != 255
    confidence = p.mean.amax(-1)[kept]
    counts = torch.bucketize(confidence, torch.arange(1, 20).double() / 20).bincount(minlength=20)
    counts = counts[counts > 0].double()
    gap = (counts * (seen.promised - seen.came).abs()).sum() / counts.sum()
    metric, *given = rows["ECE"]
    assert float(gap) == pytest.approx(float(metric(*given)), rel=1e-12)
    assert seen.ends is None, "places of one example are not independent"
    table = p.views.parts(y)
    scores = metrics.class_scores(p.mean, y, ignore_index=255)
    for name, wanted in (("precision", 0), ("recall", 1), ("F1", 2), ("labels", 3)):
        torch.testing.assert_close(table.columns[name], scores[wanted])
    assert torch.equal(table.confusion, metrics.confusion_matrix(p.mean, y, ignore_index=255))
    iou = float(table.columns["IoU"].mean())
    assert iou == pytest.approx(metrics.mean_iou(table.confusion), rel=1e-12)
    errors = (p.labels[kept] != y[kept]).double()
    assert float(p.views.risk(y).risk[-1]) == pytest.approx(float(errors.mean()), rel=1e-12)
    assert len(p.views.amounts(y)["entropy"].values) == int(kept.sum())
    truths, said, unsure = p.views.maps(3, y)
    assert truths.values[0, 1] == -1
    assert torch.equal(said.values, p.labels[3])
    assert torch.equal(unsure.values, p.entropy[3])


def test_the_most_confidently_wrong_are_wrong_and_the_surest_first():
    p, y = flat()
    score = p.views.rankings(y)[1].score
    wrong = p.labels != y
    assert bool((score[~wrong] == 0).all())
    assert torch.equal(score[wrong], p.mean.amax(-1)[wrong])
    assert torch.equal(p.views.rankings(y)[0].score, p.entropy)


def test_soft_labels_are_right_by_their_probability():
    row = ROWS["soft-labels"]
    p, y = predicted(row), truth(row)
    right = y.gather(-1, p.labels.unsqueeze(-1)).squeeze(-1)
    assert float(p.views.risk(y).risk[-1]) == pytest.approx(float(1 - right.mean()), rel=1e-12)
    assert p.views.parts(y) is None
    assert p.views.reliability(y).ends is None


def test_the_map_of_soft_labels_has_the_likeliest_class_of_each_place():
    y = torch.tensor([[[[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]]]).double()  # [B, H, W, C] = [1, 1, 2, 3]
    p = Predictive.of(torch.full((2, 1, 1, 2, 3), 1 / 3).double())
    assert p.views.maps(0, y)[0].values.tolist() == [[1, 0]]


# Labels of yes or no ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True])
def test_labels_are_those_of_scikit_learn(missing):
    row = ROWS["multilabel"]
    p, y = predicted(row, row.masked), truth(row)
    if missing:
        y[::7, 1] = math.nan
    table, known = p.views.parts(y), ~y.isnan()
    for k in range(3):
        own = known[:, k]
        wanted = precision_recall_fscore_support(
            y[own, k].int(), p.labels[own, k], average="binary", zero_division=0
        )
        found = [float(table.columns[name][k]) for name in ("precision", "recall", "F1")]
        assert found == pytest.approx(wanted[:3], rel=1e-12)
    wrong = (p.labels != y)[known].double()
    assert float(p.views.risk(y).risk[-1]) == pytest.approx(float(wrong.mean()), rel=1e-12)
    seen = p.views.reliability(y)
    place = (p.mean[known] * 20).ceil().long().clamp(1, 20) - 1
    counts = place.bincount(minlength=20)
    counts = counts[counts > 0].double()
    gap = (counts * (seen.promised - seen.came).abs()).sum() / counts.sum()
    metric, *given = p.measures(y)["ECE"]
    assert float(gap) == pytest.approx(float(metric(*given)), rel=1e-12)


# Numbers ------------------------------------------------------------------------------------------

NUMBERS = [name for name, row in ROWS.items() if isinstance(predicted(row), Moments)]


QUICK = ("gaussian", "laplace", "mixture", "quantiles", "poisson")  # the cdf of others takes long


@pytest.mark.parametrize("name", long_but(QUICK, NUMBERS))
@pytest.mark.parametrize("missing", [False, True])
def test_every_level_holds_as_many_targets_as_its_intervals(name, missing):
    row = ROWS[name]
    p, y = predicted(row, row.masked), truth(row).double()
    if missing:
        y[::6, 1] = math.nan
    assert has_cdf(p.each())
    seen, there = p.views.reliability(y), ~y.isnan()
    for k in (1, 9):
        low, high = p.interval(float(seen.promised[k]))
        inside = ((low <= y) & (y <= high))[there].double()
        assert float(seen.came[k]) == float(inside.mean())
    measures = p.measures(y)
    metric, *given = measures["95 % coverage"]
    assert float(seen.came[-1]) == pytest.approx(float(metric(*given)), rel=1e-12)
    metric, *given = measures["RMSE"]
    assert float(p.views.risk(y).risk[-1]) == pytest.approx(float(metric(*given)), rel=1e-9)


def test_the_risk_of_numbers_is_the_rmse_of_the_surest():
    generator = torch.Generator().manual_seed(0)
    means, variances = torch.randn(3, 30, 1, generator=generator), torch.rand(3, 30, 1) + 0.1
    p = GaussianPredictive.of(means.double(), variances.double())
    y = torch.randn(30, generator=generator).double()
    found = p.views.risk(y)
    order = p.std[:, 0].argsort()
    squares = (p.mean[:, 0] - y).square()[order]
    for k in (1, 7, 30):
        wanted = math.sqrt(math.fsum(squares[:k].tolist()) / k)
        assert float(found.risk[k - 1]) == pytest.approx(wanted, rel=1e-12)
    (scatter,) = p.views.scatters(y)
    assert torch.equal(scatter.true, y)
    assert torch.equal(scatter.mean, p.mean[:, 0])
    away = ((p.mean[:, 0] - y).abs() / p.std[:, 0]).tolist()
    assert p.views.rankings(y)[1].score.tolist() == pytest.approx(away, rel=1e-12)


def test_targets_of_other_sizes_count_the_same_among_the_uncertain():
    generator = torch.Generator().manual_seed(0)
    means, variances = (torch.rand(3, 9, 2, generator=generator).double() for _ in range(2))
    units = torch.tensor([1.0, 1e6]).double()
    p = GaussianPredictive.of(means, variances)
    other = GaussianPredictive.of(means * units, variances * units**2)
    y = torch.zeros(9, 2).double()
    for mine, theirs in zip(p.views.rankings(y), other.views.rankings(y), strict=True):
        torch.testing.assert_close(mine.score, theirs.score, **SUMS)


def test_several_numbers_are_told_by_name_and_one_without():
    one = GaussianPredictive.of(torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 0.25))
    assert one.views.say(0, torch.tensor([[1.5]]), ["a"]) == "2.00 ± 0.50, true 1.50"
    two = GaussianPredictive.of(torch.full((1, 3, 2), 2.0), torch.full((1, 3, 2), 0.25))
    y = torch.tensor([[1.5, math.nan], [1.0, 2.0], [1.0, math.nan]])
    two = dataclasses.replace(two, missing="mask")
    said = "a: 2.00 ± 0.50, true 1.50; b: 2.00 ± 0.50, true unknown"
    assert two.views.say(0, y, ["a", "b"]) == said
    assert two.views.parts(y).columns["targets"].tolist() == [3, 1]


# What they share ----------------------------------------------------------------------------------


def test_means_of_the_surest_do_not_depend_on_the_order_of_ties():
    sure = torch.tensor([0.5, 0.9, 0.5, 0.5])
    loss = torch.tensor([1.0, 0.0, 0.0, 1.0])
    wanted = torch.tensor([0, 1 / 3, 4 / 9, 1 / 2], dtype=torch.float64)
    for order in ([0, 1, 2, 3], [2, 3, 0, 1]):
        torch.testing.assert_close(means_of_surest(sure[order], loss[order]), wanted, **SUMS)


def test_some_of_many_have_the_first_and_the_last():
    assert few(1000, 7).tolist() == [0, 166, 333, 500, 666, 832, 999]
    assert few(0, 7).tolist() == []
    low, high = wilson(torch.tensor([0.0, 1.0]).double(), torch.tensor([1, 1]))
    assert low[0] == pytest.approx(0, abs=1e-12)
    assert high[1] == pytest.approx(1, rel=1e-12)


def test_wrong_targets_are_refused():
    p, y = flat()
    for call in (p.views.reliability, p.views.risk, p.views.rankings, p.views.parts):
        with pytest.raises(InputError, match="labels must be integers"):
            call(y[:10])
