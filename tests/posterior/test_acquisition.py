"""Acquisition functions against enumeration, closed forms and Monte Carlo; BoTorch where it is."""

import importlib
import itertools
import math
import sys

import pytest
import torch
from scipy import integrate
from tests.tolerance import close
from torch import nn

import stochens
from stochens import GaussianPredictive, InputError, Posterior, Predictive
from stochens.likelihoods import NumberPredictive, Numbers
from stochens.posterior.acquisition import (
    bald,
    batch_bald,
    botorch_model,
    botorch_posterior,
    expected_improvement,
    thompson,
)


def random_draws(draws: int, inputs: int, classes: int, *, seed: int = 0, sharp: float = 3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(draws, inputs, classes, generator=generator, dtype=torch.float64)
    return (sharp * logits).softmax(-1)


def joint_information(probs, chosen):
    """I(y_1..y_k; theta) by all labellings, in float64."""
    draws, _, classes = probs.shape
    whole, alone = 0.0, 0.0
    for labels in itertools.product(range(classes), repeat=len(chosen)):
        each = [
            math.prod(probs[s, n, c].item() for n, c in zip(chosen, labels, strict=True))
            for s in range(draws)
        ]
        p = sum(each) / draws
        whole -= p * math.log(p) if p > 0 else 0.0
        alone -= sum(q * math.log(q) for q in each if q > 0) / draws
    return whole - alone


def greedy(probs, size):
    chosen: list[int] = []
    for _ in range(size):
        rest = [n for n in range(probs.shape[1]) if n not in chosen]
        chosen.append(max(rest, key=lambda n: joint_information(probs, [*chosen, n])))
    return chosen


@pytest.mark.parametrize(("draws", "inputs", "classes", "size"), [(3, 5, 2, 4), (6, 6, 3, 3)])
def test_batches_are_those_of_an_enumeration(draws, inputs, classes, size):
    probs = random_draws(draws, inputs, classes)
    found = batch_bald(probs, size)
    assert found.indices.tolist() == greedy(probs, size)
    wanted = [joint_information(probs, found.indices[: k + 1].tolist()) for k in range(size)]
    # entropies of size 3, of at most 27 * 6 terms: 1e-13
    assert found.information.tolist() == pytest.approx(wanted, abs=1e-12)


def test_sampled_labellings_come_near_the_enumeration():
    probs = random_draws(8, 5, 3, sharp=2.0)
    exact = batch_bald(probs, 4)
    sampled = batch_bald(probs, 4, configurations=5000)  # 3^4 is below that: exact too
    assert torch.equal(exact.indices, sampled.indices)
    sampled = batch_bald(probs, 4, configurations=26)  # 3^3 is above
    assert sampled.indices[:3].tolist() == exact.indices[:3].tolist()
    runs = torch.tensor(
        [batch_bald(probs, 4, configurations=26, seed=s).information[3].item() for s in range(200)]
    )
    # of 200 estimates; each is the best of two inputs, which adds what the better one gains
    chosen = exact.indices.tolist()
    others = [n for n in range(5) if n not in chosen[:3]]
    options = [joint_information(probs, [*chosen[:3], n]) for n in others]
    error = runs.std().item() / math.sqrt(len(runs))
    assert runs.mean().item() >= min(options) - 4 * error
    assert runs.mean().item() <= max(options) + 4 * error + runs.std().item() / 2


def test_one_sampled_estimate_is_unbiased():
    """With one candidate left nothing is chosen by chance."""
    probs = random_draws(8, 4, 3, sharp=2.0)
    wanted = joint_information(probs, [0, 1, 2, 3])
    runs = [batch_bald(probs, 4, configurations=20, seed=s).information[3] for s in range(300)]
    found = torch.stack(runs)
    assert abs(found.mean().item() - wanted) < 4 * found.std().item() / math.sqrt(len(found))


def test_copies_are_chosen_by_bald_and_not_by_batch_bald():
    torn = random_draws(20, 3, 3, sharp=5.0)
    probs = torch.cat([torn.repeat_interleave(4, 1), random_draws(20, 3, 3, seed=1, sharp=1.0)], 1)
    best = bald(probs).topk(4).indices.tolist()
    assert len({n // 4 for n in best}) == 1  # four copies of one
    together = batch_bald(probs, 3).indices.tolist()
    assert len({n // 4 for n in together}) == 3


def test_information_is_bounded_and_grows():
    probs = random_draws(5, 30, 4, sharp=20.0)
    found = batch_bald(probs, 10, configurations=1000).information
    assert found[0] == pytest.approx(bald(probs).max().item(), abs=1e-12)
    assert found.max() <= math.log(5)
    assert (found.diff() >= 0).all()
    assert found[-1] > math.log(5) - 0.1


def test_zeros_are_no_trouble():
    probs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    found = batch_bald(probs, 2)
    assert found.indices.tolist() == [0, 1]
    assert found.information.tolist() == pytest.approx([math.log(2)] * 2, abs=1e-12)


def test_bald_is_the_mutual_information():
    probs = random_draws(4, 6, 3)
    torch.testing.assert_close(bald(probs), stochens.metrics.mutual_information(probs))
    p = Predictive.of(probs)
    torch.testing.assert_close(bald(p), bald(probs))
    assert torch.equal(batch_bald(p, 2).indices, batch_bald(probs, 2).indices)


def mixture(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(5, 7, 1, generator=generator, dtype=torch.float64)
    sds = torch.rand(5, 7, 1, generator=generator, dtype=torch.float64) + 0.1
    return GaussianPredictive.of(means, sds.square())


@pytest.mark.parametrize("goal", ["max", "min"])
def test_expected_improvement(goal):
    p, best = mixture(), 0.3
    means, variances = p.components()
    sign = 1 if goal == "max" else -1
    wanted = [sum(max(0.0, sign * (m.item() - best)) for m in means[:, b, 0]) / 5 for b in range(7)]
    assert expected_improvement(p, best, goal=goal).tolist() == pytest.approx(wanted, abs=1e-15)
    # of the outcome: by a fine sum over y, whose error is below its step squared: it is step^2 / 8
    # times the density where there is a corner, which is below 4
    y = torch.linspace(-12, 12, 30001, dtype=torch.float64)
    density = torch.distributions.Normal(means, variances.sqrt()).log_prob(y).exp().mean(0)
    integral = torch.trapezoid(density * (sign * (y - best)).clamp_min(0), y, dim=-1)  # [B]
    found = expected_improvement(p, best, goal=goal, of="outcome")
    torch.testing.assert_close(found, integral, rtol=0, atol=(24 / 30_000) ** 2)
    still = GaussianPredictive.of(means, torch.zeros_like(means))
    torch.testing.assert_close(
        expected_improvement(still, best, goal=goal, of="outcome"),
        expected_improvement(p, best, goal=goal),
    )


def test_of_other_families_too():
    rates = torch.tensor([[[1.0], [2.0]], [[3.0], [1.0]]])
    p = NumberPredictive.of(Numbers(torch.distributions.Poisson, rate=rates))
    assert expected_improvement(p, 1.5).tolist() == [0.75, 0.25]


def test_thompson_draws_are_optima_of_draws():
    p = mixture()
    best = p.components()[0][..., 0].argmax(1)
    assert sorted(thompson(p, 5).tolist()) == sorted(best.tolist())
    assert sorted(thompson(p, 10).tolist()) == sorted([*best.tolist()] * 2)
    assert torch.equal(thompson(p, 3, seed=1), thompson(p, 3, seed=1))
    lowest = p.components()[0][..., 0].argmin(1)
    assert sorted(thompson(p, 5, goal="min").tolist()) == sorted(lowest.tolist())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batch_bald(torch.rand(4, 3), 2), r"probs must be \[S, B, C\]"),
        (lambda: batch_bald(random_draws(2, 3, 2), 4), "size must be at most the 3 inputs"),
        (lambda: batch_bald(random_draws(2, 3, 2), 0), "size must be a whole number"),
        (lambda: batch_bald(mixture(), 2), "this is for classes"),
        (lambda: bald(Predictive.of(random_draws(2, 3, 2)).mean), "did you average the draws"),
        (lambda: batch_bald(Predictive.of(random_draws(2, 3, 2)).light(), 1), "keep_draws=True"),
        (lambda: expected_improvement(mixture(), math.nan), "best must be a finite number"),
        (lambda: expected_improvement(mixture(), 0.0, goal="maximum"), "unknown goal"),
        (lambda: expected_improvement(mixture().light(), 0.0), "keep_draws=True"),
        (lambda: thompson(Predictive.of(random_draws(2, 3, 2)), 1), "this is for numbers"),
        (lambda: thompson(mixture(), 0), "count must be a whole number"),
        (
            lambda: thompson(GaussianPredictive.of(torch.zeros(2, 3, 2), torch.ones(2, 3, 2)), 1),
            "this is for one target",
        ),
    ],
)
def test_bad_input_is_one_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()


# -- BoTorch -----------------------------------------------------------------------------------


def regression(method: str = "regular"):
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    y = -(x - 0.6).square().sum(1)
    return stochens.fit(
        stochens.MLP(2, 8, 1),
        (x, y),
        likelihood=stochens.Homoscedastic(0.1),
        method=method,
        members=4,
        epochs=100,
        lr=0.03,
    )


def test_without_botorch_one_sentence_says_what_to_install(monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "botorch":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botorch", None)
    for call in (lambda: botorch_posterior(mixture()), lambda: botorch_model(None)):
        with pytest.raises(ImportError, match=r"pip install 'stochens\[botorch\]'"):
            call()


def needs_botorch():
    return pytest.importorskip("botorch", reason="needs BoTorch: pip install 'stochens[botorch]'")


def test_a_prediction_for_botorch():
    needs_botorch()
    p = mixture()
    found = botorch_posterior(p)
    torch.testing.assert_close(found.mean, p.mean)
    # its variance is the unbiased one
    torch.testing.assert_close(found.variance, p.epistemic * 5 / 4)
    assert found.rsample(torch.Size([6])).shape == (6, 7, 1)
    with pytest.raises(InputError, match=r"this is for numbers.* got a Predictive"):
        botorch_posterior(Predictive.of(random_draws(2, 3, 2)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["regular", "dropout"])
def test_a_model_for_botorch(method):
    needs_botorch()
    posterior = regression(method)
    model = botorch_model(posterior, draws=3, seed=2)
    x = torch.rand(5, 6, 2, dtype=torch.float64)  # [b, q, d]
    values = model.posterior(x).values
    assert values.shape == (5, 12, 6, 1)
    assert values.dtype == torch.float64
    p = posterior.predict(x.reshape(-1, 2).float(), draws=3, seed=2, noise="shared")
    wanted = p.components()[0].reshape(12, 5, 6, 1).movedim(0, 1)
    # layers of 2 and 8 terms, and one of noise; an output's terms add up to less than 2
    within = close(torch.float32, terms=8, depth=3, scale=2.0)
    torch.testing.assert_close(values.float(), wanted, **within)  # other batches
    assert torch.equal(model.posterior(x).values, values)  # always the same functions
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model.posterior(x).mean.sum(), x)
    assert bool((gradient != 0).any())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_botorch_optimises_with_it():
    needs_botorch()
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    torch.manual_seed(0)
    model = botorch_model(regression())
    acquisition = qLogExpectedImprovement(model, best_f=-0.3)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    found, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=16)
    assert value.exp() > 0.1
    assert (found - 0.6).abs().max() < 0.3  # where y is largest


def test_classes_are_no_numbers():
    needs_botorch()
    posterior = Posterior.of([nn.Linear(2, 3) for _ in range(2)], example=torch.zeros(1, 2))
    with pytest.raises(InputError, match="Classes are no numbers"):
        botorch_model(posterior)


def test_improvement_that_is_far_away_is_small_and_not_lost_to_rounding():
    """E max(0, z + e) = int_0^inf t phi(t - z) dt, here as exp(-z^2 / 2) times what quad sees."""
    for z in (-1.0, -5.0, -8.0, -10.0, -30.0):
        means = torch.tensor([[[z]]], dtype=torch.float64)
        p = GaussianPredictive.of(means, torch.ones_like(means))
        shifted, _ = integrate.quad(
            lambda t, z=z: t * math.exp(-t * t / 2 + t * z), 0, math.inf, epsabs=0
        )
        want = shifted * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        # 1 + z Phi / phi is about 1 / z^2, of numbers near 1: z^2 roundings
        got = expected_improvement(p, 0.0, of="outcome").item()
        assert got == pytest.approx(want, rel=1e-8 + 10 * z * z * 2.0**-52)


def test_the_names_of_the_issue_can_be_imported_from():
    for name in ("acquisition", "calibration", "selection"):
        assert importlib.import_module(f"stochens.{name}") is getattr(stochens, name)
