"""What a likelihood states of tables: classes, columns of predictions, other units."""

import re
from pathlib import Path

import pytest
import torch
from tests.likelihoods.table import ROWS, Row, outputs_of
from tests.likelihoods.test_conformance import NUMBERS, prediction, targets
from tests.long import long_but

import stochens
from stochens import InputError, likelihoods
from stochens.likelihoods import Draws, Likelihood, Predicted, draws_of

SOURCE = Path(stochens.__file__).parents[1]
FLAT = [name for name, row in ROWS.items() if len(row.outputs) == 1]
SLOW = ("student-t", "student-t, scale given")  # their cdf is a continued fraction
UNITS = [name for name in NUMBERS if ROWS[name].like.in_units]
# float64 on both sides; a quantile has the rounding of its cdf, 1e-16, over the density there, 1e-4
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def one(row: Row, rows: int = 5):
    return prediction(row, outputs_of(row, 4, rows))


@pytest.mark.parametrize("name", [n for n in FLAT if ROWS[n].like.targets == "classes"])
def test_classes_are_those_of_the_prediction(name):
    row = ROWS[name]
    outputs = outputs_of(row, 4)
    assert row.like.classes(outputs) == draws_of(row.like, outputs[None]).probs.shape[-1]
    if name != "categorical":  # whose outputs may have an axis of places
        with pytest.raises(InputError, match=r"must return .*\(4, 7, 7\)"):
            row.like.classes(torch.zeros(4, 7, 7))


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_out_of_an_order_are_refused(label):
    message = f"label {label} is out of range: the network has 3 outputs, .* 4 classes, 0 to 3"
    with pytest.raises(InputError, match=message):
        ROWS["ordinal"].like.check_outputs(torch.zeros(2, 3), torch.tensor([label, 1]))


def test_others_have_no_classes():
    with pytest.raises(InputError, match="the likelihood 'gaussian' has no classes"):
        ROWS["gaussian"].like.classes(torch.zeros(4, 2))


@pytest.mark.parametrize("name", long_but([n for n in FLAT if n not in SLOW], FLAT))
def test_summaries_hold_the_prediction_and_its_interval(name):
    row = ROWS[name]
    p = one(row)
    narrow, wide = p.summaries(0.5), p.summaries(0.9)
    central = wide["probs" if "probs" in wide else "mean"]
    assert torch.equal(central, p.mean)
    assert all(len(column) == 5 for column in wide.values())
    assert (wide["low"] <= narrow["low"]).all()
    assert (narrow["high"] <= wide["high"]).all()
    if "probs" not in wide:
        whole = wide["epistemic"] + wide["aleatoric"]
        torch.testing.assert_close(whole.sqrt(), wide["std"], **CLOSE)
        assert torch.equal(wide["high"], p.quantile(0.95))
    for level in (0.0, 1.0):
        with pytest.raises(InputError, match=r"level must be in \(0, 1\)"):
            p.summaries(level)


@pytest.mark.parametrize(("unit", "rows"), [(1e-24, 5), (1e24, 1)])
@pytest.mark.parametrize("name", long_but(["gaussian", "laplace", "mixture", "quantiles"], UNITS))
def test_other_units_change_nothing_but_the_units(name, unit, rows):
    """y -> shift + scale y: quantiles go with it, densities are divided by the scale."""
    row = ROWS[name]
    p, y = one(row, rows), targets(row, rows)
    scale = unit * torch.tensor([2.0, 0.5], dtype=torch.float64)
    shift = scale * torch.tensor([30.0, -7.0], dtype=torch.float64)
    moved = p.moved(shift, scale)
    there = shift + scale * y
    for a, b in ((p.std, moved.std), (p.crps(y), moved.crps(there))):
        torch.testing.assert_close(b / scale, a, **CLOSE)
    for level in (0.01, 0.4, 0.975):
        found = (moved.quantile(level) - shift) / scale
        torch.testing.assert_close(found, p.quantile(level), **CLOSE)
    torch.testing.assert_close(moved.log_prob(there), p.log_prob(y) - scale.log().sum(), **CLOSE)
    for a, b in zip(p.draw_moments(), moved.draw_moments(), strict=True):
        assert a.shape == b.shape
    light = p.light().moved(shift, scale)
    assert torch.equal(light.mean, moved.mean)
    assert torch.equal(light.std, moved.std)
    means = p.draw_moments()[0]
    torch.testing.assert_close(moved.draw_moments()[0], shift + scale * means, **CLOSE)


def test_a_spread_of_one_around_1e8():
    """Was: quantiles nearer than a millionth of their size were pulled apart."""
    for name in ("quantiles", "mixture", "laplace"):
        p = one(ROWS[name])
        far = p.moved(torch.full((2,), 1e8), torch.ones(2))
        spread = far.quantile(0.9) - far.quantile(0.1)
        # float64 has 8 digits after the point there
        wanted = p.quantile(0.9) - p.quantile(0.1)
        torch.testing.assert_close(spread, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["categorical", "multilabel", "poisson", "negative-binomial"])
def test_classes_and_counts_have_no_units(name):
    with pytest.raises(InputError, match=r"no units|in other units is not known"):
        one(ROWS[name]).moved(torch.zeros(2), torch.ones(2))


def test_what_a_kind_of_prediction_has_not_is_one_sentence():
    classes, numbers = one(ROWS["categorical"]), one(ROWS["gaussian"])
    for said, ask in (
        ("for numbers: .* got a Predictive", classes.draw_moments),
        ("of numbers, .* got a Predictive", lambda: classes.quantile(0.5)),
        ("of numbers, .* got a Predictive", lambda: classes.std),
        ("for classes: .* got GaussianPredictive", lambda: numbers.probs),
    ):
        with pytest.raises(InputError, match=said):
            ask()


def test_nobody_asks_which_likelihood_it_is():
    """Beside the likelihoods themselves, which may; experiments choose theirs."""
    kinds = [
        name
        for name, thing in vars(likelihoods).items()
        if isinstance(thing, type) and issubclass(thing, (Draws, Likelihood, Predicted))
    ]
    concrete = sorted({*kinds, "Moments"} - {"Draws", "Likelihood", "Predicted"})
    assert {"Categorical", "Classes", "GaussianPredictive"} <= set(concrete)
    names = "|".join(concrete)
    asks = re.compile(
        rf"isinstance\([^()]*\b({names})\b|type\([^()]*\) (is|==) ({names})\b"
        r"|likelihood(\.name)? (==|!=|in) |hasattr\((p|like|likelihood|predictive)\b"
    )
    found = [
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
        for part in ("stochens", "stochens_lab")
        for file in sorted((SOURCE / part).rglob("*.py"))
        if not {"likelihoods", "experiments"} & set(file.parts)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if asks.search(line)
    ]
    assert found == []
