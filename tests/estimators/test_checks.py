"""scikit-learn's own checks of an estimator."""

import os
import subprocess
import sys
from pathlib import Path

from sklearn.utils.estimator_checks import parametrize_with_checks

import stochens

# Little training: the checks fit some two hundred times. The rate is high to make up for it.
LITTLE = {"members": 2, "epochs": 6, "lr": 0.1, "draws": 2}

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "rows that stand twice have noise and batches of their own, so that with dropout the two "
        "trainings agree in law and not in every digit; checks_in_full.py passes it without noise"
    ),
}
# check_array_api_input is skipped here, unless SCIPY_ARRAY_API is set; test_in_full sets it.


@parametrize_with_checks(
    [
        stochens.StochasticEnsembleClassifier(**LITTLE),
        stochens.StochasticEnsembleRegressor(**LITTLE),
    ],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_defaults(estimator, check):
    check(estimator)


def test_in_full():
    script = Path(__file__).with_name("checks_in_full.py")
    source = Path(stochens.__file__).parents[1]
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(source), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
