"""Each metric against another library or a plain float64 loop, and the properties it must have."""

import inspect
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import foldnorm, norm
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from tests.tolerance import rounding
from torch import Tensor

from stochens.metrics import (
    accuracy,
    agreement,
    aurc,
    bootstrap,
    brier,
    calibration_curve,
    coverage,
    ece,
    ece_interval,
    entropy_error,
    gaussian_nll,
    mi_error,
    nll,
    ood_auroc,
    ood_auroc_mi,
    per_example,
    risk_coverage,
    rmse,
    total_variation,
)
from stochens.metrics import inputs as metric_inputs
from stochens.metrics.ece_noise import excess
from stochens.metrics.information import entropy, mutual_information

ROUNDING = rounding(torch.float64, terms=10_000)  # of size one
properties = settings(max_examples=50, deadline=None)  # a busy machine is no failure
OF_LABELS = [accuracy, nll, brier, ece, aurc]
OF_REFERENCE = [agreement, total_variation, entropy_error]


def predictions(seed: int, size: int, classes: int, kind: str = "smooth") -> tuple[Tensor, Tensor]:
    """probs [B, C] and labels [B]: no ties, many ties ("grid"), or confidence exactly 1.0."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, classes, generator=generator, dtype=torch.double)
    probs = logits.softmax(-1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    if kind == "grid":
        counts = torch.randint(0, 3, (size, classes), generator=generator).double()
        counts[:, 0] += 1  # a row of zeros has no probabilities
        probs = counts / counts.sum(-1, keepdim=True)
    if kind == "saturated":
        probs = (1000 * logits.float()).softmax(-1)  # float32, as networks give it
    return probs, labels


sizes = (st.integers(0, 2**16), st.integers(1, 30), st.integers(1, 6))
kinds = st.sampled_from(["smooth", "grid", "saturated"])
problems = st.tuples(*sizes, kinds).map(lambda drawn: predictions(*drawn))
smooth = st.tuples(*sizes).map(lambda drawn: predictions(*drawn))


# ---- accuracy, NLL, Brier ----


@pytest.mark.parametrize("kind", ["smooth", "grid", "saturated"])
def test_accuracy_agrees_with_sklearn(kind: str) -> None:
    probs, labels = predictions(0, 500, 10, kind)
    expected = accuracy_score(labels.numpy(), probs.numpy().argmax(-1))
    assert accuracy(probs, labels) == pytest.approx(expected, abs=ROUNDING)


def test_nll_agrees_with_sklearn_with_a_class_absent() -> None:
    probs, labels = predictions(1, 500, 10)
    labels[labels == 3] = 4
    expected = log_loss(labels, probs, labels=range(10))
    assert nll(probs, labels) == pytest.approx(expected, abs=ROUNDING)


def test_nll_is_infinite_where_the_label_was_impossible_and_zero_where_it_was_certain() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert nll(probs, torch.tensor([1, 0])) == math.inf
    assert str(nll(probs[:1], torch.tensor([0]))) == "0.0"  # and not -0.0


@pytest.mark.parametrize("kind", ["smooth", "grid", "saturated"])
def test_brier_agrees_with_a_loop(kind: str) -> None:
    probs, labels = predictions(2, 200, 5, kind)
    total = 0.0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        total += sum((p - (c == label)) ** 2 for c, p in enumerate(row))
    assert brier(probs, labels) == pytest.approx(total / 200, abs=ROUNDING)


# ---- calibration ----


def decimal_bin(confidence: Tensor, bins: int) -> int:
    """By exact arithmetic on the decimal that a number of its dtype is written as: 0.6 is 3 / 5."""
    written = Fraction(str(confidence.numpy()))
    return next(k for k in range(bins) if written <= Fraction(k + 1, bins) or k == bins - 1)


def loop_ece(probs: Tensor, labels: Tensor, bins: int) -> float:
    """Equal-width ECE, bin k = ((k - 1) / bins, k / bins], one example at a time."""
    members: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        k = decimal_bin(torch.tensor(confidence, dtype=probs.dtype), bins)
        members[k].append((confidence, row.index(confidence) == label))
    total = 0.0
    for pairs in members:
        total += abs(sum(c for c, _ in pairs) - sum(right for _, right in pairs))
    return total / len(labels)


def ece_of_torchmetrics(*arguments: Any, **options: Any) -> Tensor:
    from torchmetrics.functional.classification import (  # it imports torchvision and transformers
        multiclass_calibration_error,
    )

    return multiclass_calibration_error(*arguments, **options)


@pytest.mark.parametrize("bins", [1, 7, 15, 20])
def test_equal_width_ece_agrees_with_torchmetrics(bins: int) -> None:
    probs, labels = predictions(3, 2000, 10)
    expected = ece_of_torchmetrics(probs, labels, num_classes=10, n_bins=bins, norm="l1")
    value = ece(probs, labels, bins=bins, binning="equal-width")
    # torchmetrics adds up 2000 confidences in float32, with errors of random sign: root 2000 = 45
    assert value == pytest.approx(expected.item(), abs=rounding(torch.float32, terms=45))


@pytest.mark.parametrize("kind", ["smooth", "grid", "saturated"])
@pytest.mark.parametrize("bins", [1, 4, 20])
def test_equal_width_ece_agrees_with_a_loop(kind: str, bins: int) -> None:
    probs, labels = predictions(4, 300, 4, kind)
    expected = loop_ece(probs, labels, bins)
    assert ece(probs, labels, bins=bins, binning="equal-width") == pytest.approx(
        expected, abs=ROUNDING
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [4, 5, 10, 20])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(bins: int, dtype: torch.dtype) -> None:
    """In float32 0.6 is 0.60000002, and in float64 6 times 0.1 is not 0.6."""
    edges = torch.arange(1, bins + 1, dtype=torch.float64) / bins
    above = edges[edges >= 0.5].to(dtype)  # of two classes, no confidence is below
    for edge in (above, above - 1e-3, above[:-1] + 1e-3):
        for confidence in edge[edge >= 0.5]:
            probs = torch.stack([confidence, 1 - confidence]).unsqueeze(0)
            curve = calibration_curve(probs, torch.tensor([0]), bins=bins, binning="equal-width")
            expected = decimal_bin(confidence, bins)
            assert curve.count.tolist() == [int(k == expected) for k in range(bins)]


def test_edges_are_those_of_guo_et_al() -> None:
    """Their code compares float32 confidences with float32 edges, > and <=; 0 is in no bin there,
    and no largest probability is 0."""
    confidence = torch.cat([torch.arange(10, 21) / 20, torch.rand(500) / 2 + 0.5])
    probs = torch.stack([confidence, 1 - confidence], 1)
    edges = [torch.tensor(k / 10) for k in range(11)]
    inside = [(confidence > low) & (confidence <= high) for low, high in pairwise(edges)]
    theirs = [int(both.sum()) for both in inside]
    curve = calibration_curve(
        probs, torch.zeros(len(probs), dtype=torch.long), bins=10, binning="equal-width"
    )
    assert curve.count.tolist() == theirs


def test_confidence_one_is_counted_in_the_last_bin() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.9375, 0.0625]])
    labels = torch.tensor([0, 1])  # the last of 10 bins holds one right at 1.0, one wrong
    curve = calibration_curve(probs, labels, bins=10, binning="equal-width")
    assert curve.count.tolist() == [0] * 9 + [2]
    assert curve.accuracy[-1] == 0.5
    assert ece(probs, labels, bins=10, binning="equal-width") == abs(0.5 - 1.9375 / 2)
    # torchmetrics keeps a bin of its own for 1.0, so that nothing cancels: |1 - 1|, |0 - 0.9375|.
    theirs = ece_of_torchmetrics(probs, labels, num_classes=2, n_bins=10, norm="l1")
    assert theirs.item() == pytest.approx(0.9375 / 2)


def test_saturated_and_always_wrong_has_ece_one() -> None:
    probs = torch.eye(3)[[0, 1, 2, 0]]
    labels = torch.tensor([1, 2, 0, 2])
    assert ece(probs, labels) == 1.0
    assert ece(probs, labels, binning="equal-width") == 1.0


def test_empty_bins_are_nan_with_count_zero_and_cost_nothing() -> None:
    probs, labels = torch.tensor([[0.875, 0.125]] * 3), torch.tensor([0, 0, 1])
    curve = calibration_curve(probs, labels, bins=4, binning="equal-width")
    assert curve.count.tolist() == [0, 0, 0, 3]
    assert curve.confidence[:3].isnan().all()
    assert curve.accuracy[:3].isnan().all()
    # 0.875 is exact and 2 / 3 is rounded once: one unit in the last place of each.
    assert ece(probs, labels, bins=4, binning="equal-width") == pytest.approx(0.875 - 2 / 3)


@pytest.mark.parametrize("size", [1, 19, 20, 21, 399])
def test_equal_mass_bins_agree_with_array_split(size: int) -> None:
    probs, labels = predictions(5, size, 10)
    confidence = probs.numpy().max(-1)
    correct = probs.numpy().argmax(-1) == labels.numpy()
    parts = np.array_split(np.argsort(confidence), 20)
    curve = calibration_curve(probs, labels)
    assert curve.count.tolist() == [len(part) for part in parts]
    filled = [k for k, part in enumerate(parts) if len(part)]
    for k in filled:
        assert curve.confidence[k].item() == pytest.approx(confidence[parts[k]].mean())
        assert curve.accuracy[k].item() == pytest.approx(correct[parts[k]].mean())
    gaps = [abs(confidence[p].sum() - correct[p].sum()) for p in parts]
    assert ece(probs, labels) == pytest.approx(sum(gaps) / size, abs=ROUNDING)


def tied(seed: int) -> tuple[Tensor, Tensor]:
    """Six examples, four of them with confidence 0.75: every order of them can be tried."""
    probs = torch.tensor(
        [[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.5, 0.5], [1, 0]]
    )
    return probs, torch.randint(0, 2, (6,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(4))
def test_ties_in_the_calibration_curve_are_the_mean_over_all_orders(seed: int) -> None:
    probs, labels = tied(seed)
    confidence, correct = probs.max(-1).values.numpy(), (probs.argmax(-1) == labels).numpy()
    accuracies = []
    for order in itertools.permutations(range(6)):
        ranked = sorted(order, key=lambda b: confidence[b])  # stable: ties stay as permuted
        accuracies.append([correct[part].mean() for part in np.array_split(ranked, 3)])
    expected = np.mean(accuracies, axis=0)
    curve = calibration_curve(probs, labels, bins=3)
    np.testing.assert_allclose(curve.accuracy.numpy(), expected, atol=ROUNDING)


# ---- selective prediction ----


@pytest.mark.parametrize("seed", range(4))
def test_risk_coverage_with_ties_is_the_mean_over_all_orders(seed: int) -> None:
    probs, labels = tied(seed)
    confidence, wrong = probs.max(-1).values.tolist(), (probs.argmax(-1) != labels).tolist()
    risks = []
    for order in itertools.permutations(range(6)):
        ranked = sorted(order, key=lambda b: -confidence[b])
        risks.append([sum(wrong[b] for b in ranked[:k]) / k for k in range(1, 7)])
    curve = risk_coverage(probs, labels)
    np.testing.assert_allclose(curve.risk.numpy(), np.mean(risks, axis=0), atol=ROUNDING)
    np.testing.assert_allclose(curve.coverage.numpy(), np.arange(1, 7) / 6, atol=ROUNDING)
    assert aurc(probs, labels) == pytest.approx(np.mean(risks), abs=ROUNDING)


def test_risk_at_full_coverage_is_the_error_rate() -> None:
    probs, labels = predictions(6, 300, 5)
    assert risk_coverage(probs, labels).risk[-1].item() == pytest.approx(
        1 - accuracy(probs, labels)
    )


# ---- against a reference ----


@pytest.mark.parametrize("kind", ["smooth", "grid", "saturated"])
def test_agreement_and_total_variation_agree_with_a_loop(kind: str) -> None:
    probs, reference = predictions(7, 100, 6, kind)[0], predictions(8, 100, 6, kind)[0]
    same, total = 0, 0.0
    for p, r in zip(probs.tolist(), reference.tolist(), strict=True):
        same += p.index(max(p)) == r.index(max(r))
        total += 0.5 * sum(abs(a - b) for a, b in zip(p, r, strict=True))
    assert agreement(probs, reference) == pytest.approx(same / 100, abs=ROUNDING)
    assert total_variation(probs, reference) == pytest.approx(total / 100, abs=ROUNDING)


def test_entropy_error_and_mi_error_average_over_examples() -> None:
    draws = torch.stack([predictions(seed, 20, 4)[0] for seed in range(5)])  # [S, B, C]
    other = torch.stack([predictions(seed, 20, 4)[0] for seed in range(9, 12)])  # [S', B, C]
    entropies = zip(entropy(draws.mean(0)).tolist(), entropy(other.mean(0)).tolist(), strict=True)
    expected = sum(abs(a - b) for a, b in entropies) / 20
    assert entropy_error(draws.mean(0), other.mean(0)) == pytest.approx(expected, abs=ROUNDING)
    informations = zip(
        mutual_information(draws).tolist(), mutual_information(other).tolist(), strict=True
    )
    expected = sum(abs(a - b) for a, b in informations) / 20
    assert mi_error(draws, other) == pytest.approx(expected, abs=ROUNDING)


# ---- out of distribution ----


@pytest.mark.parametrize("kind", ["smooth", "grid", "saturated"])
def test_ood_auroc_agrees_with_sklearn(kind: str) -> None:
    inside, outside = predictions(9, 150, 10, kind)[0], predictions(10, 90, 4, kind)[0]
    scores = torch.cat([inside.max(-1).values.double(), outside.max(-1).values.double()])
    expected = roc_auc_score([1] * 150 + [0] * 90, scores)
    assert ood_auroc(inside, outside) == pytest.approx(expected, abs=ROUNDING)


def test_ood_auroc_has_the_right_sign() -> None:
    sure, unsure = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.6, 0.4]])
    assert ood_auroc(sure, unsure) == 1.0
    assert ood_auroc(unsure, sure) == 0.0
    assert ood_auroc(sure, sure) == 0.5


def test_ood_auroc_by_mutual_information() -> None:
    draw = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(150, generator=draw), 2 * torch.rand(90, generator=draw)
    expected = roc_auc_score([0] * 150 + [1] * 90, torch.cat([inside, outside]))
    assert ood_auroc_mi(inside, outside) == pytest.approx(expected, abs=ROUNDING)
    assert ood_auroc_mi(inside, inside + 1) == 1.0
    assert bootstrap(ood_auroc_mi, inside, inside, resamples=20).high > 0.5  # resampled apart
    with pytest.raises(ValueError, match=r"mi_out must be finite numbers \[B\], got \(2, 2\)"):
        ood_auroc_mi(inside, torch.zeros(2, 2))


# ---- regression ----


def mixture(draws: int, size: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    means = torch.randn(draws, size, outputs, generator=generator, dtype=torch.double)
    variances = 0.1 + torch.rand(draws, size, outputs, generator=generator, dtype=torch.double)
    return means, variances, torch.randn(size, outputs, generator=generator, dtype=torch.double)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 30, 1), (5, 20, 3)])
def test_gaussian_nll_agrees_with_scipy(shape: tuple[int, int, int]) -> None:
    means, variances, y = mixture(*shape)
    joint = norm.logpdf(y.numpy(), means.numpy(), variances.sqrt().numpy()).sum(-1)  # [S, B]
    expected = -logsumexp(joint, axis=0, b=1 / shape[0]).mean()
    assert gaussian_nll(means, variances, y) == pytest.approx(expected, abs=ROUNDING)


def test_gaussian_nll_far_from_every_mean_stays_finite() -> None:
    means, variances = torch.zeros(2, 1, 1), torch.full((2, 1, 1), 1e-6)
    value = gaussian_nll(means, variances, torch.ones(1, 1))  # densities underflow to 0
    precision = 1 / float(torch.tensor(1e-6))
    assert value == pytest.approx(0.5 * (precision + math.log(2 * math.pi / precision)), rel=1e-12)


def test_rmse_is_that_of_the_mixture_mean() -> None:
    means, _, y = mixture(5, 20, 3)
    expected = np.sqrt(np.mean((means.numpy().mean(0) - y.numpy()) ** 2))
    assert rmse(means, y) == pytest.approx(expected, abs=ROUNDING)


def test_coverage_counts_both_ends() -> None:
    low, high = torch.zeros(4), torch.ones(4)
    assert coverage(low, high, torch.tensor([0.0, 1.0, 0.5, 1.5])) == 0.75
    assert coverage(low[:, None], high[:, None], torch.full((4, 1), -0.1)) == 0.0
    assert coverage(low - math.inf, high, torch.tensor([-9.0, 0.0, 2.0, 2.0])) == 0.5


# ---- properties ----


@properties
@given(problems)
def test_ranges(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    # Sums of rounded probabilities may pass the bound by float32 rounding of the input, 1e-6.
    for metric, top in ((accuracy, 1.0), (brier, 2.0), (ece, 1.0), (aurc, 1.0), (nll, math.inf)):
        assert -1e-6 <= metric(probs, labels) <= top + 1e-6
    assert -1e-6 <= ece(probs, labels, binning="equal-width") <= 1 + 1e-6
    for binning in ("equal-mass", "equal-width"):
        curve = calibration_curve(probs, labels, bins=7, binning=binning)
        assert curve.count.sum() == len(labels)
        assert ((curve.count == 0) == curve.accuracy.isnan()).all()


@properties
@given(problems, st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(problem: tuple[Tensor, Tensor], random) -> None:
    probs, labels = problem
    order = torch.tensor(random.sample(range(len(labels)), len(labels)))
    for metric in OF_LABELS:
        value = metric(probs[order], labels[order])
        assert value == pytest.approx(metric(probs, labels), abs=ROUNDING)
    # These are sums in the order of confidence and of whole counts: equal to the last bit.
    for binning in ("equal-mass", "equal-width"):
        assert ece(probs[order], labels[order], binning=binning) == ece(
            probs, labels, binning=binning
        )
    assert aurc(probs[order], labels[order]) == aurc(probs, labels)


@properties
@given(smooth, st.randoms(use_true_random=False))
def test_order_of_classes_does_not_matter(problem: tuple[Tensor, Tensor], random) -> None:
    probs, labels = problem  # no ties within a row, where the first class would win
    order = torch.tensor(random.sample(range(probs.shape[1]), probs.shape[1]))
    moved, relabelled = probs[:, order], order.argsort()[labels]
    for metric in OF_LABELS:
        assert metric(moved, relabelled) == pytest.approx(metric(probs, labels), abs=ROUNDING)
    reference = probs.flip(0)
    for closeness in OF_REFERENCE:
        value = closeness(moved, reference[:, order])
        assert value == pytest.approx(closeness(probs, reference), abs=ROUNDING)
    assert ood_auroc(moved, reference) == ood_auroc(probs, reference)


@properties
@given(st.integers(0, 2**16), st.integers(1, 20), st.integers(1, 6), kinds)
def test_total_variation_is_a_metric(seed: int, size: int, classes: int, kind: str) -> None:
    p, q, r = (predictions(seed + k, size, classes, kind)[0] for k in range(3))
    assert total_variation(p, p) == 0.0
    assert total_variation(p, q) == total_variation(q, p)
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + ROUNDING
    assert 0 <= total_variation(p, q) <= 1 + 1e-6  # float32 rows sum to one within 1e-6
    assert agreement(p, p) == 1.0
    assert agreement(p, q) == agreement(q, p)
    assert entropy_error(p, p) == mi_error(p[None], p[None]) == 0.0


@properties
@given(problems, problems)
def test_auroc_of_swapped_sets_is_the_complement(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> None:
    value = ood_auroc(first[0], second[0])
    assert 0 <= value <= 1
    assert ood_auroc(second[0], first[0]) == pytest.approx(1 - value, abs=ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_dtype_is_taken(dtype: torch.dtype) -> None:
    probs, labels = predictions(12, 200, 10)
    rounded = probs.to(dtype)
    for metric in (accuracy, brier, ece, aurc):
        assert 0 <= metric(rounded, labels) <= 2
    # Two roundings to the dtype at most, each of half an eps relative to p <= 1, over 10 classes.
    assert total_variation(rounded, probs) <= torch.finfo(dtype).eps


def test_inputs_with_gradients_are_taken_and_left_alone() -> None:
    logits = torch.zeros(4, 2, requires_grad=True)
    labels = torch.tensor([0, 1, 0, 1])
    assert nll(logits.softmax(-1), labels) == pytest.approx(math.log(2))
    assert not calibration_curve(logits.softmax(-1), labels).confidence.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives() -> None:
    probs, labels = predictions(13, 500, 10)
    other = predictions(14, 500, 10)[0]
    for metric in OF_LABELS:
        value = metric(probs.cuda(), labels.cuda())
        assert value == pytest.approx(metric(probs, labels), abs=ROUNDING)
        assert metric(probs.cuda(), labels) == value  # labels may stay behind
    for of_two in (*OF_REFERENCE, ood_auroc):
        value = of_two(probs.cuda(), other.cuda())
        assert value == pytest.approx(of_two(probs, other), abs=ROUNDING)
    means, variances, y = mixture(3, 10, 2)
    value = gaussian_nll(means.cuda(), variances.cuda(), y.cuda())
    assert value == pytest.approx(gaussian_nll(means, variances, y), abs=ROUNDING)
    on_cuda = bootstrap(ece, probs.cuda(), labels.cuda(), resamples=20)
    assert on_cuda == pytest.approx(bootstrap(ece, probs, labels, resamples=20), abs=ROUNDING)


# ---- bootstrap ----


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval() -> None:
    terms = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    interval = bootstrap(torch.mean, terms, resamples=4000)
    half_width = 1.96 * terms.std().item() / math.sqrt(2000)
    # The end of a 95% interval is known to about sqrt(0.025 * 0.975 / 4000) / 0.058 = 0.04 standard
    # errors from 4000 resamples; 4 of those.
    slack = 0.17 * half_width / 1.96
    assert interval.value == pytest.approx(terms.mean().item(), abs=ROUNDING)
    assert interval.high - interval.value == pytest.approx(half_width, abs=slack)
    assert interval.value - interval.low == pytest.approx(half_width, abs=slack)


def test_the_ends_are_order_statistics_rounded_outwards() -> None:
    seen: list[float] = []

    def recorded(terms: Tensor) -> Tensor:
        seen.append(terms.mean().item())
        return terms.mean()

    interval = bootstrap(recorded, torch.arange(20.0), resamples=10, level=0.5)
    resampled = seen[:10]  # the last call is for the value itself
    assert interval.low == np.quantile(resampled, 0.25, method="lower")
    assert interval.high == np.quantile(resampled, 0.75, method="higher")


def test_terms_average_to_their_metric() -> None:
    (probs, labels), other = predictions(15, 40, 5), predictions(16, 40, 5)[0]
    for metric in (accuracy, nll, brier):
        assert per_example(metric, probs, labels).shape == (40,)
        assert per_example(metric, probs, labels).mean().item() == metric(probs, labels)
    for closeness in OF_REFERENCE:
        assert per_example(closeness, probs, other).mean().item() == closeness(probs, other)
    means, variances, y = mixture(3, 10, 2)
    assert per_example(rmse, means, y).mean().sqrt().item() == rmse(means, y)
    assert per_example(gaussian_nll, means, variances, y).shape == (10,)
    with pytest.raises(ValueError, match=r"ece.*these do: .*accuracy, nll, brier"):
        per_example(ece, probs, labels)


@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_resampled_terms_give_what_the_general_loop_gives(metric: Callable[..., float]) -> None:
    probs, labels = predictions(17, 60, 4)
    loop = bootstrap(lambda p, y: metric(p, y), probs, labels, resamples=50, seed=3)
    assert bootstrap(metric, probs, labels, resamples=50, seed=3) == loop


def test_terms_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = metric_inputs.checked_probs

    def counted(*args: Any) -> Any:
        calls.append(1)
        return check(*args)

    monkeypatch.setattr(metric_inputs, "checked_probs", counted)
    probs, labels = predictions(18, 30, 3)
    bootstrap(nll, probs, labels, resamples=100)
    assert len(calls) == 1


def test_metrics_of_draws_resample_examples_and_not_draws() -> None:
    means, variances, y = mixture(6, 6, 1)  # S = B: a mix-up would not show in the shapes
    same = means[:, :1].expand(-1, 6, -1), variances[:, :1].expand(-1, 6, -1), y[:1].expand(6, -1)
    interval = bootstrap(gaussian_nll, *same, resamples=50)  # all examples alike: no spread
    assert interval.low == pytest.approx(interval.high, abs=ROUNDING)
    assert bootstrap(rmse, means, y, resamples=50).value == rmse(means, y)
    loop = bootstrap(lambda m, t: rmse(m.movedim(0, 1), t), means.movedim(1, 0), y, resamples=50)
    assert bootstrap(rmse, means, y, resamples=50) == pytest.approx(loop, abs=ROUNDING)


def test_bootstrap_keeps_arrays_aligned() -> None:
    index = torch.arange(50)
    interval = bootstrap(lambda a, b: (a != b).sum(), index, index.clone(), resamples=20)
    assert interval == (0.0, 0.0, 0.0)


def test_bootstrap_of_ood_auroc_resamples_the_two_sets_apart() -> None:
    inside, outside = predictions(19, 60, 4)[0], predictions(20, 25, 4)[0]
    interval = bootstrap(ood_auroc, inside, outside, resamples=100)
    assert interval.low < interval.value < interval.high
    probs = predictions(21, 40, 4)[0]  # the same indices for both would give 0.5 every time
    assert bootstrap(ood_auroc, probs, probs, resamples=20).high > 0.5


def test_one_seed_repeats_and_two_differ() -> None:
    probs, labels = predictions(22, 80, 4)
    for metric in (nll, aurc):
        first = bootstrap(metric, probs, labels, resamples=50, seed=1)
        assert bootstrap(metric, probs, labels, resamples=50, seed=1) == first
        assert bootstrap(metric, probs, labels, resamples=50, seed=2) != first


def test_a_wider_level_contains_a_narrower_and_global_randomness_is_untouched() -> None:
    probs, labels = predictions(23, 80, 4)
    torch.manual_seed(5)
    narrow, wide = (bootstrap(nll, probs, labels, level=level) for level in (0.5, 0.99))
    after = torch.rand(1)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert after == torch.rand(1, generator=torch.Generator().manual_seed(5))


def test_infinite_terms_give_an_infinite_end_and_not_nan() -> None:
    probs = torch.tensor([[0.5, 0.5]] * 30 + [[1.0, 0.0]])
    interval = bootstrap(nll, probs, torch.ones(31, dtype=torch.long))
    assert interval.value == interval.high == math.inf
    assert interval.low == pytest.approx(math.log(2))  # many resamples miss the one


@properties
@given(problems, st.integers(0, 1000))
def test_interval_of_ece_contains_its_value(problem: tuple[Tensor, Tensor], seed: int) -> None:
    for metric in (ece, partial(ece, bins=5), partial(ece, binning="equal-width")):
        interval = bootstrap(metric, *problem, resamples=50, seed=seed)
        assert 0 <= interval.low <= interval.value <= interval.high


def two_classes(
    seed: int, sets: int, size: int, error: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """probs [sets, size, 2] with confidences in [0.5, 1], and labels that are right with
    probability confidence - error(confidence)."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(2, sets, size, generator=generator, dtype=torch.float64)
    confidence = 0.5 + 0.5 * u[0] ** (1 / 3)
    labels = (u[1] > confidence - error(confidence)).long()
    return torch.stack([confidence, 1 - confidence], -1), labels


