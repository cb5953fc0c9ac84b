"""A temperature against closed forms and float64 loops, and wherever a posterior goes with it."""

import dataclasses
import json
import math
import warnings
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerance import close, rounding
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
import stochens.likelihoods
from stochens import InputError, Posterior
from stochens.likelihoods import Categorical, Classes
from stochens.posterior.calibration import fit_temperature, minimise
from stochens.posterior.export_program import OLDEST_TORCH
from stochens.posterior.outputs import outputs_of


def linear_members(count: int, classes: int, *, scale: float = 1.0, seed: int = 0) -> Posterior:
    generator = torch.Generator().manual_seed(seed)
    nets = [nn.Linear(3, classes) for _ in range(count)]
    for net in nets:
        for p in net.parameters():
            p.data = scale * torch.randn(p.shape, generator=generator)
    return Posterior.of(nets, example=torch.zeros(1, 3))


def examples(count: int, classes: int, *, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 3, generator=generator),
        torch.randint(classes, (count,), generator=generator),
    )


def nll_by_loop(logits, y, temperature):
    """-1/B sum_b log 1/S sum_s softmax(logits_sb / T)_y, in float64."""
    total = 0.0
    for b in range(logits.shape[1]):
        each = [(draw[b].double() / temperature).softmax(0)[y[b]].item() for draw in logits]
        total -= math.log(max(sum(each) / len(each), torch.finfo(torch.float32).tiny))
    return total / logits.shape[1]


