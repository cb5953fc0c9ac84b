"""Thresholds and alarms: their bounds against scipy, their promises against known rates."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

import stochens
from stochens import Failed, InputError, Posterior, Predictive
from stochens.posterior.binomial import binomial_cdf, tolerance_rank, upper_bound
from stochens.posterior.selection import (
    energy,
    ood_score,
    outputs_of,
    threshold_for_coverage,
    threshold_for_error,
    threshold_for_false_alarms,
)

REPETITIONS = 200


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 1, 0.3), (3, 10, 0.3), (49, 1000, 0.05), (7, 7, 0.9)]
)
def test_binomials_are_those_of_scipy(k, n, p):
    # lgamma of n = 1000 is about 6000, and float64 keeps 16 digits of it
    assert binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-11)
    wanted = 1.0 if k == n else stats.beta.ppf(0.95, k + 1, n - k)
    assert upper_bound(k, n, 0.05) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "rate", "delta"), [(100, 0.1, 0.05), (500, 0.3, 0.01), (9, 0.5, 0.2)]
)
def test_ranks_of_tolerance_are_those_of_the_beta_law(n, rate, delta):
    fits = [r for r in range(1, n + 1) if stats.beta.cdf(rate, r, n + 1 - r) >= 1 - delta]
    assert tolerance_rank(n, rate, delta) == max(fits, default=0)


def calibrated(count: int, seed: int):
    """Scores 1 - max p from U(0, 1/2), each the probability to be wrong: of those below t an answer
    is wrong with probability t / 2, and a share 2 t is below it."""
    generator = torch.Generator().manual_seed(seed)
    doubt = torch.rand(count, generator=generator, dtype=torch.float64) / 2
    y = (torch.rand(count, generator=generator, dtype=torch.float64) < doubt).long()
    return torch.stack([1 - doubt, doubt], 1), y


def test_the_wanted_error_is_kept_as_often_as_is_promised():
    delta, wanted, true, covered = 0.2, 0.1, [], []
    for repetition in range(REPETITIONS):
        try:
            rule = threshold_for_error(*calibrated(2000, repetition), error=wanted, delta=delta)
        except Failed:  # too many mistakes by chance: nothing is promised, and nothing broken
            covered.append(0.0)
            continue
        true.append(rule.threshold / 2)
        covered.append(rule.coverage)
    broken = sum(error > wanted for error in true)
    assert broken <= stats.binom.ppf(0.999, REPETITIONS, delta)
    assert sum(covered) / REPETITIONS > 0.2  # of the 0.4 that knowing the rates would allow


def test_the_bound_is_not_spent_on_nothing():
    """Of mistakes that lie at one score, the threshold is just below it."""
    probs = torch.tensor([[0.9, 0.1]] * 500 + [[0.6, 0.4]] * 500)
    rule = threshold_for_error(probs, torch.tensor([0] * 500 + [0, 1] * 250), error=0.05)
    assert rule.accepts(probs).tolist() == [True] * 500 + [False] * 500
    assert "P(wrong | answered) <= 0.05 with confidence 0.95" in rule.promise
    everything = threshold_for_error(probs, torch.zeros(1000).long(), error=0.05)
    assert everything.coverage == 1
    assert everything.accepts(torch.tensor([[0.5, 0.5]])).all()


def test_an_error_that_cannot_be_had_says_what_can():
    probs, y = calibrated(200, 0)
    with pytest.raises(Failed, match=r"least that can be promised is 0\.\d+, at coverage") as said:
        threshold_for_error(probs, y, error=0.001)
    # 0.05 / 20 = (1 - 0.001)^n
    assert str(math.ceil(math.log(0.0025) / math.log(0.999))) in str(said.value)


def test_the_wanted_coverage_is_kept_as_often_as_is_promised():
    delta, wanted, true = 0.1, 0.7, []
    for repetition in range(REPETITIONS):
        rule = threshold_for_coverage(*calibrated(150, repetition), coverage=wanted, delta=delta)
        true.append(2 * rule.threshold)
    broken = sum(share < wanted for share in true)
    assert broken <= stats.binom.ppf(0.999, REPETITIONS, delta)
    assert broken >= stats.binom.ppf(0.001, REPETITIONS, delta / 2)  # and not by rejecting nothing
    assert max(true) < 0.9


def test_coverage_with_ties():
    probs = torch.tensor([[0.75, 0.25]] * 100)
    rule = threshold_for_coverage(probs, torch.zeros(100).long(), coverage=0.5)
    assert rule.accepts(probs).all()


def test_false_alarms_are_as_many_as_is_said():
    """Scores from U(0, 1) above t are a share 1 - t, which is Beta(n + 1 - k, k) over the draw."""
    n, rate = 60, 0.1
    scores = torch.rand(
        REPETITIONS, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    true = [1 - threshold_for_false_alarms(row, rate=rate).threshold for row in scores]
    k = math.ceil((n + 1) * (1 - rate))
    assert stats.kstest(true, stats.beta(n + 1 - k, k).cdf).pvalue > 0.01  # one fixed seed
    sure = [1 - threshold_for_false_alarms(row, rate=rate, delta=0.1).threshold for row in scores]
    assert sum(t > rate for t in sure) <= stats.binom.ppf(0.999, REPETITIONS, 0.1)
    assert sum(sure) < sum(true)


def test_scores_of_foreign_inputs():
    draws = torch.rand(4, 5, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    p = Predictive.of(draws)
    torch.testing.assert_close(ood_score(p, "max_prob"), 1 - p.mean.double().amax(-1))
    torch.testing.assert_close(ood_score(p), stochens.metrics.entropy(p.mean))
    assert torch.equal(ood_score(p, "mutual_information"), p.mutual_information.double())
    with pytest.raises(InputError, match="mutual information is of a prediction"):
        ood_score(p.mean, "mutual_information")


def test_energy_is_of_the_logits():
    posterior = Posterior.of([nn.Linear(2, 3) for _ in range(4)])
    x = torch.randn(5, 2)
    logits = outputs_of(posterior, x)
    assert torch.equal(logits.softmax(-1), posterior.predict(x).probs)
    wanted = [
        -sum(2 * math.log(sum(math.exp(z / 2) for z in draw[b].tolist())) for draw in logits) / 4
        for b in range(5)
    ]
    assert energy(logits, temperature=2.0).tolist() == pytest.approx(wanted, rel=1e-12)
    # softmax does not see a shift of all logits, energy does
    assert (energy(logits + 3) < energy(logits) - 2.9).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, y: threshold_for_error(p, y, error=0), r"error must be a number in \(0, 1\)"),
        (lambda p, y: threshold_for_error(p, y, error=0.1, delta=1), "delta must be"),
        (lambda p, y: threshold_for_error(p, y[:3], error=0.1), r"labels must be \[B\]"),
        (lambda p, y: threshold_for_coverage(p, y, coverage=1.0), "coverage must be"),
        (lambda p, y: threshold_for_coverage(p[:9], y[:9], coverage=0.9), "at least 29 held-out"),
        (lambda p, y: threshold_for_false_alarms(p[:9, 0]), "at least 19 held-out examples, got 9"),
        (lambda p, y: threshold_for_false_alarms(p[:9, 0], delta=0.05), "at least 59 held-out"),
        (lambda p, y: threshold_for_false_alarms(p), r"scores must be a tensor \[B\]"),
        (lambda p, y: threshold_for_false_alarms(p[:, 0] * math.nan), "scores are NaN"),
        (lambda p, y: ood_score(p, "entropie"), "did you mean 'entropy'"),
        (lambda p, y: energy(p), r"logits must be \[S, B, C\]"),
    ],
)
def test_bad_input_is_one_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call(*calibrated(100, 0))


def test_too_few_examples_are_refused_by_the_name_of_the_option():
    with pytest.raises(InputError, match=r"rate = 0.05 needs at least 19 .* rate of at least 0.25"):
        threshold_for_false_alarms(torch.arange(3.0), rate=0.05)
