"""scikit-learn's own checks of an estimator."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from sklearn.base import is_classifier
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

import stochens

# Little training: the checks fit some two hundred times. The rate is high to make up for it.
LITTLE = {"members": 2, "epochs": 6, "lr": 0.1, "draws": 2}

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row that stands twice is dropped out twice, each time by noise of its own, so that the "
        "two trainings of the classifier agree in law and not in every digit"
    ),
}
# check_array_api_input is skipped here, unless SCIPY_ARRAY_API is set; test_in_full sets it.


@parametrize_with_checks(
    [
        stochens.StochasticEnsembleClassifier(**LITTLE),
        stochens.StochasticEnsembleRegressor(**LITTLE),
    ],
    expected_failed_checks=lambda model: EXPECTED if is_classifier(model) else {},
)
def test_defaults(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "model",
    [
        stochens.StochasticEnsembleRegressor(),
        stochens.StochasticEnsembleClassifier(method="regular"),
    ],
)
def test_weights_are_equal_rows_at_the_defaults_but_for_dropout(model):
    """Its 15 rows are one batch. Both trainings are the same sums in another order, in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_sample_weight_equivalence_on_dense_data(type(model).__name__, model)


@pytest.mark.long
def test_in_full():
    script = Path(__file__).with_name("checks_in_full.py")
    source = Path(stochens.__file__).parents[1]
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(source), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