@settings(max_examples=25)
@given(
    members=st.integers(1, 4),
    classes=st.integers(2, 4),
    scale=st.floats(0.01, 30),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore:the NLL of these")
def test_the_held_out_nll_never_rises(members, classes, scale, seed):
    posterior = linear_members(members, classes, scale=scale, seed=seed)
    x, y = examples(12, classes, seed=seed)
    found = fit_temperature(posterior, (x, y))
    assert found.calibration.nll <= found.calibration.nll_before
    before, after = (-p.predict(x).log_prob(y).mean().item() for p in (posterior, found))
    assert after <= before
    assert (before, after) == (found.calibration.nll_before, found.calibration.nll)


def test_the_optimum_of_one_member_is_the_closed_form():
    """Logits (a, 0) that are right with frequency q: sigmoid(a / T) = q at the optimum."""
    net = nn.Linear(1, 2)
    net.weight.data, net.bias.data = torch.tensor([[4.0], [0.0]]), torch.zeros(2)
    y = torch.tensor([0] * 80 + [1] * 20)
    found = fit_temperature(Posterior.of([net]), (torch.ones(100, 1), y)).calibration
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    # At its minimum the NLL is flat: where log T is off by t it is larger by curvature t^2 / 2, and
    # that is not seen below its own rounding
    curvature = 0.8 * 0.2 * math.log(0.8 / 0.2) ** 2
    rel = math.sqrt(2 * rounding(torch.float32, terms=100) * entropy / curvature)
    assert found.temperature == pytest.approx(4 / math.log(0.8 / 0.2), rel=rel)
    assert found.nll == pytest.approx(entropy, **_approx(terms=100))


def _approx(**counts):
    within = rounding(torch.float32, **counts)
    return {"rel": within, "abs": within}


def test_the_optimum_of_a_mixture_is_that_of_a_fine_grid():
    posterior = linear_members(5, 3, scale=3.0)
    x, y = examples(40, 3)
    found = fit_temperature(posterior, (x, y)).calibration
    logits = outputs_of(posterior, x)
    grid = [2 ** (k / 10) for k in range(-10, 51)]
    least = min(nll_by_loop(logits, y, t) for t in grid)
    assert found.temperature > 1.5
    assert found.nll <= least + rounding(torch.float32, terms=5, depth=3)
    again = nll_by_loop(logits, y, found.temperature)
    assert again == pytest.approx(found.nll, **_approx(terms=40, depth=2))


def test_of_two_minima_the_lower_is_found():
    def f(t):
        return min((t + 4) ** 2 + 0.5, (t - 3) ** 2)

    assert minimise(f, f(0.0))[0] == pytest.approx(3, abs=1e-4)
    assert minimise(lambda t: t * t, 0.0) == (0.0, 0.0)
    assert minimise(lambda t: math.nan if t > 0 else (t + 1) ** 2, 1.0)[0] == pytest.approx(
        -1, abs=1e-4
    )


def test_predictions_are_of_the_tempered_logits():
    posterior = linear_members(4, 3)
    x, _ = examples(6, 3)
    warm = dataclasses.replace(
        posterior, calibration=stochens.calibration.Calibration(2.5, 9, 1, 1)
    )
    probs = (outputs_of(warm, x).double() / 2.5).softmax(-1)
    p = warm.predict(x)
    within = close(torch.float32, terms=3, depth=2)
    torch.testing.assert_close(p.probs.double(), probs, **within)
    torch.testing.assert_close(p.mean.double(), probs.mean(0), **within)
    mi = stochens.metrics.mutual_information(probs)
    # three terms, of which softmax, logarithms and two averages are made; entropies below log 3 are
    # subtracted
    apart = close(torch.float32, terms=3, depth=4, scale=2 * math.log(3))
    torch.testing.assert_close(p.mutual_information.double(), mi, **apart)
    streamed = warm.predict(DataLoader(TensorDataset(x), batch_size=4), keep_draws=False)
    torch.testing.assert_close(streamed.mean, p.mean, **within)


def test_logits_are_divided_and_not_logarithms_of_probabilities():
    """exp(-200) is 0 in float32, and exp(-200 / 10) is not."""
    net = nn.Linear(1, 2)
    net.weight.data, net.bias.data = torch.tensor([[200.0], [0.0]]), torch.zeros(2)
    posterior = dataclasses.replace(
        Posterior.of([net]), calibration=stochens.calibration.Calibration(10.0, 1, 1, 1)
    )
    p = posterior.predict(torch.ones(1, 1))
    # exp makes of a relative error of its argument 20 times as much
    rel = rounding(torch.float32, terms=2, condition=20)
    assert p.mean[0, 1].item() == pytest.approx(math.exp(-20), rel=rel)


def regression(noise: float = 0.5):
    nets = [nn.Linear(3, 1) for _ in range(3)]
    posterior = Posterior.of(
        nets, likelihood=stochens.Homoscedastic(noise), example=torch.zeros(1, 3)
    )
    x, _ = examples(50, 2)
    return posterior, x, 2 * torch.randn(50, 1, generator=torch.Generator().manual_seed(1))


def test_of_a_regression_the_standard_deviation_is_scaled():
    posterior, x, y = regression()
    found = fit_temperature(posterior, (x, y))
    scale = found.calibration.temperature
    assert scale > 1.5
    plain, p = posterior.predict(x), found.predict(x)
    within = close(torch.float32, terms=3, depth=3)
    torch.testing.assert_close(p.mean, plain.mean)
    torch.testing.assert_close(p.std, scale * plain.std, **within)
    torch.testing.assert_close(p.epistemic, scale**2 * plain.epistemic, **within)
    means, variances = p.components()
    # means are moved away from their middle, and squared
    size = float(means.abs().max())
    moved = close(torch.float32, terms=3, depth=3, scale=size + size**2)
    torch.testing.assert_close(means.mean(0), p.mean, **moved)
    torch.testing.assert_close(means.var(0, correction=0), p.epistemic, **moved)
    torch.testing.assert_close(variances.mean(0), p.aleatoric, **within)
    # about the mean: z-scores of any quantile are the same; a quantile minus a mean, over an sd
    sizes = (plain.quantile(0.9).abs() + plain.mean.abs()) / plain.std
    torch.testing.assert_close(
        (p.quantile(0.9) - p.mean) / p.std,
        (plain.quantile(0.9) - plain.mean) / plain.std,
        **close(torch.float32, terms=3, depth=3, scale=float(sizes.max())),
    )
    assert -p.log_prob(y).mean() <= -plain.log_prob(y).mean()
    light = found.predict(x, keep_draws=False)
    torch.testing.assert_close(light.std, p.std)


def test_the_scale_of_one_gaussian_is_the_closed_form():
    """T^2 = mean ((y - mean) / sd)^2"""
    net = nn.Linear(1, 1)
    net.weight.data, net.bias.data = torch.zeros(1, 1), torch.zeros(1)
    y = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    posterior = Posterior.of([net], likelihood=stochens.Homoscedastic(0.1))
    found = fit_temperature(posterior, (torch.zeros(200, 1), y)).calibration
    # flat, as above: of curvature 2 in log T
    rel = math.sqrt(2 * rounding(torch.float32, terms=200) * abs(found.nll) / 2)
    assert found.temperature == pytest.approx(y.square().mean().sqrt().item() / 0.1, rel=rel)


def test_it_is_kept_in_the_saved_posterior(tmp_path):
    posterior = fit_temperature(linear_members(3, 3, scale=5.0), examples(30, 3))
    posterior.save(tmp_path / "mine")
    loaded = stochens.load(tmp_path / "mine", nn.Linear(3, 3))
    assert loaded.calibration == posterior.calibration
    x, _ = examples(5, 3, seed=1)
    assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
    about = json.loads((tmp_path / "mine" / "description.json").read_text())
    assert about["format"] == "stochens posterior 3"  # older versions must not load it as 1
    posterior.uncalibrated().save(tmp_path / "plain")
    assert stochens.load(tmp_path / "plain", nn.Linear(3, 3)).calibration is None


def test_members_of_a_calibrated_posterior(tmp_path):
    posterior = fit_temperature(linear_members(4, 3, scale=5.0), examples(30, 3))
    assert posterior.take([0, 2]).calibration is None
    assert posterior.take([3, 2, 1, 0]).calibration == posterior.calibration
    assert posterior.to("cpu").calibration == posterior.calibration
    assert f"temperature {posterior.calibration.temperature:.4g}" in str(posterior.summary())
    assert "temperature" not in str(posterior.uncalibrated().summary())
    parts = [posterior.take([0, 1]), posterior.take([2, 3])]
    joined = stochens.join(parts)
    again = fit_temperature(joined, examples(30, 3))
    assert again.calibration == posterior.calibration
    warm = [dataclasses.replace(part, calibration=posterior.calibration) for part in parts]
    with pytest.raises(InputError, match=r"join the posteriors without it .*uncalibrated"):
        stochens.join(warm)


@pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason=f"needs torch {OLDEST_TORCH}")
@pytest.mark.parametrize("task", ["classes", "regression"])
def test_what_is_exported_has_it(task, tmp_path):
    if task == "classes":
        posterior = fit_temperature(linear_members(3, 3, scale=5.0), examples(30, 3))
        x, _ = examples(6, 3, seed=1)
        p = posterior.predict(x)
        wanted = [p.mean, p.entropy, p.mutual_information]
    else:
        posterior, x, y = regression()
        posterior = fit_temperature(posterior, (x, y))
        p = posterior.predict(x)
        wanted = [p.mean, p.std, p.aleatoric, p.epistemic]
    noise = posterior.export(tmp_path / "mine.pt2")
    found = torch.export.load(tmp_path / "mine.pt2").module()(x, noise)
    # a layer, softmax, a logarithm and averages, of 3 terms each
    size = float(outputs_of(posterior, x).abs().max())
    within = close(torch.float32, terms=3, depth=4, scale=size)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, **within)


