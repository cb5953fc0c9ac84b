"""Metrics on any tensors at all, and against loops over plain numbers on those that are right."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerance import rounding
from torch import Tensor

from stochens import InputError
from stochens.metrics import (
    accuracy,
    agreement,
    aurc,
    bootstrap,
    brier,
    calibration_curve,
    coverage,
    ece,
    entropy_error,
    gaussian_nll,
    mi_error,
    nll,
    ood_auroc,
    risk_coverage,
    rmse,
    total_variation,
)

ROUNDING = rounding(torch.float64, terms=100, depth=10)  # of size one, on both sides
OF_TWO: tuple[Callable[..., Any], ...] = (
    accuracy,
    nll,
    brier,
    ece,
    aurc,
    agreement,
    total_variation,
    entropy_error,
    mi_error,
    ood_auroc,
)
OF_TWO += (rmse, calibration_curve, risk_coverage)

sides = st.shared(st.tuples(*[st.integers(1, 3)] * 3), key="S, B, C")
shapes = st.one_of(  # those that fit together most of the time
    sides.map(lambda sbc: sbc[1:]),
    sides,
    sides.map(lambda sbc: sbc[1:2]),
    st.lists(st.integers(0, 3), max_size=4),
)
values = st.sampled_from([0.0, 1.0, 0.5, -1.0, math.nan, math.inf, -math.inf, 1e300, 5e-324])
kinds = st.sampled_from(
    [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)


@st.composite
def anything(draw) -> Tensor:
    """A tensor of any shape, kind and numbers; every second one has rows that sum to one."""
    shape = tuple(draw(shapes))
    count = math.prod(shape)
    flat = draw(st.lists(values, min_size=count, max_size=count))
    found = torch.tensor(flat, dtype=torch.float64).reshape(shape)
    if draw(st.booleans()) and shape:
        return found.nan_to_num(0, 0, 0).clamp(-5, 5).softmax(-1)
    kind = draw(kinds)
    return (found if kind.is_floating_point else found.nan_to_num(0, 9, -9).clamp(-9, 9)).to(kind)


@settings(max_examples=400)
@given(anything(), anything(), anything(), st.sampled_from(OF_TWO))
def test_any_tensors_give_a_number_or_are_refused(a, b, c, metric):
    for call in (lambda: metric(a, b), lambda: gaussian_nll(a, b, c), lambda: coverage(a, b, c)):
        try:
            found = call()
        except InputError as error:
            assert str(error)  # noqa: PT017
        else:
            assert not isinstance(found, float) or not math.isnan(found)


@pytest.mark.parametrize(
    ("mean", "variance"), [(math.inf, math.inf), (math.inf, 1.0), (0.0, math.inf)]
)
def test_what_is_infinitely_far_or_wide_is_infinitely_wrong(mean, variance):
    means = torch.tensor([mean, -mean])[:, None, None]  # [S, B, D]
    found = gaussian_nll(means, torch.full_like(means, variance), torch.zeros(1, 1))
    assert found == math.inf
    assert rmse(means, torch.zeros(1, 1)) == (math.inf if mean else 0.0)


def distributions(draws: int | None = None) -> st.SearchStrategy[Tensor]:
    def made(seed: int, size: int, classes: int) -> Tensor:
        shape = (size, classes) if draws is None else (draws, size, classes)
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).mul(3).softmax(-1)

    return st.builds(made, st.integers(0, 2**16), SIZE, CLASSES)


SIZE, CLASSES = st.shared(st.integers(1, 9), key="B"), st.shared(st.integers(1, 4), key="C")


def h(row) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def largest(row) -> int:
    return max(range(len(row)), key=lambda c: row[c])


@settings(max_examples=100)
@given(distributions(), distributions())
def test_distances_to_a_reference_by_hand(p, q):
    rows = list(zip(p.tolist(), q.tolist(), strict=True))
    n = len(rows)
    same = sum(largest(a) == largest(b) for a, b in rows) / n
    apart = sum(abs(x - y) for a, b in rows for x, y in zip(a, b, strict=True)) / 2 / n
    errors = sum(abs(h(a) - h(b)) for a, b in rows) / n
    assert agreement(p, q) == pytest.approx(same, abs=ROUNDING)
    assert total_variation(p, q) == pytest.approx(apart, abs=ROUNDING)
    assert entropy_error(p, q) == pytest.approx(errors, abs=ROUNDING)
    pairs = [(-max(a), -max(b)) for a, _ in rows for _, b in rows]
    larger = sum(1.0 if b > a else 0.5 if a == b else 0.0 for a, b in pairs)
    assert ood_auroc(p, q) == pytest.approx(larger / n**2, abs=ROUNDING)


@settings(max_examples=100)
@given(distributions(3), distributions(2))
def test_the_error_of_mutual_information_by_hand(p, q):
    def information(draws, b: int) -> float:
        rows = [draw[b] for draw in draws.tolist()]
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        return h(mean) - sum(map(h, rows)) / len(rows)

    n = p.shape[1]
    by_hand = sum(abs(information(p, b) - information(q, b)) for b in range(n)) / n
    assert mi_error(p, q) == pytest.approx(by_hand, abs=ROUNDING)


SPOIL = {
    "nothing": lambda t, value: t,
    "an entry": lambda t, value: t.index_put((torch.tensor([0]),) * t.ndim, t.new_tensor(value)),
    "a row too few": lambda t, value: t[1:],
    "a row too many": lambda t, value: torch.cat([t, t[:1]]),
    "no axis": lambda t, value: t.sum(),
    "an axis more": lambda t, value: t[None],
    "whole numbers": lambda t, value: t.long(),
    "half precision": lambda t, value: t.half(),
    "too large": lambda t, value: t * 2,
}


@settings(max_examples=300)
@given(
    distributions(),
    distributions(),
    st.sampled_from(OF_TWO),
    st.sampled_from(sorted(SPOIL)),
    st.booleans(),
    values,
)
def test_right_tensors_spoilt_in_one_place_are_refused_or_measured(p, q, metric, how, first, value):
    labels = torch.arange(len(p)) % p.shape[1]
    other = q if metric in (agreement, total_variation, entropy_error, ood_auroc) else labels
    if metric in (mi_error, rmse):
        p, other = p[None], (q[None] if metric is mi_error else q)
    if other is labels and not first and not abs(value) < 9:
        value = 7.0  # whole numbers have no NaN
    pair = (SPOIL[how](p, value), other) if first else (p, SPOIL[how](other, value))
    try:
        found = metric(*pair)
    except InputError as error:
        assert how != "nothing"
        assert "must" in str(error) or "NaN" in str(error)  # noqa: PT017
    else:
        assert not isinstance(found, float) or not math.isnan(found)


real = st.floats(-5, 5)


@settings(max_examples=100)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.data())
def test_regression_by_hand(draws, size, outputs, data):
    def drawn(strategy, *shape: int) -> Tensor:
        count = math.prod(shape)
        flat = data.draw(st.lists(strategy, min_size=count, max_size=count))
        return torch.tensor(flat, dtype=torch.float64).reshape(shape)

    means, y = drawn(real, draws, size, outputs), drawn(real, size, outputs)
    sds = drawn(st.floats(0.5, 3), draws, size, outputs)
    squares = [
        (sum(means[:, b, d].tolist()) / draws - float(y[b, d])) ** 2
        for b in range(size)
        for d in range(outputs)
    ]
    assert rmse(means, y) == pytest.approx(math.sqrt(sum(squares) / len(squares)), abs=ROUNDING)
    total = 0.0
    for b in range(size):
        density = 0.0
        for s in range(draws):
            one = 1.0
            for d in range(outputs):
                sd, mean = float(sds[s, b, d]), float(means[s, b, d])
                one *= math.exp(-0.5 * ((float(y[b, d]) - mean) / sd) ** 2)
                one /= sd * math.sqrt(2 * math.pi)
            density += one / draws
        total -= math.log(density)
    found = gaussian_nll(means, sds.square(), y)
    assert found == pytest.approx(total / size, rel=1e-9, abs=1e-9)  # densities down to 1e-90
    low, high = torch.minimum(means[0], y), torch.maximum(means[0], y)
    assert coverage(low, high, y) == 1.0
    by_hand = [
        float(low[b, d]) <= 0 <= float(high[b, d]) for b in range(size) for d in range(outputs)
    ]
    assert coverage(low, high, y * 0) == pytest.approx(sum(by_hand) / len(by_hand), abs=ROUNDING)


@settings(max_examples=30)
@given(distributions(), st.integers(0, 99), st.integers(1, 30), st.floats(0.1, 0.99))
def test_an_interval_is_ordered_and_a_seed_repeats_it(p, seed, resamples, level):
    labels = torch.arange(len(p)) % p.shape[1]
    options = {"resamples": resamples, "seed": seed, "level": level}
    for metric in (nll, ece):
        found = bootstrap(metric, p, labels, **options)
        assert found.low <= found.high
        assert found.value == metric(p, labels)
        assert found == bootstrap(metric, p, labels, **options)
