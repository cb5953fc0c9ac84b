"""Bins of dense labels and of labels of yes or no: their edges, and the interval of their ECE."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.long import long_but
from tests.tolerance import rounding
from torch import Tensor

import stochens
from stochens import metrics
from stochens.likelihoods.multilabel import MultilabelPredictive
from stochens.metrics import Interval, bootstrap, dense
from stochens.metrics.bins import design_effects, place_of
from stochens.posterior.predictive import Predictive

NORMAL = torch.distributions.Normal(0.0, 1.0)
ROUNDING = rounding(torch.float64, terms=10_000)  # of size one
KINDS = ["dense", "labels"]
ERRORS = {
    "none": lambda c: 0 * c,
    "constant": lambda c: 0.02 + 0 * c,
    "sloped": lambda c: 0.1 * (c - 0.5),
    "step": lambda c: 0.15 * (c < 0.8),
    "wave": lambda c: 0.8 * (1 - c) * (12 * c).sin(),
}


def predicted(kind: str, confidence: Tensor) -> Predictive | MultilabelPredictive:
    """The first of two classes, or yes, has this probability at each place [B, P]."""
    if kind == "dense":
        return Predictive(torch.stack([confidence, 1 - confidence], -1), 0 * confidence, None)
    return MultilabelPredictive(confidence, 0 * confidence, confidence.logit()[None])


def tables(kind: str, confidence: Tensor, right: Tensor) -> Tensor:
    """What the ECE is measured of, [B, bins, 4]."""
    y = right.long() if kind == "labels" else 1 - right.long()
    _, *(found,) = predicted(kind, confidence).measures(y)["ECE"]
    return found


def interval(tables: Tensor) -> Interval:
    return bootstrap(stochens.metrics.bins.binned_ece, tables)


def confidences(u: Tensor) -> Tensor:
    return 0.5 + 0.5 * u ** (1 / 3)


def drawn(
    seed: int,
    examples: int,
    places: int,
    error: Callable[[Tensor], Tensor],
    of_example: tuple[float, float] = (0.5, 0.5),
) -> tuple[Tensor, Tensor]:
    """Confidences [B, P], and which places are right, with probability confidence - error: these
    shares of the variance of both, as normal numbers, are of the example."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(2, examples, places, generator=generator, dtype=torch.float64)
    shared = torch.randn(2, examples, 1, generator=generator, dtype=torch.float64)
    share = torch.tensor(of_example, dtype=torch.float64).view(2, 1, 1)
    u = NORMAL.cdf((1 - share).sqrt() * own + share.sqrt() * shared)
    confidence = confidences(u[0])
    return confidence, u[1] < confidence - error(confidence)


def true_ece(error: Callable[[Tensor], Tensor]) -> float:
    """Of the bins, by many quantiles of the confidence."""
    confidence = confidences((torch.arange(80_000, dtype=torch.float64) + 0.5) / 80_000)
    place = place_of(confidence, 20, torch.float64)
    return place.bincount(error(confidence), minlength=20).abs().sum().item() / 80_000


# Edges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("written", "place"), [(0.6, 11), (0.8, 15), (1.0, 19), (0.95, 18)])
def test_every_table_has_a_confidence_in_the_bin_that_flat_classes_have_it_in(
    dtype, written, place
):
    """0.6 of float32 is a little above 3 / 5, and in ((k - 1) / 20, k / 20] all the same."""
    probs = torch.tensor([[written, 1 - written]], dtype=dtype)
    y = torch.tensor([0])
    flat = metrics.calibration_curve(probs, y, bins=20, binning="equal-width").count
    seen = dense.statistics(probs[None], y[None]).bins[0, :, 0]
    labels = tables("labels", probs[:, :1], torch.tensor([[True]]))[0, :, 0]
    for found in (flat, seen, labels):
        assert found.nonzero().tolist() == [[place]]


@pytest.mark.parametrize("kind", ["dense", "labels", "soft"])
def test_the_curve_is_drawn_in_the_same_bins(kind):
    """0.6 and 0.58 are in one bin, 0.61 is in the next."""
    confidence = torch.tensor([[0.6, 0.58, 0.61]])
    p = predicted("labels" if kind == "labels" else "dense", confidence)
    y = {
        "dense": torch.zeros(1, 3).long(),
        "labels": torch.ones(1, 3),
        "soft": torch.tensor([1.0, 0.0]).expand(1, 3, 2),
    }[kind]
    promised = p.views.reliability(y).promised
    wanted = [(confidence[0, 0].double() + confidence[0, 1].double()) / 2, confidence[0, 2]]
    assert promised.tolist() == pytest.approx([float(w) for w in wanted], rel=ROUNDING)


# Intervals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", long_but(["none", "step"], ERRORS))
@pytest.mark.parametrize("shape", long_but([(30, 60)], [(30, 60), (100, 20)]))
def test_interval_of_ece_covers_the_error_where_places_depend_on_each_other(kind, error, shape):
    """Calibrated or not. Of 150 sets, 95 % is 142.5 +- 2.7; four standard errors below is 132."""
    truth = true_ece(ERRORS[error])
    all_of = tables(kind, *drawn(0, 150 * shape[0], shape[1], ERRORS[error]))
    found = [interval(one) for one in all_of.split(shape[0])]
    assert sum(low <= truth <= high for _, low, high in found) >= 132
    assert all(low <= value <= high for value, low, high in found)