def test_noise_is_that_of_the_same_seed_and_data_may_be_a_loader():
    x, y = stochens.toy_set("a", n=60)
    posterior = stochens.fit(stochens.MLP(2, 8, 2), (x[:30], y[:30]), members=3, epochs=30, lr=0.1)
    held_out = TensorDataset(x[30:], y[30:])
    found = fit_temperature(posterior, held_out, draws=4, seed=7)
    by_loader = fit_temperature(posterior, DataLoader(held_out, batch_size=7), draws=4, seed=7)
    assert by_loader.calibration == found.calibration
    p = found.predict(x[30:], draws=4, seed=7)
    assert -p.log_prob(y[30:]).mean().item() == found.calibration.nll


def test_examples_that_are_all_right_cannot_tell():
    net = nn.Linear(1, 2)
    net.weight.data, net.bias.data = torch.tensor([[4.0], [0.0]]), torch.zeros(2)
    with pytest.warns(UserWarning, match="cannot tell how sure to be"):
        found = fit_temperature(Posterior.of([net]), (torch.ones(5, 1), torch.zeros(5).long()))
    assert found.calibration.temperature == 1


@dataclasses.dataclass(frozen=True)
class Own(Categorical):
    """One that predicts in its own way, and does not say what a temperature does."""

    name: ClassVar[str] = "own"
    logits: ClassVar[bool] = False

    def distribution(self, outputs):
        return Classes(outputs.sigmoid() / outputs.sigmoid().sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": (torch.zeros(4, 3), torch.zeros(4))}, "labels must be integers"),
        ({"data": (torch.zeros(4, 3), torch.full((4,), 7))}, "labels must be 0 to 2"),
        ({"data": (torch.zeros(4, 2), torch.zeros(4).long())}, "the network fails on x"),
        ({"draws": 0}, "draws must be a whole number"),
        (
            {"data": stochens.Data((torch.zeros(4, 3), torch.zeros(4).long()), weights=[1.0] * 4)},
            "held-out examples have no weights",
        ),
        ({"data": stochens.Replicas([examples(9, 3), examples(9, 3)])}, "are one data set"),
        (
            {"posterior": Own()},
            "set Own.logits = True .* or write Own.tempered",
        ),
    ],
)
def test_bad_input_is_one_clear_error(change, words):
    posterior = linear_members(2, 3)
    if isinstance(change.get("posterior"), Own):
        posterior = dataclasses.replace(posterior, likelihood=change.pop("posterior"))
    arguments = {"posterior": posterior, "data": examples(10, 3)} | change
    with pytest.raises(InputError, match=words):
        fit_temperature(**arguments)


def held_out(logits, labels):
    """A posterior of one member whose outputs are its inputs, and what it is fitted on."""
    posterior = stochens.Posterior.of([nn.Linear(2, 2)])
    params = {"weight": torch.eye(2)[None], "bias": torch.zeros(1, 2)}
    return dataclasses.replace(posterior, params=params), (torch.tensor(logits), labels)


def test_labels_that_are_all_wrong_are_not_silently_answered_by_a_uniform_distribution():
    some = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0])
    posterior, data = held_out([[1.0, 0.0]] * 6 + [[0.0, 2.0]] * 6, some)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_temperature(posterior, data).calibration.temperature > 1
    data = data[0], torch.tensor([1] * 6 + [0] * 6)
    with pytest.warns(UserWarning, match="no better than by chance"):
        found = fit_temperature(posterior, data).calibration
    assert found.nll < found.nll_before


def test_outputs_that_no_temperature_changes_are_said_to_be_so():
    posterior, data = held_out([[1e20, 0.0]] * 3 + [[0.0, 1e20]] * 3, torch.tensor([0, 1] * 3))
    with pytest.warns(UserWarning, match="every temperature gives these 6 .* the same NLL"):
        assert fit_temperature(posterior, data).calibration.temperature == 1
