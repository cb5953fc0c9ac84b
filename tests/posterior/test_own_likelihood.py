"""A likelihood of one's own says what it predicts, and everything follows from that."""

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from torch import distributions, nn
from torch.utils.data import DataLoader

import stochens
from stochens import InputError
from stochens.likelihoods import (
    Classes,
    Likelihood,
    NumberPredictive,
    Numbers,
    Predictive,
    mean_over_examples,
)
from stochens.members import forward
from stochens.posterior.export_program import OLDEST_TORCH

needs_scan = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}"
)


@dataclasses.dataclass(frozen=True)
class Bernoulli(Likelihood):
    """y is 0 or 1, and the network's one output the logit of 1."""

    name: ClassVar[str] = "bernoulli"

    def distribution(self, outputs):
        p = outputs.sigmoid()  # [S, B, 1]
        return Classes(torch.cat([1 - p, p], -1))

    def nll(self, outputs, y, weights=None):
        logits = outputs.squeeze(-1)
        terms = nn.functional.softplus(logits) - y * logits  # [..., B]
        return mean_over_examples(terms, weights)

    def check_targets(self, y):
        return y.to(torch.get_default_dtype())

    def check_outputs(self, outputs, y):
        if outputs.shape[1:] != (1,):
            raise InputError(f"one logit is needed, got {tuple(outputs.shape)}")


class Counts(distributions.Poisson):
    """With the cdf that torch's has not: P(Y <= k) = Q(k + 1, rate)."""

    def cdf(self, value):
        return torch.special.gammaincc(value.floor() + 1, self.rate)


@dataclasses.dataclass(frozen=True)
class Poisson(Likelihood):
    """y are counts, and the outputs the logarithms of their rates."""

    name: ClassVar[str] = "poisson"

    def distribution(self, outputs):
        return Numbers(Counts, rate=outputs.exp())

    def nll(self, outputs, y, weights=None):
        terms = outputs.exp() - y * outputs + (y + 1).lgamma()  # [..., B, D]
        return mean_over_examples(terms.sum(-1), weights)

    def check_targets(self, y):
        return y.reshape(len(y), -1).to(torch.get_default_dtype())

    def check_outputs(self, outputs, y):
        if outputs.shape[1:] != y.shape[1:]:
            raise InputError(f"one output for each count, got {tuple(outputs.shape)}")


@pytest.fixture
def data(float64):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    return {
        "bernoulli": (x, (x[:, 0] > 0.5).double()),
        "poisson": (x, torch.poisson((1 + x[:, 0]).exp(), torch.Generator().manual_seed(1))),
    }


def fit(data, like, method="regular", **options):
    settings = {"members": 5, "epochs": 30, "lr": 0.03, "batch_size": None, "device": "cpu"}
    return stochens.fit(
        stochens.MLP(2, 8, 1), data, method=method, likelihood=like, **(settings | options)
    )


def outputs(posterior, x):
    """Of each member by itself, [M, B, 1]."""
    return forward(posterior.net, posterior.params, x, engine="loop").detach()


# All below is float64 on both sides; entropies and variances are sums of some tens of terms.
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def test_one_logit(data):
    """Was: the softmax of one output, which is 1 whatever the network says."""
    x, y = data["bernoulli"]
    posterior = fit((x, y), Bernoulli())
    p = posterior.predict(x)
    each = distributions.Bernoulli(logits=outputs(posterior, x).squeeze(-1))  # [S, B]
    mean = distributions.Bernoulli(each.probs.mean(0))
    assert isinstance(p, Predictive)
    torch.testing.assert_close(p.mean[:, 1], mean.probs, **CLOSE)
    torch.testing.assert_close(p.entropy, mean.entropy(), **CLOSE)
    mi = mean.entropy() - each.entropy().mean(0)
    torch.testing.assert_close(p.mutual_information, mi, **CLOSE)
    for labels in (y.long(), y, y[:, None]):
        torch.testing.assert_close(p.log_prob(labels), mean.log_prob(y), **CLOSE)
    with pytest.raises(InputError, match=r"labels must be integers \[60\]"):
        p.log_prob(y + 0.5)
    assert mi.max() > 1e-3, "the members differ, so the averages have been tested"


