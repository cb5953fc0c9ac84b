"""Regression by the defaults: intervals on data that were not seen hold what they promise."""

import dataclasses
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.long import long_but
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import (
    MLP,
    Dropout,
    Gaussian,
    Heteroscedastic,
    Homoscedastic,
    StochasticEnsembleRegressor,
)
from stochens.data import Data, source
from stochens.likelihoods import Likelihood, Numbers, mean_over_examples
from stochens.training import freedom
from stochens.training.advice import FOLLOWED
from stochens.training.freedom import noise_at_most, noise_too_small
from stochens_lab.workflow.config import FitConfig, method_name

HELD_OUT = 2000
LEVEL, Z = 0.95, 1.96


def curve(x):
    return torch.sin(3 * x)


def steady(x):
    return torch.full_like(x, 0.1)


def growing(x):
    return 0.05 + 0.125 * (x + 1)


def drawn(count, noise, seed):
    """x in [-1, 1] and y = sin(3 x) with a noise of this standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(count, 1, generator=generator) - 1
    return x, curve(x) + noise(x) * torch.randn(count, 1, generator=generator)


def by_fit(likelihood, outputs, noise, count, **options):
    """A sine with noise: who is inside, and width and learned noise over the truth."""
    x, y = drawn(count, noise, 0)
    posterior = stochens.fit(MLP(1, 20, 20, outputs), (x, y), likelihood=likelihood, **options)
    x, y = drawn(HELD_OUT, noise, 1)
    p = posterior.predict(x, draws=5)
    low, high = p.interval(LEVEL)
    return (
        ((low <= y) & (y <= high)),
        (high - low) / (2 * Z * noise(x)),
        p.aleatoric.sqrt() / noise(x),
    )


def by_regressor(**options):
    """A line with a noise of 5, in units that the estimator has to find by itself."""
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 10, (300 + HELD_OUT, 1))
    y = 10 * x[:, 0] + 3 + 5 * generator.normal(size=len(x))
    model = StochasticEnsembleRegressor(members=5, random_state=0, **options)
    mean, std = model.fit(x[:300], y[:300]).predict(x[300:], return_std=True)
    aleatoric = np.sqrt(model.predict_uncertainty(x[300:]).aleatoric)
    inside = abs(y[300:] - mean) <= Z * std
    return torch.tensor(inside), torch.tensor(std / 5), torch.tensor(aleatoric / 5)


def readme(**options):
    return by_fit("gaussian", 1, steady, 200, members=10, lr=0.05, **options)


def heteroscedastic(**options):
    return by_fit("heteroscedastic", 2, growing, 400, members=10, lr=0.02, epochs=150, **options)


PROBLEMS = {
    "readme": (readme, 200),
    "noise 5": (by_regressor, 300),
    "growing": (heteroscedastic, 400),
}


def allowed(rows):
    """By which the width and the coverage may be off.

    A noise learned from N rows has an error of 1 / sqrt(2 N) of it; a network of 10 effective
    parameters has taken 10 / (2 N) off the residuals. A width that is off by a share s is off by
    2 z phi(z) s = 0.23 s in coverage, which is a mean of HELD_OUT coin throws.
    """
    width = 3 / math.sqrt(2 * rows) + 10 / (2 * rows)
    return width, 3 * math.sqrt(LEVEL * (1 - LEVEL) / HELD_OUT) + 0.23 * width


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_default_covers_what_it_says(name):
    problem, rows = PROBLEMS[name]
    of_width, of_coverage = allowed(rows)
    inside, width, aleatoric = problem()
    assert width.mean() == pytest.approx(1, abs=of_width)
    assert aleatoric.mean() == pytest.approx(1, abs=of_width)
    assert inside.double().mean() == pytest.approx(LEVEL, abs=of_coverage)


@pytest.mark.parametrize("name", long_but({next(iter(PROBLEMS))}, PROBLEMS))
def test_dropout_does_not_and_this_is_said(name):
    problem, rows = PROBLEMS[name]
    with pytest.warns(UserWarning, match="noise of dropout is counted twice.*method='regular'"):
        _, width, aleatoric = problem(method="dropout")
    assert width.mean() > aleatoric.mean()
    assert width.mean() > 1 + allowed(rows)[0]


# Gaussian members by natural gradients ------------------------------------------------------------


def three_tenths(x):
    return torch.full_like(x, 0.3)


def by_natural_gradients(count, epochs, **options):
    """The width over the truth at data held out, and what is said of it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, width, _ = by_fit(
            "gaussian", 1, three_tenths, count, optimizer="natural", epochs=epochs, **options
        )
    return float(width.mean()), [str(w.message) for w in said if "as wide as" in str(w.message)]


SINES = {"60, short": (60, 300), "60": (60, 2000), "400": (400, 1000)}


