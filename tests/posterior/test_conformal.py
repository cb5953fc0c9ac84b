"""Conformal sets and intervals: against loops in float64, MAPIE, and the law of their coverage."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import stochens
from stochens import GaussianPredictive, InputError
from stochens.posterior import conformal_sets as own_module
from stochens.posterior.calibration import (
    ConformalIntervals,
    ConformalSets,
    conformal_intervals,
    conformal_sets,
    smallest_calibration_set,
)
from stochens.posterior.conformal import rank

REPETITIONS = 200
SMALLEST = 12  # examples of a group or class, in every repetition


def miscalibrated(count: int, *, classes: int = 6, seed: int = 0):
    """Probabilities that are too sure, and labels from less sure ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    y = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator).squeeze(1)
    return (2 * logits).softmax(-1), y


def scores_by_loop(probs, score, u, penalty, free):
    """Of every class, for one row of probabilities."""
    order = sorted(range(len(probs)), key=lambda c: (-probs[c], c))
    found = [0.0] * len(probs)
    total = 0.0
    for place, c in enumerate(order, 1):
        total += probs[c]
        if score == "lac":
            found[c] = 1 - probs[c]
        else:
            found[c] = total - u * probs[c]
            found[c] += penalty * max(0, place - free) if score == "raps" else 0.0
    return found


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_are_those_of_a_loop(score):
    held, y = miscalibrated(60)
    new, _ = miscalibrated(20, seed=1)
    options = {"penalty": 0.05, "free_ranks": 2, "seed": 3}
    sets = conformal_sets(held, y, alpha=0.2, score=score, last="randomized", **options)
    u = own_module.uniform(60, 3, own_module.FITTING).squeeze(1).tolist()
    rows = zip(held.tolist(), u, y.tolist(), strict=True)
    scores = sorted(scores_by_loop(p, score, v, 0.05, 2)[c] for p, v, c in rows)
    k = math.ceil(61 * 0.8)
    # sums of 6 probabilities in another order
    assert sets.thresholds[0] == pytest.approx(scores[k - 1], rel=1e-14)
    u = own_module.uniform(20, 3, own_module.PREDICTING).squeeze(1).tolist()
    wanted = [
        [s <= sets.thresholds[0] for s in scores_by_loop(p, score, v, 0.05, 2)]
        for p, v in zip(new.tolist(), u, strict=True)
    ]
    assert sets(new).tolist() == wanted


def coverage(score, last, groups, repetition):
    """Of sets from 60 held-out examples, on 400 new ones; of each group where there are any."""
    held, y = miscalibrated(60, seed=2 * repetition)
    new, y_new = miscalibrated(400, seed=2 * repetition + 1)
    options = {"alpha": 0.2, "score": score, "last": last, "seed": repetition}
    if groups is None:
        inside = conformal_sets(held, y, **options)(new)
    else:
        # the groups tell how hard an example is, so that one threshold would not do
        easy, easy_new = (p.amax(-1) > 0.6 for p in (held, new))
        assert min(easy.sum(), (~easy).sum()) >= SMALLEST
        sets = conformal_sets(held, y, groups=easy, **options)
        inside = sets(new, groups=easy_new)
        hit = inside.gather(1, y_new[:, None]).squeeze(1).double()
        return [hit[easy_new].mean().item(), hit[~easy_new].mean().item()]
    return [inside.gather(1, y_new[:, None]).double().mean().item()]


@pytest.mark.parametrize(
    ("score", "last", "groups"),
    [
        ("lac", "include", None),
        ("aps", "randomized", None),
        ("raps", "randomized", None),
        ("aps", "include", None),
        ("lac", "include", (0, 1)),
    ],
)
def test_coverage_over_repetitions_is_what_it_says(score, last, groups):
    found = np.array([coverage(score, last, groups, r) for r in range(REPETITIONS)])  # [200, G]
    for column in found.T:
        error = column.std(ddof=1) / math.sqrt(REPETITIONS)  # of both draws
        assert column.mean() >= 0.8 - 4 * error
        if last == "include" and score != "lac":
            continue  # a little above
        most = 1 / 61 if groups is None else 1 / (SMALLEST + 1)
        assert column.mean() <= 0.8 + most + 4 * error


