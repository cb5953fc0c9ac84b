"""Entropy and mutual information against scipy, a float64 loop and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from tests.tolerance import rounding

from stochens.metrics.information import entropy, mutual_information

ROUNDING = rounding(torch.float64, terms=1000)  # of size one
properties = settings(max_examples=50, deadline=None)  # a busy machine is no failure


def draws_of(seed: int, draws: int, size: int, classes: int) -> torch.Tensor:
    """[S, B, C], sharp enough that some probabilities are almost 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(draws, size, classes, generator=generator, dtype=torch.double)
    return logits.softmax(-1)


shapes = st.tuples(
    st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 5), st.integers(1, 7)
).map(lambda drawn: draws_of(*drawn))


def test_entropy_agrees_with_scipy() -> None:
    probs = draws_of(0, 4, 50, 7)
    expected = scipy_entropy(probs.numpy(), axis=-1)  # [S, B], nats
    np.testing.assert_allclose(entropy(probs).numpy(), expected, atol=ROUNDING)


def test_entropy_of_zero_and_one_is_zero() -> None:
    assert entropy(torch.tensor([1.0, 0.0, 0.0])).item() == 0.0
    assert entropy(torch.tensor([[0.0, 0.5, 0.5]])).item() == pytest.approx(
        math.log(2), rel=rounding(torch.float64, terms=3)
    )


def test_entropy_keeps_every_leading_axis() -> None:
    assert entropy(torch.full((2, 3, 4, 5), 0.2)).shape == (2, 3, 4)
    assert entropy(torch.full((5,), 0.2)).shape == ()


def test_nan_stays_visible() -> None:
    assert entropy(torch.tensor([float("nan"), 1.0])).isnan()
    assert mutual_information(torch.tensor([[[float("nan"), 1.0]]])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype_is_computed_in_float64(dtype: torch.dtype) -> None:
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=dtype)  # exact in each dtype
    expected = scipy_entropy(probs.double().numpy(), axis=-1)
    assert entropy(probs).dtype == torch.double
    np.testing.assert_allclose(entropy(probs).numpy(), expected, atol=ROUNDING)


def test_mutual_information_agrees_with_a_loop() -> None:
    draws = draws_of(1, 5, 8, 3)
    for b, value in enumerate(mutual_information(draws).tolist()):
        rows = draws[:, b].tolist()
        mean = [sum(row[c] for row in rows) / 5 for c in range(3)]
        # MI is also the mean Kullback-Leibler divergence of the draws from their mean.
        expected = sum(p * math.log(p / m) for row in rows for p, m in zip(row, mean, strict=True))
        assert value == pytest.approx(expected / 5, abs=ROUNDING)


def test_opposed_sure_draws_carry_log_s() -> None:
    draws = torch.eye(4)[:, None]  # draw s is sure of class s: [4, 1, 4]
    assert mutual_information(draws).item() == pytest.approx(
        math.log(4), rel=rounding(torch.float64, terms=4, depth=2)
    )


@pytest.mark.parametrize("shape", [(5, 3), (3,), (1, 2, 5, 3), (0, 5, 3)])
def test_wrong_axes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"draws must be \[S, B, C\].*got \(.*draws\[None\]"):
        mutual_information(torch.zeros(shape))


@properties
@given(shapes)
def test_mutual_information_lies_between_zero_and_entropy(draws: torch.Tensor) -> None:
    information = mutual_information(draws)
    assert (information >= 0).all()
    assert (information <= entropy(draws.mean(0)) + ROUNDING).all()
    assert (information <= math.log(len(draws)) + ROUNDING).all()


@properties
@given(shapes, st.integers(1, 9))
def test_identical_draws_carry_none(draws: torch.Tensor, copies: int) -> None:
    same = draws[:1].expand(copies, -1, -1)
    assert (mutual_information(same) <= ROUNDING).all()


@properties
@given(shapes)
def test_entropy_range_and_order_of_classes(draws: torch.Tensor) -> None:
    value = entropy(draws)
    assert ((value >= 0) & (value <= math.log(draws.shape[-1]) + ROUNDING)).all()
    torch.testing.assert_close(entropy(draws.flip(-1)), value, atol=ROUNDING, rtol=0)
