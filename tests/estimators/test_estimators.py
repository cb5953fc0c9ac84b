"""The estimators, held against the posterior inside them and against how people use them."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from torch import nn

import stochens
from stochens import InputError, StochasticEnsembleClassifier, StochasticEnsembleRegressor
from stochens.training import work
from stochens.training.loop import train

LITTLE = {"members": 3, "epochs": 20, "lr": 0.03, "random_state": 0}


def small_net(features, outputs):
    return stochens.MLP(features, 3, outputs)


def test_a_net_that_has_a_name_can_be_pickled_and_a_lambda_cannot():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    options = {"members": 2, "epochs": 1, "random_state": 0}
    model = StochasticEnsembleClassifier(small_net, **options).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(StochasticEnsembleClassifier(lambda n, m: small_net(n, m)))


def classifier(**options):
    return StochasticEnsembleClassifier(**(LITTLE | options))


def regressor(**options):
    return StochasticEnsembleRegressor(**(LITTLE | options))


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def line():
    """y = 1000 + 200 sin(3 x) + noise of 20."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 1))
    return x, 1000 + 200 * np.sin(3 * x[:, 0]) + 20 * rng.standard_normal(300)


def test_labels_of_any_kind(iris):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])
    numbers, words = classifier().fit(X, y), classifier().fit(X, names[y])
    assert list(words.classes_) == list(names)
    assert (words.predict(X) == names[numbers.predict(X)]).all()
    assert words.score(X, names[y]) == numbers.score(X, y) > 0.9
    assert classifier().fit(X, y > 0).predict(X).dtype == bool


def test_the_posterior_inside_says_the_same(iris):
    X, y = iris
    model = classifier(draws=4).fit(X, y)
    x = torch.tensor(model.scaler_.transform(X))
    p = model.posterior_.predict(x, draws=4, noise="shared", seed=model.posterior_.seed)
    assert len(p.probs) == 12
    np.testing.assert_allclose(model.predict_proba(X), p.mean, rtol=1e-12)  # one more division
    np.testing.assert_allclose(model.predict_std(X), p.probs.std(0, correction=0), rtol=1e-12)
    unsure = model.predict_uncertainty(X)
    np.testing.assert_array_equal(unsure.total, p.entropy)
    # total = aleatoric + epistemic, but for a mutual information that rounding made negative
    np.testing.assert_allclose(unsure.total, unsure.aleatoric + unsure.epistemic, atol=1e-12)
    assert unsure.epistemic.max() > 1e-3


def test_one_seed_gives_one_model_and_other_seeds_another(iris):
    X, y = iris
    first, again, other = (classifier(random_state=s).fit(X, y) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout", "gaussian"])
def test_a_row_does_not_depend_on_those_beside_it(iris, method):
    X, y = iris
    model = classifier(method=method, dtype="float64").fit(X, y)
    order = np.random.default_rng(0).permutation(len(X))
    # float64 rounding of matrix products of another size
    np.testing.assert_allclose(model.predict_proba(X)[order], model.predict_proba(X[order]), 1e-12)
    np.testing.assert_allclose(model.predict_proba(X[:1]), model.predict_proba(X)[:1], 1e-12)


def test_pandas_pipeline_grid_search_clone_and_pickle():
    frame, y = load_wine(return_X_y=True, as_frame=True)
    names = y.map({0: "barolo", 1: "grignolino", 2: "barbera"})
    grid = {"classifier__method": ["regular", stochens.Dropout(0.3)]}
    pipeline = make_pipeline(MinMaxScaler(), classifier())
    pipeline.steps[-1] = ("classifier", pipeline.steps[-1][1])
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(frame, names)
    assert search.score(frame, names) > 0.9
    model = classifier().fit(frame, names)
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])
    with pytest.raises(NotFittedError):
        clone(model).predict(frame)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict_proba(frame), model.predict_proba(frame))
    assert back.get_params() == model.get_params()
    categories = pd.DataFrame({"kind": ["a", "b", "c"] * 20})
    coded = make_pipeline(OneHotEncoder(sparse_output=False), classifier())
    target = categories["kind"] == "b"
    assert coded.fit(categories, target).score(categories, target) == 1.0


def test_weights_are_repeated_rows_in_law(iris):
    X, y = iris
    weight = np.where(y == 2, 3, 1)
    options = {"method": "regular", "batch_size": None, "dtype": "float64"}
    weighted = classifier(**options).fit(X, y, sample_weight=weight)
    rows = classifier(**options).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    # float64 rounding, grown by 20 steps of Adam; the scaling of columns is weighted too
    np.testing.assert_allclose(weighted.predict_proba(X), rows.predict_proba(X), rtol=1e-8)
    plain = classifier(**options).fit(X, y)
    assert abs(weighted.predict_proba(X) - plain.predict_proba(X)).max() > 0.01
    with pytest.raises(ValueError, match="sample_weight"):
        classifier().fit(X, y, sample_weight=weight[:-1])


class Convnet(nn.Sequential):
    def __init__(self, features: int, outputs: int) -> None:
        side = int(features**0.5)
        super().__init__(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * (side - 1) ** 2, outputs),
        )