def test_coverage_of_each_class():
    def by_class(repetition):
        held, y = miscalibrated(90, classes=3, seed=2 * repetition)
        new, y_new = miscalibrated(600, classes=3, seed=2 * repetition + 1)
        held[:, 0] *= 0.3  # class 0 is rarely believed in
        new[:, 0] *= 0.3
        held, new = (p / p.sum(1, keepdim=True) for p in (held, new))
        assert y.bincount().min() >= SMALLEST
        inside = conformal_sets(held, y, alpha=0.2, groups="class")(new)
        hit = inside.gather(1, y_new[:, None]).squeeze(1).double()
        marginal = conformal_sets(held, y, alpha=0.2)(new).gather(1, y_new[:, None]).squeeze(1)
        return [hit[y_new == c].mean().item() for c in range(3)] + [
            marginal[y_new == 0].double().mean().item()
        ]

    found = np.array([by_class(r) for r in range(REPETITIONS)])
    error = found.std(0, ddof=1) / math.sqrt(REPETITIONS)
    assert (found.mean(0)[:3] >= 0.8 - 4 * error[:3]).all()
    assert (found.mean(0)[:3] <= 0.8 + 1 / (SMALLEST + 1) + 4 * error[:3]).all()
    assert found.mean(0)[3] < 0.7  # what one threshold for all does to it


def test_coverage_of_one_calibration_set_has_its_beta_law():
    """Of residuals from U(0, 1) the coverage of the interval +-q is q itself, exactly."""
    n, alpha = 50, 0.1
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(REPETITIONS, n, generator=generator, dtype=torch.float64)
    covered = [
        conformal_intervals(torch.zeros(n, 1), row, alpha=alpha, score="absolute").thresholds[0][0]
        for row in y
    ]
    k = math.ceil((n + 1) * (1 - alpha))
    law = stats.beta(k, n + 1 - k)
    assert stats.kstest(covered, law.cdf).pvalue > 0.01  # one fixed seed
    assert abs(np.mean(covered) - k / (n + 1)) < 4 * law.std() / math.sqrt(REPETITIONS)


@pytest.mark.parametrize("score", ["absolute", "normalized", "quantile"])
def test_intervals_are_those_of_a_loop_and_cover(score):
    def made(count, seed):
        generator = torch.Generator().manual_seed(seed)
        means = torch.randn(3, count, 2, generator=generator, dtype=torch.float64)
        sds = torch.rand(3, count, 2, generator=generator, dtype=torch.float64) + 0.2
        p = GaussianPredictive.of(means, sds.square())
        noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
        return p, p.mean + 3 * p.std * noise  # three times as wide as it says

    alpha, hits = 0.2, []
    repetitions = 60 if score == "quantile" else REPETITIONS  # quantiles are slow
    for repetition in range(repetitions):
        p, y = made(40, 2 * repetition)
        new, y_new = made(100, 2 * repetition + 1)
        intervals = conformal_intervals(p, y, alpha=alpha, score=score)
        low, high = intervals(new)
        hits.append(((low <= y_new) & (y_new <= high)).double().mean(0))
        if repetition < 3:
            for d in range(2):
                rows = [(p.mean[i, d], p.std[i, d], y[i, d]) for i in range(40)]
                if score == "quantile":
                    a, b = p.quantile(0.1)[:, d], p.quantile(0.9)[:, d]
                    each = [max(a[i] - y[i, d], y[i, d] - b[i]).item() for i in range(40)]
                else:
                    each = [
                        (abs(t - m) / (s if score == "normalized" else 1)).item()
                        for m, s, t in rows
                    ]
                wanted = sorted(each)[math.ceil(41 * 0.8) - 1]
                assert intervals.thresholds[0][d] == pytest.approx(wanted, rel=1e-14)
    found = torch.stack(hits)  # [repetitions, D]
    error = found.std(0) / math.sqrt(repetitions)
    assert (found.mean(0) >= 1 - alpha - 4 * error).all()
    assert (found.mean(0) <= 1 - alpha + 1 / 41 + 4 * error).all()


def test_intervals_of_groups():
    y = torch.cat([torch.arange(1.0, 10.0), 10 * torch.arange(1.0, 10.0)])
    groups = ["narrow"] * 9 + ["wide"] * 9
    intervals = conformal_intervals(
        torch.zeros(18, 1), y, alpha=0.1, score="absolute", groups=groups
    )
    assert intervals.thresholds == ((9.0,), (90.0,))
    _, high = intervals(torch.zeros(2, 1), groups=["wide", "narrow"])
    assert high.flatten().tolist() == [90.0, 9.0]
    with pytest.raises(InputError, match="group 'other' was not among the held-out examples"):
        intervals(torch.zeros(1, 1), groups=["other"])
    with pytest.raises(InputError, match="pass groups="):
        intervals(torch.zeros(1, 1))


