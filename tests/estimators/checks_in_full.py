"""check_estimator where weights can be exact: no check fails, is skipped or is excused.

A process of its own, since scipy reads SCIPY_ARRAY_API when it is first imported, and one of the
checks is skipped without it.
"""

import warnings

import torch
from sklearn.utils.estimator_checks import check_estimator

import stochens

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for kind in (stochens.StochasticEnsembleClassifier, stochens.StochasticEnsembleRegressor):
        # no noise and full batches: w equal rows give the same gradient as one of weight w
        model = kind(method="regular", batch_size=None, members=1, epochs=25, lr=0.05)
        results = check_estimator(model, on_skip=None, on_fail=None)
        bad = [(r["check_name"], r["exception"]) for r in results if r["status"] != "passed"]
        print(kind.__name__, len(results), "checks", bad)
        assert not bad