@pytest.mark.parametrize("name", long_but({"60, short"}, SINES))
def test_natural_gradients_count_their_noise_twice_and_say_so(name):
    """11.6, 4.1 and 1.24 times too wide, of which nothing was said."""
    width, said = by_natural_gradients(*SINES[name], members=5)
    assert width > 1.1
    assert len(said) == 1
    assert "the noise of natural gradients is counted twice" in said[0]
    assert "likelihood=stochens.Homoscedastic(0.1), or use another optimizer" in said[0]


@pytest.mark.long
def test_with_enough_rows_they_are_right_and_nothing_is_said():
    width, said = by_natural_gradients(1000, 1000, members=3)
    assert width == pytest.approx(1, abs=allowed(1000)[0])
    assert not said


@pytest.mark.parametrize("as_loader", [False, True])
@pytest.mark.parametrize("columns", [3, 10])
def test_the_variance_of_a_linear_model_is_no_noise(columns, as_loader, float64):
    """Ten weights take a sixth of the squared errors of 60 rows, and the variance of the draws
    makes up for that: s^2 comes out as it should, and nothing is said."""
    x = torch.randn(60, columns)
    y = x @ torch.randn(columns, 1) / math.sqrt(columns) + 0.5 * torch.randn(60, 1)
    data = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True) if as_loader else (x, y)
    options = {"method": "regular", "likelihood": "gaussian", "members": 12, "epochs": 600}
    net = torch.nn.Linear(columns, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = stochens.fit(net, data, optimizer="natural", batch_size=60, **options)
    assert not [str(w.message) for w in caught]
    logs = posterior.params["log_variance"]
    best = log_variance_of(x, y)
    # tau, of which sigma comes out with its own noise, adds tau^2 / 2 = 1 / N times that
    assert logs.mean().item() == pytest.approx(best, abs=5 * logs.std().item() / 12**0.5 + 0.01)


def log_variance_of(x, y):
    """m of the best N(m, tau^2) of log s^2, beside the best Gaussians of all weights, for priors
    N(0, 1): the root of  N / 2 (1 - E(error^2) / s^2) + m  with 1 / s^2 = exp(tau^2 / 2 - m)."""
    design, n = torch.cat([x, torch.ones(len(x), 1)], 1), len(x)
    m = tau2 = 0.0
    for _ in range(2000):
        certain = math.exp(tau2 / 2 - m)
        a = certain * design.T @ design + torch.eye(design.shape[1])
        mean = torch.linalg.solve(a, certain * design.T @ y)
        v = (design.square() / a.diagonal()).sum(1).mean()
        error = float((y - design @ mean).square().mean() + v)
        slope, bend = n / 2 * (1 - error * certain) + m, n / 2 * error * certain + 1
        m, tau2 = m - 0.3 * slope / bend, 1 / bend
    return m


def test_of_dropout_and_natural_gradients_both_are_named():
    x, y = drawn(60, three_tenths, 0)
    options = {"likelihood": "gaussian", "members": 3, "epochs": 300}
    with pytest.warns(UserWarning, match="of dropout and natural gradients is counted twice"):
        stochens.fit(MLP(1, 20, 20, 1), (x, y), method="dropout", optimizer="natural", **options)


# What is said, and of whom ------------------------------------------------------------------------


def said_of(method, likelihood="gaussian") -> list[str]:
    x, y = drawn(200, steady, 0)
    options = {"members": 3, "lr": 0.05, "epochs": 60}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stochens.fit(MLP(1, 20, 20, 1), (x, y), likelihood=likelihood, method=method, **options)
    return [str(w.message) for w in said if "counted twice" in str(w.message)]


@pytest.mark.parametrize("method", ["dropconnect", Gaussian(0.1)])
def test_every_noise_that_is_learned_again(method):
    (said,) = said_of(method)
    assert (method if isinstance(method, str) else method.name) in said


def test_a_noise_of_no_size_and_one_that_is_known_are_fine():
    assert not said_of(Dropout(0.0))
    assert not said_of("regular")
    assert not said_of("dropout", Homoscedastic(0.1))


def test_how_much_too_wide_is_told_from_what_is_known():
    """A linear model with Gaussian noise g on its one weight: v = g^2 x^2 and x = +-1, so that the
    best learned variance is noise^2 + g^2, and predictions have noise^2 + 2 g^2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(2, (400, 1), generator=generator).double() * 2 - 1
    y = 2 * x + 0.3 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    net = torch.nn.Linear(1, 1, bias=False).double()
    options = {"members": 4, "lr": 0.02, "epochs": 200, "likelihood": "gaussian"}
    with pytest.warns(UserWarning, match=r"it is (\d+)% of the variance") as told:
        posterior = stochens.fit(net, (x, y), method=Gaussian(0.3), **options)
    # a half; 16 draws of a variance, 128 rows of one weight: sqrt(2 / 15) / sqrt(4 members)
    share = float(str(told[0].message).split("it is ")[1].split("%")[0]) / 100
    assert share == pytest.approx(0.5, abs=3 * 0.5 * math.sqrt(2 / 15 / 4))
    learned = posterior.params["log_variance"].exp().mean()
    noise = (y - 2 * x).square().mean()  # of these rows
    assert learned == pytest.approx(float(noise) + 0.3**2, rel=0.1)  # mini-batches of 128, Adam


def test_classes_are_by_dropout_as_ever():
    x, y = stochens.toy_set("a", n=40)
    for options in ({}, {"method": "dropout"}):
        posterior = stochens.fit(MLP(2, 4, 2), (x, y), members=2, epochs=1, **options)
        assert [m.name for m in posterior.recipe.methods] == ["dropout"]
    posterior = stochens.fit(
        MLP(2, 4, 1), (x, y.float()), likelihood="gaussian", members=2, epochs=1
    )
    assert [m.name for m in posterior.recipe.methods] == ["regular"]


@pytest.mark.parametrize(
    ("likelihood", "name"),
    [("categorical", "dropout"), ("gaussian", "regular"), ("heteroscedastic", "regular")],
)
def test_the_command_line_has_the_same_defaults(likelihood, name):
    config = FitConfig(model="a:b", data="c.csv", out=Path("d"), likelihood=likelihood)
    assert method_name(config) == name
    assert method_name(dataclasses.replace(config, method="SE1")) == "dropout"


# A network that follows the noise of its data -----------------------------------------------------


def test_degrees_of_freedom_of_a_linear_model(float64):
    """gamma = tr X (X'X + lambda s^2)^-1 X' by hand; by its own equation for the noise s^2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)
    y = torch.randn(40, 2, generator=generator)
    weights = torch.rand(40, generator=generator) + 0.5
    member = {"weight": torch.randn(4, 6), "bias": torch.tensor([0.0, 0.0, -1.0, 0.5])}
    member["weight"][2:] = 0.0  # a noise for each of the two targets, the same at all x
    net = torch.nn.Linear(6, 4)
    design = torch.cat([x, torch.ones(40, 1)], 1)
    for w in (None, weights):
        data = source(Data((x, y), weights=w))
        heavy = design if w is None else w.unsqueeze(1) * design
        found = noise_too_small(net, member, Heteroscedastic(), data, 3.0)
        ratio = 1.0
        for _ in range(50):
            gamma = 0.0
            for log_variance in (-1.0, 0.5):
                a = heavy.T @ design + 3.0 * ratio * math.exp(log_variance) * torch.eye(7)
                gamma += float(torch.linalg.solve(a, heavy.T @ design).trace())
            ratio = 2 * data.examples / (2 * data.examples - gamma)
        assert found == pytest.approx(math.sqrt(ratio), rel=1e-9)


def noise_of(rows, hidden, words="follows the noise"):
    """The learned noise over the true one, 5, of the default regressor for 5 features, and what is
    said of it."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 5))
    y = x @ [3, -2, 1, 0, 4] + 5 * generator.normal(size=rows)
    model = StochasticEnsembleRegressor(members=3, hidden_layer_sizes=hidden, random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(x, y)
    noise = np.sqrt(model.predict_uncertainty(x[:1]).aleatoric[0]) / 5
    return noise, [str(w.message) for w in said if words in str(w.message)]


def test_a_network_that_follows_the_noise_is_told_of():
    noise, said = noise_of(100, (50, 50))
    factor = float(said[0].split("about ")[1].split(",")[0])
    assert noise < 0.5
    # a network is linear in its parameters near where it ended, and only there
    assert factor * noise == pytest.approx(1, abs=0.3)
    noise, said = noise_of(500, (5,))
    assert not said
    assert noise == pytest.approx(1, abs=3 / math.sqrt(1000) + 36 / 1000)  # 36 parameters at most


def test_a_noise_that_the_network_ate_is_not_called_too_large():
    """It is on its way down to what is left of the errors, and more epochs make it worse."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 20))
    y = np.sin(2 * x[:, 0]) + 0.5 * generator.normal(size=300)
    model = StochasticEnsembleRegressor(members=2, random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(x, y)
    assert np.sqrt(model.predict_uncertainty(x[:1]).aleatoric[0]) < 0.25
    (advice,) = [str(w.message) for w in said]
    assert "follows the noise of its 300 rows" in advice


def test_more_than_a_thousand_rows_are_looked_at():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1100, 40, generator=generator)
    net = MLP(40, 30, 2)  # 1292 parameters
    member = {name: p.detach() for name, p in net.named_parameters()}
    found = noise_too_small(net, member, Heteroscedastic(), source((x, x[:, :1])), 1e-3)
    assert found is not None
    assert found > 2


class StudentT(Likelihood):
    """5 degrees of freedom; `scale` is learned at each x where it is not given."""

    name = "student"

    def __init__(self, scale=None):
        self.scale = scale

    def distribution(self, outputs):
        loc, log_scale = outputs.chunk(2, -1)
        scale = log_scale.exp() if self.scale is None else torch.full_like(loc, self.scale)
        df = torch.full_like(loc, 5.0)
        return Numbers(torch.distributions.StudentT, df=df, loc=loc, scale=scale)

    def nll(self, outputs, y, weights=None):
        return mean_over_examples(-self.distribution(outputs).each.log_prob(y).sum(-1), weights)

    def check_targets(self, y):
        return y

    def check_outputs(self, outputs, y):
        pass


@pytest.mark.parametrize(("scale", "told"), [(None, True), (0.1, False)])
def test_a_scale_of_ones_own_family_is_learned_too(scale, told):
    x, y = drawn(200, steady, 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = stochens.fit(
            MLP(1, 20, 20, 2), (x, y), likelihood=StudentT(scale), members=3, lr=0.05, epochs=60
        )
    assert [m.name for m in posterior.recipe.methods] == ["dropout"]
    assert any("noise of dropout is counted twice" in str(w.message) for w in said) == told


@pytest.mark.parametrize(("columns", "hidden", "told"), [(10, (), False), (1, (20, 20), True)])
def test_natural_gradients_and_a_scale_of_ones_own_family(columns, hidden, told):
    """Of 60 rows 10 weights know a part, which is no noise of theirs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, columns, generator=generator)
    y = x.sin().mean(1, keepdim=True) + 0.3 * torch.randn(60, 1, generator=generator)
    options = {"likelihood": StudentT(), "method": "regular", "members": 3, "epochs": 600}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = MLP(columns, *hidden, 2)
        stochens.fit(net, (x, y), optimizer="natural", **options)
    said = [str(w.message) for w in caught if "counted twice" in str(w.message)]
    assert bool(said) == told
    assert not told or "use another optimizer, or give" in said[0]


def test_what_is_too_large_is_not_looked_at():
    x, y = drawn(200, steady, 0)
    member = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    net, like = torch.nn.Linear(1, 2), Heteroscedastic()
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    assert noise_too_small(net, member, like, source((x, y)), 1.0) is not None
    at_once = noise_too_small(net, member, like, source((x, y)), 1.0)
    assert noise_too_small(net, member, like, source(loader), 1.0) == pytest.approx(at_once)
    part = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True, drop_last=True)
    assert noise_too_small(net, member, like, source(part), 1.0) is None  # other rows each time
    many = source((torch.zeros(freedom.MOST // 4 + 1, 1), torch.zeros(freedom.MOST // 4 + 1, 1)))
    assert noise_too_small(net, member, like, many, 1.0) is None


@pytest.mark.parametrize(("rows", "columns"), [(400, 300), (2000, 100), (300, 600)])
def test_some_rows_say_how_much_all_can_be_followed_at_most(rows, columns, monkeypatch, float64):
    """Of a linear model, where all rows can be looked at too. The bound holds on average over the
    rows that are chosen: of 80 normal rows or more, gamma is off by a few percent."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    member = {"weight": torch.zeros(2, columns), "bias": torch.zeros(2)}
    asked = (torch.nn.Linear(columns, 2), member, Heteroscedastic(), source((x, x[:, :1])), 30.0)
    exact = noise_too_small(*asked)
    assert exact is not None
    monkeypatch.setattr(freedom, "MOST", rows // 5 * 2 * (columns + 1))
    assert noise_too_small(*asked) is None
    found, seen = noise_at_most(*asked)
    assert seen == rows // 5
    assert 0.97 * exact < found
    if columns < rows // 4:  # all directions have been seen, and the bound is near
        assert found < 1.1 * exact < FOLLOWED


def test_parameters_alone_say_it_where_nothing_can_be_looked_at(monkeypatch):
    x, y = drawn(200, steady, 0)
    member = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    monkeypatch.setattr(freedom, "MOST", 4)
    asked = (torch.nn.Linear(1, 2), member, Heteroscedastic(), source((x, y)), 1.0)
    factor, seen = noise_at_most(*asked)
    assert factor == pytest.approx(math.sqrt(200 / 196))
    assert seen == 0


def test_a_network_that_may_follow_the_noise_of_too_many_rows_is_told_of(monkeypatch):
    monkeypatch.setattr(freedom, "MOST", 60 * 2902)  # 60 rows of as many parameters
    _, said = noise_of(100, (50, 50), "may follow the noise")
    assert "the noise of its 100 rows" in said[0]
    assert "as 60 of them say" in said[0]