def test_counts(data):
    """Was: mean 1 everywhere."""
    x, y = data["poisson"]
    posterior = fit((x, y), Poisson())
    p = posterior.predict(x)
    rates = outputs(posterior, x).exp()  # [S, B, 1]
    mixture = distributions.MixtureSameFamily(
        distributions.Categorical(torch.ones(5)), distributions.Poisson(rates.permute(1, 2, 0))
    )
    assert isinstance(p, NumberPredictive)
    assert repr(p) == "NumberPredictive(5 draws, 60 examples, 1 targets)"
    torch.testing.assert_close(p.mean, mixture.mean, **CLOSE)
    torch.testing.assert_close(p.variance, mixture.variance, **CLOSE)
    torch.testing.assert_close(p.aleatoric, rates.mean(0), **CLOSE)
    torch.testing.assert_close(p.epistemic, rates.var(0, correction=0), **CLOSE)
    torch.testing.assert_close(p.log_prob(y), mixture.log_prob(y[:, None])[:, 0], **CLOSE)
    assert p.epistemic.max() > 1e-3
    # quantiles by adding up the probabilities of 0, 1, 2, ...
    k = torch.arange(200.0)
    cdf = mixture.expand([200, 60, 1]).log_prob(k.view(-1, 1, 1)).exp().cumsum(0)
    for level in (0.025, 0.5, 0.9):
        wanted = (cdf < level).sum(0).double()
        assert torch.equal(p.quantile(level), wanted)
    drawn = p.sample(4000, seed=1)  # [n, B, D]
    assert torch.equal(drawn[:3], p.sample(4000, seed=1)[:3])
    error = (p.variance / 4000).sqrt()
    assert ((drawn.mean(0) - p.mean).abs() / error).max() < 5  # standard errors, of 60 rows


@pytest.mark.parametrize("like", [Bernoulli(), Poisson()], ids=["bernoulli", "poisson"])
def test_streamed_without_its_draws(data, like):
    x, y = data[like.name]
    posterior = fit((x, y), like)
    whole, light = posterior.predict(x), posterior.predict(x, batch_size=7, keep_draws=False)
    assert light.draws is None
    torch.testing.assert_close(light.mean, whole.mean, **CLOSE)
    torch.testing.assert_close(light.aleatoric, whole.aleatoric, **CLOSE)
    if like.name == "poisson":
        torch.testing.assert_close(light.epistemic, whole.epistemic, **CLOSE)
        with pytest.raises(InputError, match="the draws were not kept"):
            light.log_prob(y)


@pytest.mark.parametrize("like", [Bernoulli(), Poisson()], ids=["bernoulli", "poisson"])
def test_saved_joined_and_measured(data, like, tmp_path):
    x, y = data[like.name]
    posterior = fit((x, y), like, method=stochens.Dropout(0.2))
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", stochens.MLP(2, 8, 1), likelihood=like)
    p = posterior.predict(x, draws=2)
    assert torch.equal(again.predict(x, draws=2).mean, p.mean)
    target = y.long() if like.name == "bernoulli" else y
    rows = stochens.compare({"mine": p}, target, resamples=20, show=False).rows["mine"]
    assert rows["NLL"].value == pytest.approx(-float(p.log_prob(target).mean()), rel=1e-9)
    if like.name == "poisson":
        off = (p.mean[:, 0] - y).square().mean().sqrt()
        assert rows["RMSE"].value == pytest.approx(float(off), rel=1e-9)
        assert rows["95 % coverage"].value > 0.9
        other = Predictive.of(torch.full((2, 60, 2), 0.5))
        with pytest.raises(InputError, match="got NumberPredictive and Predictive"):
            stochens.compare({"counts": p, "classes": other}, target)
        with pytest.raises(InputError, match="reference is for classes, and these are Number"):
            stochens.compare({"counts": p}, target, reference="counts")