def true_ece(error: Callable[[Tensor], Tensor], bins: int) -> float:
    """Of bins of equal mass: the mean of the error in each, by many quantiles."""
    u = (torch.arange(bins * 4000, dtype=torch.float64) + 0.5) / (bins * 4000)
    return error(0.5 + 0.5 * u ** (1 / 3)).view(bins, -1).mean(1).abs().mean().item()


@pytest.mark.parametrize("size", [100, 2000])
@pytest.mark.parametrize(
    "error",
    [
        lambda c: 0 * c,
        lambda c: 0.02 + 0 * c,
        lambda c: 0.1 * (c - 0.5),
        lambda c: 0.15 * (c < 0.8),
        lambda c: 0.8 * (1 - c) * (12 * c).sin(),
    ],
)
def test_interval_of_ece_covers_the_error_of_calibration(
    size: int, error: Callable[[Tensor], Tensor]
) -> None:
    """Calibrated or not. Of 150 sets, 95 % is 142.5 +- 2.7; four standard errors below is 132."""
    truth = true_ece(error, 20)
    found = [bootstrap(ece, *one) for one in zip(*two_classes(0, 150, size, error), strict=True)]
    covered = sum(interval.low <= truth <= interval.high for interval in found)
    assert covered >= 132
    assert all(interval.low <= interval.value <= interval.high for interval in found)