@given(n=st.integers(1, 300), percent=st.integers(1, 99))
def test_the_rank_is_exact_and_the_needed_number_is_the_smallest(n, percent):
    alpha = percent / 100
    k = -(-(n + 1) * (100 - percent) // 100)  # in whole numbers
    if k <= n:
        assert rank(n, alpha) == k
        assert n >= smallest_calibration_set(alpha)
    else:
        needed = smallest_calibration_set(alpha)
        assert n < needed
        with pytest.raises(InputError, match=f"needs at least {needed} held-out examples"):
            rank(n, alpha)


def test_they_are_kept_as_json():
    probs, y = miscalibrated(40)
    sets = conformal_sets(probs, y, score="aps", groups=(y > 2).tolist(), alpha=0.2)
    again = ConformalSets(**json.loads(json.dumps(dataclasses.asdict(sets))))
    assert torch.equal(again(probs, groups=y > 2), sets(probs, groups=y > 2))
    intervals = conformal_intervals(torch.zeros(40, 1), y.double(), score="absolute")
    back = ConformalIntervals(**json.loads(json.dumps(dataclasses.asdict(intervals))))
    assert torch.equal(back(torch.zeros(2, 1))[0], intervals(torch.zeros(2, 1))[0])


def test_no_set_is_empty_where_the_last_class_is_included():
    probs, y = miscalibrated(200)
    for score in ("aps", "raps"):
        inside = conformal_sets(probs, y, alpha=0.8, score=score)(probs)
        assert inside.any(1).all()
        assert inside.gather(1, probs.argmax(1, keepdim=True)).all()


def test_classes_of_probability_zero_break_no_promise():
    """A label that was never believed in makes the score 1, and the set everything."""
    probs = torch.tensor([[1.0, 0.0, 0.0]] * 20, dtype=torch.float64)
    sets = conformal_sets(probs, torch.ones(20, dtype=torch.long), alpha=0.1, score="aps")
    assert sets(probs).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.0}, r"alpha must be a number in \(0, 1\)"),
        ({"alpha": 0.01}, "alpha = 0.01 needs at least 99 held-out examples, got 30"),
        ({"groups": "class", "alpha": 0.05}, "at least 19 held-out examples of class 0, got"),
        ({"groups": [0] * 29 + [1]}, "at least 9 held-out examples of group 1, got 1"),
        ({"groups": [0, 1]}, "one name or number for each of the 30 examples, got 2"),
        ({"groups": 3}, "one name or number for each example"),
        ({"groups": "label"}, "unknown groups 'label'"),
        ({"score": "apps"}, "unknown score 'apps'; did you mean 'aps'"),
        ({"last": "leave"}, "unknown last"),
        ({"y": torch.zeros(29).long()}, r"labels must be \[B\]"),
        ({"penalty": -1.0}, "penalty must not be negative"),
        ({"p": torch.randn(30, 6)}, "must be >= 0 and sum to one"),
    ],
)
def test_bad_input_is_one_clear_error(change, words):
    probs, y = miscalibrated(30)
    with pytest.raises(InputError, match=words):
        conformal_sets(**{"p": probs, "y": y} | change)


def test_bad_input_of_intervals():
    y = torch.zeros(30)
    with pytest.raises(InputError, match="needs a prediction of numbers"):
        conformal_intervals(torch.zeros(30, 1), y)
    with pytest.raises(InputError, match=r"targets must be \(30, 1\), got \(3, 1\)"):
        conformal_intervals(torch.zeros(30, 1), y[:3], score="absolute")
    still = GaussianPredictive.of(torch.zeros(1, 30, 1), torch.zeros(1, 30, 1))
    with pytest.raises(InputError, match="standard deviation is 0"):
        conformal_intervals(still, y)
    with pytest.raises(InputError, match="without groups"):
        conformal_intervals(torch.zeros(30, 1), y, score="absolute")(torch.zeros(2, 1), groups=[1])
    with pytest.raises(InputError, match="of 1 targets, and the prediction of 2"):
        conformal_intervals(torch.zeros(30, 1), y, score="absolute")(torch.zeros(2, 2))


# -- MAPIE, where it is installed --------------------------------------------------------------