@needs_scan
@pytest.mark.parametrize(
    ("like", "suffix"),
    [(Bernoulli(), ".pt2"), pytest.param(Poisson(), ".onnx", marks=pytest.mark.long)],
)
def test_exported(data, like, suffix, tmp_path):
    x, y = data[like.name]
    posterior = fit((x, y), like, epochs=10)
    file = tmp_path / f"model{suffix}"
    noise = posterior.export(file)
    p = posterior.predict(x)
    if like.name == "bernoulli":
        wanted = {"probs": p.mean, "entropy": p.entropy, "mutual_information": p.mutual_information}
    else:
        wanted = {name: getattr(p, name) for name in ("mean", "std", "aleatoric", "epistemic")}
    if suffix == ".pt2":
        got = torch.export.load(file).module()(x, noise)
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(file)
        assert [o.name for o in session.get_outputs()] == list(wanted)
        got = [torch.tensor(t) for t in session.run(None, {"x": x.numpy()})]
    for one, other in zip(got, wanted.values(), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_chains_agree_about_what_it_predicts(data):
    x, y = data["poisson"]
    posterior = stochens.sgmcmc(
        nn.Linear(2, 1), (x, y), likelihood=Poisson(), chains=2, samples=5, burn_in=20, device="cpu"
    )
    p = posterior.predict(x)
    assert torch.equal(p.quantities(), p.components().each.mean.flatten(1))
    assert p.quantities().shape == (10, 60)


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Counts with a dispersion that each member learns: a parameter that the likelihood adds."""

    name: ClassVar[str] = "negative binomial"

    def prepare(self, net, y):
        net.register_parameter("log_total", nn.Parameter(torch.zeros(y.shape[1:])))
        net.register_forward_hook(
            lambda net, _, out: torch.stack([out, net.log_total.expand_as(out)], -1)
        )
        return net

    def adds(self):
        return ("log_total",)

    def distribution(self, outputs):  # [S, B, D, 2]
        rate, total = outputs.exp().unbind(-1)
        logits = (rate / total).log()
        return Numbers(distributions.NegativeBinomial, total_count=total, logits=logits)

    def nll(self, outputs, y, weights=None):
        terms = -self.distribution(outputs).each.log_prob(y)  # [..., B, D]
        return mean_over_examples(terms.sum(-1), weights)

    def check_outputs(self, outputs, y):
        assert outputs.shape[1:] == (*y.shape[1:], 2)


def test_a_parameter_that_the_likelihood_adds_is_loaded_with_it(data, tmp_path):
    """Was: another network, unless the parameter was called log_variance."""
    x, y = data["poisson"]
    posterior = fit((x, y), NegativeBinomial())
    posterior.save(tmp_path / "mine")
    net = stochens.MLP(2, 8, 1)
    again = stochens.load(tmp_path / "mine", net, likelihood=NegativeBinomial())
    p = posterior.predict(x)
    assert torch.equal(again.predict(x).variance, p.variance)
    rate, total = outputs(posterior, x).exp().unbind(-1)  # [S, B, 1] each
    torch.testing.assert_close(p.aleatoric, (rate + rate.square() / total).mean(0), **CLOSE)
    net.load_state_dict(posterior.member(1))  # strict: without the likelihood's own


@dataclasses.dataclass(frozen=True)
class OneRate(Poisson):
    """Outputs and counts are [B], without a second axis."""

    def nll(self, outputs, y, weights=None):
        return mean_over_examples(outputs.exp() - y * outputs + (y + 1).lgamma(), weights)

    def check_targets(self, y):
        return y.to(torch.get_default_dtype())

    def check_outputs(self, outputs, y):
        assert outputs.dim() == 1


def test_outputs_without_a_second_axis(data):
    x, y = data["poisson"]

    def net():
        return nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))

    options = {"method": "regular", "members": 3, "epochs": 20, "lr": 0.1, "device": "cpu"}
    posterior = stochens.fit(net, (x, y), likelihood=OneRate(), **options)
    p = posterior.predict(DataLoader(x, batch_size=7))
    rates = outputs(posterior, x).exp()  # [S, B]
    torch.testing.assert_close(p.mean, rates.mean(0), **CLOSE)
    wanted = distributions.Poisson(rates).log_prob(y).exp().mean(0).log()
    torch.testing.assert_close(p.log_prob(y), wanted, **CLOSE)
    rows = stochens.compare({"mine": p}, y, resamples=20, show=False).rows["mine"]
    assert rows["RMSE"].value == pytest.approx(float((p.mean - y).square().mean().sqrt()))


@pytest.mark.parametrize("like", [Bernoulli(), Poisson()], ids=["bernoulli", "poisson"])
def test_the_method_may_be_chosen_by_trials(data, like):
    """By held-out log p(y | x, data), of targets as the likelihood has them."""
    tried = ["regular", stochens.Dropout(0.2)]
    auto = stochens.Auto(candidates=tried, members=2, epochs=5)
    posterior = fit(data[like.name], like, method=auto, epochs=5)
    assert {row.label for row in posterior.trials.rows} == {"regular", "dropout 0.2"}


def test_several_labels_at_once(data):
    """D yes-or-no answers, [B, D], as a family of torch's own."""

    class Labels(Poisson):
        def distribution(self, outputs):
            return Numbers(distributions.Bernoulli, logits=outputs)

        def nll(self, outputs, y, weights=None):
            terms = nn.functional.softplus(outputs) - y * outputs
            return mean_over_examples(terms.sum(-1), weights)

    x, y = data["poisson"][0], (data["poisson"][0] > 0).double()  # [60, 2] both
    posterior = stochens.fit(
        nn.Linear(2, 2), (x, y), likelihood=Labels(), method="regular", members=3, epochs=20, lr=0.1
    )
    p = posterior.predict(x)
    each = distributions.Bernoulli(logits=outputs(posterior, x))
    torch.testing.assert_close(p.mean, each.probs.mean(0), **CLOSE)
    torch.testing.assert_close(p.variance, p.mean * (1 - p.mean), **CLOSE)  # as of any 0 or 1
    wanted = each.log_prob(y).sum(-1).exp().mean(0).log()
    torch.testing.assert_close(p.log_prob(y), wanted, **CLOSE)


def test_a_class_that_is_no_dataclass_is_saved_and_joined(data, tmp_path):
    """Was: it cannot be saved; and members by two objects of it differ in likelihood."""

    class Plain(Likelihood):
        name = "plain"
        distribution, nll = Bernoulli.distribution, Bernoulli.nll
        check_targets, check_outputs = Bernoulli.check_targets, Bernoulli.check_outputs

        def __init__(self, scale):
            self.scale = scale

    x, y = data["bernoulli"]
    first, second = (fit((x, y), Plain(2.0), members=ids) for ids in (range(2), range(2, 4)))
    assert len(stochens.join([first, second])) == 4
    with pytest.raises(InputError, match="posteriors differ in likelihood"):
        stochens.join([first, fit((x, y), Plain(3.0), members=range(2, 4))])
    first.save(tmp_path / "mine")
    net = stochens.MLP(2, 8, 1)
    again = stochens.load(tmp_path / "mine", net, likelihood=Plain(2.0))
    assert torch.equal(again.predict(x).mean, first.predict(x).mean)
    with pytest.raises(InputError, match=r"its options is \{'scale': 2.0\} there"):
        stochens.load(tmp_path / "mine", net, likelihood=Plain(3.0))


# -- what is refused, and when ---------------------------------------------------------------------


class Bare(distributions.Distribution):
    """Of which torch knows nothing."""

    def __init__(self, rate, validate_args=None):
        super().__init__(rate.shape, validate_args=False)


@dataclasses.dataclass(frozen=True)
class Silent(Likelihood):
    """As one would have written it before: nothing is said of predictions."""

    name: ClassVar[str] = "silent"
    nll = Poisson.nll
    check_targets = Poisson.check_targets
    check_outputs = Poisson.check_outputs


def test_a_likelihood_that_predicts_nothing_is_refused_before_training(data):
    built = []

    def build():
        built.append(1)
        return stochens.MLP(2, 8, 1)

    said = r"write Silent.distribution\(outputs\), which takes \[S, B, C\] and returns .*Classes"
    with pytest.raises(InputError, match=said):
        stochens.fit(build, data["poisson"], likelihood=Silent())
    with pytest.raises(InputError, match=said):
        stochens.nuts(build, data["poisson"], likelihood=Silent())
    with pytest.raises(InputError, match=said):
        Silent().distribution(torch.zeros(2, 3, 1))
    assert not built


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda o: o.exp(), "Wrong.distribution must return .*Classes.*, got a Tensor"),
        (lambda o: Numbers(Counts, rate=o.exp().mean(0)), r"\(1, 4, 1\).*one is \(4, 1\)"),
        (lambda o: Classes(o[..., 0].sigmoid()), r"Classes wants probs \[S, B, C\], got \(1, 4\)"),
        (
            lambda o: Numbers(distributions.Categorical, logits=o),
            "for classes return Classes",
        ),
        (lambda o: Numbers(Bare, rate=o), "Bare has no mean or no variance"),
        (lambda _: Numbers(Counts), "Numbers needs the family's parameters by name"),
    ],
)
def test_a_wrong_distribution_is_refused_before_training(data, returned, said):
    class Wrong(Poisson):
        def distribution(self, outputs):
            return returned(outputs)

    with pytest.raises(InputError, match=said):
        fit(data["poisson"], Wrong(), epochs=10**6)