def test_interval_of_ece_tells_calibrated_from_not() -> None:
    (fine,), (fine_labels,) = two_classes(1, 1, 4000, lambda c: 0 * c)
    assert ece_interval(fine, fine_labels).low == 0
    assert ece(fine, fine_labels) > 0.01  # by chance alone
    (wrong,), (wrong_labels,) = two_classes(1, 1, 4000, lambda c: 0.1 + 0 * c)
    value, low, high = ece_interval(wrong, wrong_labels)
    assert 0.05 < low < 0.1 < high < 0.15
    assert value == ece(wrong, wrong_labels)


def test_excess_of_a_gap_is_that_of_a_folded_normal() -> None:
    gap, s = torch.tensor([0.0, 0.3, 2.0]).double(), torch.tensor([0.5, 1.0, 0.7]).double()
    folded = foldnorm.mean((gap / s).numpy(), scale=s.numpy())
    np.testing.assert_allclose(excess(gap, s), folded - gap.numpy(), atol=1e-14)


@properties
@given(problems, st.integers(0, 1000))
def test_interval_of_a_mean_contains_its_value(problem: tuple[Tensor, Tensor], seed: int) -> None:
    for metric in (accuracy, brier):
        interval = bootstrap(metric, *problem, resamples=200, seed=seed)
        # Where all terms agree but for rounding, so do the ends.
        assert interval.low - ROUNDING <= interval.value <= interval.high + ROUNDING