class Given:
    """A scikit-learn classifier whose features are the probabilities themselves."""

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)
        self.n_features_in_ = classes
        self.fitted_ = True

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return np.asarray(X).argmax(1)

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("score", ["lac", "aps", "aps-randomized"])
def test_sets_are_those_of_mapie(score, monkeypatch):
    classification = pytest.importorskip(
        "mapie.classification", reason="needs MAPIE: pip install mapie"
    )
    from sklearn.base import BaseEstimator, ClassifierMixin

    kind = type("Estimator", (Given, ClassifierMixin, BaseEstimator), {})
    held, y = miscalibrated(200)
    new, _ = miscalibrated(100, seed=1)
    name, _, last = score.partition("-")
    mapie = classification.SplitConformalClassifier(
        kind(6), confidence_level=0.85, prefit=True, conformity_score=name, random_state=5
    )
    mapie.conformalize(held.numpy(), y.numpy())
    how = {"conformity_score_params": {"include_last_label": last or True}} if name != "lac" else {}
    wanted = mapie.predict_set(new.numpy(), **how)[1][..., 0]

    def uniform(rows, seed, stream):
        return torch.tensor(np.random.RandomState(5).uniform(size=(rows, 1)))

    monkeypatch.setattr(own_module, "uniform", uniform)
    sets = conformal_sets(held, y, alpha=0.15, score=name, last=last or "include")
    assert np.array_equal(sets(new).numpy(), wanted)


def test_penalties_are_those_of_mapie():
    raps = pytest.importorskip(
        "mapie.conformity_scores.sets.raps", reason="needs MAPIE: pip install mapie"
    )
    held, y = miscalibrated(50)
    score = raps.RAPSConformityScore()
    score.classes = np.arange(6)
    total, place = score.get_true_label_cumsum_proba(y.numpy(), held.numpy(), score.classes)
    wanted = score._regularize_conformity_score(np.array([2]), 0.05, total, place)[:, 0, 0]
    _, upto = own_module.summed(held, 0.05, 2)
    found = upto.gather(1, y[:, None]).squeeze(1).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_intervals_are_those_of_mapie():
    regression = pytest.importorskip("mapie.regression", reason="needs MAPIE: pip install mapie")
    from sklearn.base import BaseEstimator, RegressorMixin

    class Same(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        """What it predicts is its only feature."""

        fitted_ = True

        def fit(self, X, y):
            return self

        def predict(self, X):
            return np.asarray(X)[:, 0]

        def __sklearn_is_fitted__(self):
            return True

    generator = torch.Generator().manual_seed(0)
    mean, new = torch.randn(2, 80, 1, generator=generator, dtype=torch.float64)
    y = mean[:, 0] + torch.randn(80, generator=generator, dtype=torch.float64)
    mapie = regression.SplitConformalRegressor(Same(), confidence_level=0.85, prefit=True)
    mapie.conformalize(mean.numpy(), y.numpy())
    wanted = mapie.predict_interval(new.numpy())[1][..., 0]  # [B, 2]
    low, high = conformal_intervals(mean, y, alpha=0.15, score="absolute")(new)
    np.testing.assert_allclose(torch.cat([low, high], 1).numpy(), wanted, rtol=1e-12)


def test_the_names_are_public():
    assert stochens.calibration.conformal_sets is conformal_sets


def test_labels_and_targets_may_be_arrays_and_lists():
    """As scikit-learn's users have them."""
    probs = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    labels = [0, 1, 2, 0] * 5
    want = conformal_sets(probs, torch.tensor(labels))
    assert conformal_sets(probs, labels) == want
    assert conformal_sets(probs.numpy(), np.array(labels)) == want
    assert torch.equal(want(probs.numpy()), want(probs))
    means = torch.zeros(20, 1)
    targets = np.linspace(0, 1, 20)
    known = conformal_intervals(means, torch.as_tensor(targets), score="absolute")
    assert conformal_intervals(means, targets, score="absolute") == known
    with pytest.raises(InputError, match="finite; 1 of 20 rows have NaN or inf"):
        conformal_intervals(means, np.array([math.nan, *targets[1:]]), score="absolute")


def test_log_prob_takes_arrays_and_lists():
    p = stochens.Predictive.of(torch.full((2, 3, 2), 0.5))
    assert torch.equal(p.log_prob([0, 1, 1]), p.log_prob(torch.tensor([0, 1, 1])))
    q = GaussianPredictive.of(torch.zeros(2, 3, 1), torch.ones(2, 3, 1))
    y = np.array([0.0, 1.0, 2.0])
    assert torch.equal(q.log_prob(y), q.log_prob(torch.as_tensor(y)))