def test_a_family_without_a_cdf_has_no_quantiles_and_says_so():
    rates = torch.rand(3, 5, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    p = NumberPredictive.of(Numbers(distributions.Poisson, rate=rates))
    with pytest.raises(InputError, match=r"Poisson has no cdf.*or take the quantiles of p.sample"):
        p.interval()
    assert list(p.measures(torch.ones(5))) == ["RMSE", "NLL", "CRPS"]
    assert p.views.reliability(torch.ones(5, 1)) is None, "figures and reports leave it out"
    with pytest.raises(InputError, match=r"targets must be \(5, 1\), got \(4,\)"):
        p.log_prob(torch.ones(4))
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="level must be in"):
            p.quantile(level)


def test_quantiles_of_a_continuous_family_with_heavy_tails():
    """Against the exact ones of one component, and the mixture's cdf of several."""
    scale = torch.tensor([[[1e-6]], [[2e-6]]], dtype=torch.float64)
    p = NumberPredictive.of(Numbers(distributions.Laplace, loc=1 + 0 * scale, scale=scale))
    one = NumberPredictive.of(
        Numbers(distributions.Laplace, loc=1 + 0 * scale[:1], scale=scale[:1])
    )
    for level in (1e-6, 0.3, 0.5, 0.999):
        at = torch.tensor(level, dtype=torch.float64)
        exact = distributions.Laplace(1 + 0 * scale[0], scale[0]).icdf(at)
        # numbers near 1 are 2e-16 apart, the scale is 1e-6
        torch.testing.assert_close(one.quantile(level), exact, rtol=0, atol=5e-16)
        cdf = distributions.Laplace(1 + 0 * scale, scale).cdf(p.quantile(level)).mean(0)
        assert float(cdf) == pytest.approx(level, abs=1e-9)