def test_a_single_example() -> None:
    probs, labels = torch.tensor([[0.25, 0.75]]), torch.tensor([1])
    assert accuracy(probs, labels) == 1.0
    assert ece(probs, labels) == ece(probs, labels, binning="equal-width") == 0.25
    assert calibration_curve(probs, labels).count.tolist() == [1] + [0] * 19
    assert aurc(probs, labels) == 0.0
    assert bootstrap(brier, probs, labels, resamples=5) == (0.125, 0.125, 0.125)


# ---- refusals ----

PROBS, LABELS = torch.full((4, 2), 0.5), torch.tensor([0, 1, 0, 1])
ONE_HOT, THREE = torch.eye(2).long()[LABELS], torch.full((4, 3), 1 / 3)
DRAWS = PROBS.expand(3, 4, 2)
MEANS, Y = torch.zeros(3, 4, 1), torch.zeros(4, 1)
NAN = torch.full((4, 2), math.nan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nll(torch.full((50, 100, 10), 0.1), torch.zeros(100).long()),
            r"probs must be \[B, C\], got \(50, 100, 10\); did you mean probs.mean\(0\)\?",
        ),
        (lambda: nll(torch.tensor([0.5]), LABELS[:1]), r"got \(1,\); for two classes, torch.stack"),
        (lambda: nll(PROBS[:0], LABELS[:0]), r"must be \[B, C\], got \(0, 2\).*empty"),
        (lambda: nll(torch.eye(2).long(), LABELS[:2]), r"floating point, got torch.int64"),
        (lambda: nll(NAN, LABELS), r"probs \(4, 2\) has NaN or inf in 4 of 4 rows"),
        (lambda: nll(PROBS * 4, LABELS), r"sums from 4 to 4; for logits, pass probs.softmax\(-1\)"),
        (
            lambda: nll(torch.tensor([[2.0, -1.0]]), LABELS[:1]),
            r"minimum of -1 and sums from 1 to 1",
        ),
        (lambda: nll(PROBS + 6e-4, LABELS), r"must be >= 0 and sum to one"),
        (lambda: nll(PROBS, LABELS[:3]), r"labels must be \[B\] = \(4,\), got \(3,\)"),
        (lambda: nll(PROBS, ONE_HOT), r"got \(4, 2\); each row is one-hot: use labels.argmax\(1\)"),
        (lambda: nll(PROBS, ONE_HOT.double()), r"each row is one-hot: use labels.argmax\(1\)"),
        (lambda: nll(PROBS, LABELS[:, None]), r"got \(4, 1\); use labels.squeeze\(1\)"),
        (lambda: nll(PROBS, PROBS), r"got \(4, 2\); there must be one label for each row of probs"),
        (lambda: nll(PROBS, ONE_HOT * 0), r"got \(4, 2\); .* each row of probs \(4, 2\)"),
        (lambda: nll(PROBS, ONE_HOT[:3]), r"got \(3, 2\); .* each row of probs \(4, 2\)"),
        (lambda: nll(THREE, ONE_HOT), r"got \(4, 2\); .* each row of probs \(4, 3\)"),
        (lambda: nll(PROBS, LABELS.float()), r"integers, got torch.float32; pass labels.long\(\)"),
        (lambda: nll(PROBS, LABELS + 1), r"labels must lie in 0..1 for probs \(4, 2\), got 1..2"),
        (lambda: nll(PROBS, LABELS - 1), r"got -1..0"),
        (lambda: agreement(PROBS, PROBS[:3]), r"probs and reference .* got \(4, 2\) and \(3, 2\)"),
        (
            lambda: total_variation(PROBS, DRAWS),
            r"reference must be .*did you mean reference.mean\(0\)",
        ),
        (lambda: mi_error(DRAWS, PROBS), r"reference_draws must be \[S, B, C\], got \(4, 2\)"),
        (lambda: mi_error(DRAWS, DRAWS[:, :2]), r"draws and reference_draws must share \[B, C\]"),
        (lambda: ood_auroc(PROBS, NAN), r"probs_out \(4, 2\) has NaN"),
        (lambda: ece(PROBS, LABELS, bins=0), r"bins must be at least 1, got 0"),
        (lambda: ece(PROBS, LABELS, binning="equal"), r"'equal-width', got 'equal'"),
        (lambda: rmse(Y, Y), r"means must be \[S, B, D\], got \(4, 1\); .*means\[None\]"),
        (lambda: rmse(MEANS, Y[:, 0]), r"y must be \(4, 1\).* got \(4,\).*y\[..., None\]"),
        (lambda: rmse(MEANS * math.nan, Y), r"means .* without NaN, got \(3, 4, 1\) with 12 NaN"),
        (lambda: rmse(MEANS[:, :0], Y[:0]), r"means must be .*not empty"),
        (lambda: gaussian_nll(MEANS, MEANS, Y), r"variances must be > 0, got 0"),
        (lambda: gaussian_nll(MEANS, MEANS[:1] + 1, Y), r"variances must be \(3, 4, 1\)"),
        (lambda: coverage(Y, Y[:, 0], Y), r"high must be \(4, 1\)"),
        (lambda: coverage(Y + 1, Y, Y), r"low must not exceed high, got 4; swapped"),
        (lambda: coverage(Y[0, 0], Y[0, 0], Y[0, 0]), r"low must be \(\), not empty"),
        (lambda: bootstrap(ece, PROBS, LABELS[:2]), r"share a first axis .*\(4, 2\), \(2,\)"),
        (lambda: ece_interval(PROBS, LABELS, level=95), r"level must be in \(0, 1\), got 95"),
        (lambda: bootstrap(torch.mean), r"share a first axis B >= 1, got \[\]"),
        (lambda: bootstrap(torch.mean, PROBS[:0]), r"first axis B >= 1, got \[\(0, 2\)\]"),
        (lambda: bootstrap(nll, PROBS, LABELS, level=95), r"0 < level < 1 must hold, got 1000, 95"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_sums_within_a_thousandth_are_taken() -> None:
    assert accuracy(PROBS + 4e-4, LABELS) == 0.5


def test_signatures_say_what_comes_back() -> None:
    for metric in (nll, rmse, ece):
        assert inspect.signature(metric).return_annotation is float