@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_interval_of_ece_covers_the_error_where_all_bins_of_an_example_err_together(gap):
    """An example has places in every bin, nearly all right or nearly all wrong. 132 as above."""
    error = partial(torch.full_like, fill_value=gap)
    all_of = tables("labels", *drawn(0, 150 * 60, 30, error, of_example=(0.0, 0.9)))
    found = [interval(one) for one in all_of.split(60)]
    assert sum(low <= gap <= high for _, low, high in found) >= 132


@pytest.mark.parametrize("of_example", [0.0, 0.5, 1.0])
def test_design_effects_as_a_loop_over_places_has_them(of_example):
    """Examples of different sizes, and one bin that has places of one example alone."""
    confidence, right = drawn(5, 9, 12, ERRORS["none"], of_example=(0.3, of_example))
    p, y = predicted("dense", confidence.clamp_min(0.56)), 1 - right.long()
    p.mean[8, :2], y[8, :2] = torch.tensor([0.51, 0.49]), torch.tensor([0, 1])
    for b in range(9):
        y[b, 2 + b :] = -1
    probs, own = p.mean, y != -1
    seen = dense.statistics(probs, y, ignore_index=-1).bins
    seen = seen[:, seen[..., 0].sum(0) > 0]
    place = place_of(probs[..., 0], 20, torch.float64)
    error = {
        (b, t): (int(place[b, t]), float(y[b, t] == 0) - float(probs[b, t, 0]))
        for b, t in own.nonzero().tolist()
    }
    bins = sorted({k for k, _ in error.values()})
    mean = {k: of_mean([e for j, e in error.values() if j == k]) for k in bins}
    wanted = [
        loop_effect({at: e - mean[k] for at, (j, e) in error.items() if j == k}) for k in bins
    ]
    signed = {at: e * (1 if mean[k] > 0 else -1) for at, (k, e) in error.items()}
    whole = of_mean(list(signed.values()))
    together = loop_effect({at: e - whole for at, e in signed.items()})
    alike, found = design_effects(seen)
    assert alike.tolist() == pytest.approx(wanted, rel=ROUNDING)
    assert found == pytest.approx(together, rel=ROUNDING)
    assert alike[0] == 2, "nothing tells that two places of one example are not alike"


def of_mean(values: list[float]) -> float:
    return sum(values) / len(values)


def loop_effect(residual: dict[tuple[int, int], float]) -> float:
    """Of residuals by example and place, with one more example whose places are all alike."""
    of = {b: [r for (a, _), r in residual.items() if a == b] for b, _ in residual}
    n, squares = len(residual), sum(len(r) ** 2 for r in of.values())
    size = squares / n
    found = size
    if len(of) > 1:
        over_examples = sum(sum(r) ** 2 for r in of.values()) / (n - size)
        over_places = sum(r**2 for r in residual.values()) / (n - 1)
        found = min(max(over_examples / over_places, 1.0), size)
    examples = n / size
    return (examples * found + size) / (examples + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_tells_calibrated_from_not(kind):
    """By `compare`, as users have it."""
    rows = {}
    for gap in (0.0, 0.1):
        confidence, right = drawn(1, 400, 20, partial(torch.full_like, fill_value=gap))
        p, y = predicted(kind, confidence), right.long() if kind == "labels" else 1 - right.long()
        rows[gap] = stochens.compare({"p": p}, y, show=False).rows["p"]["ECE"]
    assert rows[0.0].value > 0.005, "chance alone adds to it"
    assert rows[0.0].low == 0
    assert 0.05 < rows[0.1].low < 0.1 < rows[0.1].high < 0.15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", ["none", "step"])
def test_one_place_for_each_example_is_as_flat_classes_have_it(kind, error):
    confidence, right = drawn(2, 500, 1, ERRORS[error])
    p, y = predicted("dense", confidence[:, 0]), 1 - right[:, 0].long()
    wanted = metrics.ece_interval(p.mean, y, binning="equal-width")
    assert interval(tables(kind, confidence, right)) == pytest.approx(wanted, abs=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_places_that_repeat_each_other_tell_as_much_as_one(kind):
    confidence, right = drawn(3, 200, 1, ERRORS["step"])
    once = interval(tables(kind, confidence, right))
    often = interval(tables(kind, confidence.expand(-1, 30), right.expand(-1, 30)))
    assert often == pytest.approx(once, abs=ROUNDING)


def test_many_independent_places_tell_more_than_their_examples():
    """Of 50 examples with 200 independent places each. The interval is wider than that of 10,000
    examples, since 50 do not exclude all dependence, and narrower than that of 50."""
    generator = torch.Generator().manual_seed(4)
    u = torch.rand(2, 50, 200, generator=generator, dtype=torch.float64)
    confidence = confidences(u[0])
    right = u[1] < confidence
    together, apart = (
        interval(tables("dense", confidence.reshape(shape), right.reshape(shape)))
        for shape in ((50, 200), (10_000, 1))
    )
    assert together.value == pytest.approx(apart.value, abs=ROUNDING)
    few = interval(tables("dense", confidence[:, :1], right[:, :1]))
    assert apart.high - apart.low <= together.high - together.low
    assert together.high - together.low <= few.high - few.low


def test_one_example_alone_tells_nothing():
    confidence = torch.full((1, 1000), 0.9, dtype=torch.float64)
    value, low, high = interval(tables("dense", confidence, confidence > 0))
    assert value == pytest.approx(0.1, abs=ROUNDING)
    assert low == 0
    assert high == 1