def test_the_users_own_network(iris):
    X, y = iris
    model = classifier(net=Convnet).fit(X, y)  # 4 features: 2 x 2 images
    assert model.score(X, y) > 0.8
    assert "1.weight" in model.posterior_.params
    again = pickle.loads(pickle.dumps(clone(model).fit(X, y)))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    own = nn.Sequential(first := nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    before = first.weight.clone()
    assert classifier(net=own, dtype="float64").fit(X, y).score(X, y) > 0.8
    assert torch.equal(first.weight, before)
    assert own[0].weight.dtype == torch.float32, "the user's own is left alone"


@pytest.mark.parametrize("unit", [1e-24, 1e24])
def test_std_whose_square_float32_cannot_hold(unit):
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    y = X.sum(1).astype(float)
    _, wanted = StochasticEnsembleRegressor(**LITTLE).fit(X, y).predict(X, return_std=True)
    model = StochasticEnsembleRegressor(**LITTLE).fit(X, y * unit)
    _, std = model.predict(X, return_std=True)
    assert std.dtype == np.float32
    # standardised targets differ in their last bit, which training in float32 makes larger
    np.testing.assert_allclose(std / unit, wanted, rtol=1e-3)
    np.testing.assert_array_equal(model.predict_std(X), std)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_regression_in_the_units_of_the_targets(line, likelihood):
    x, y = line
    model = regressor(likelihood=likelihood, method="regular", members=5, epochs=60).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert model.score(x, y) > 0.95
    np.testing.assert_array_equal(std, model.predict_std(x))
    # the noise is 20; 300 points tell it to 4 %, the prior and short training add to that
    assert 17 < np.sqrt(model.predict_uncertainty(x).aleatoric.mean()) < 30
    assert 0.9 < np.mean(abs(y - mean) < 1.96 * std) <= 0.995
    far = model.predict_uncertainty([[4.0], [0.0]]).epistemic
    assert far[0] > 10 * far[1], "more ignorance far from the data"
    assert model.predict(x.astype(np.float32)).shape == (300,)


def test_several_targets(line):
    x, y = line
    both = np.stack([y, -y / 100], axis=1)
    model = regressor(method="regular", epochs=60).fit(x, both)
    assert model.predict(x).shape == model.predict_std(x).shape == (300, 2)
    assert model.predict_uncertainty(x).total.shape == (300, 2)
    assert model.score(x, both) > 0.9


def test_without_scaling_the_numbers_are_the_users(line):
    x, y = line
    model = regressor(standardize=False).fit(x, (y - 1000) / 200)
    p = model.posterior_.predict(
        torch.tensor(x), draws=5, noise="shared", seed=model.posterior_.seed
    )
    np.testing.assert_allclose(model.predict(x), p.mean[:, 0])
    np.testing.assert_allclose(model.predict_std(x), p.std[:, 0])


def test_cross_validation(line):
    assert cross_val_score(regressor(), *line, cv=2).min() > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "dropuot"}, "did you mean 'dropout'"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64"),
        ({"net": 3}, "net must be a function"),
        ({"net": lambda n, m: None}, "must return an nn.Module"),
        ({"net": lambda: None}, r"a function \(features, outputs\) -> nn.Module: too many"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"hidden_layer_sizes": 20}, r"must be a tuple, say \(50,\), got 20"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be a whole number, at least 1"),
        ({"hidden_layer_sizes": (5.5,)}, "hidden_layer_sizes must be a whole number"),
        ({"members": 0}, "members must be at least 1"),
        ({"likelihood": "categorical"}, "needs a likelihood of numbers in their own units"),
    ],
)
def test_bad_options_are_refused(line, options, message):
    with pytest.raises(InputError, match=message):
        regressor(**options).fit(*line)


def test_import_stays_light():
    code = "import sys, stochens; assert 'sklearn' not in sys.modules; stochens.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no attribute 'nothing'" in done.stderr


class Merged(nn.Sequential):
    """Each feature alone through the same layers: the batch is merged with the features."""

    def forward(self, x):
        return super().forward(x.reshape(-1, 1)).reshape(*x.shape, -1).sum(1)


def merged(features, outputs):
    return Merged(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))


def own_dropout(features, outputs):
    layers = nn.Linear(features, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, outputs)
    return stochens.keep_dropout(nn.Sequential(*layers))


def test_more_outputs_than_classes_are_refused(iris):
    for net in (stochens.MLP(4, 8, 7), lambda features, outputs: stochens.MLP(features, 8, 7)):
        with pytest.raises(InputError, match="has 7 outputs, and y has 3 classes"):
            classifier(net=net).fit(*iris)


@pytest.mark.parametrize("method", ["dropout", "auto"])
@pytest.mark.parametrize(
    ("net", "message"), [(merged, "merges the batch"), (own_dropout, "the network's own dropout")]
)
def test_what_cannot_predict_is_refused_before_it_is_trained(
    iris, net, message, method, monkeypatch
):
    trained = []

    def noted(*args):
        trained.append(args[0].settings)
        return train(*args)

    monkeypatch.setattr(work, "train", noted)
    for model in (classifier, regressor):
        with pytest.raises(InputError, match=message):
            model(net=net, method=method).fit(*iris)
    assert sum(settings.epochs for settings in trained) < LITTLE["epochs"]


def test_a_network_that_merges_predicts_without_noise(iris):
    model = classifier(net=merged, method="regular").fit(*iris)
    assert model.predict(iris[0]).shape == (150,)


def test_a_warning_names_the_users_line_through_whatever_calls_fit(iris):
    model = classifier(epochs=1, lr=1e-4)
    ways = (
        lambda: model.fit(*iris),
        lambda: make_pipeline(MinMaxScaler(), model).fit(*iris),
        lambda: cross_val_score(model, *iris, cv=2),
    )
    for fit in ways:
        with pytest.warns(
            stochens.errors.TrainingAdvice, match="steps of training are few"
        ) as said:
            fit()
        assert {w.filename for w in said} == {__file__}
