"""Likelihoods of numbers in their own units go into the scikit-learn regressor, others do not."""

import pytest
import torch

from stochens import InputError
from stochens.likelihoods import LIKELIHOODS, MixtureDensity, Quantiles, StudentT

sklearn = pytest.importorskip("sklearn")
from stochens.estimators import StochasticEnsembleRegressor  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "like", ["laplace", StudentT(df=5.0), MixtureDensity(components=2), Quantiles((0.1, 0.5, 0.9))]
)
def test_a_regressor_predicts_in_the_targets_units(like):
    x = torch.linspace(-1, 1, 60).unsqueeze(1).double().numpy()
    y = 1000 + 50 * x[:, 0]
    model = StochasticEnsembleRegressor(
        hidden_layer_sizes=(8,), likelihood=like, members=2, epochs=60, lr=0.03, random_state=0
    )
    mean, std = model.fit(x, y).predict(x, return_std=True)
    assert abs(mean - y).mean() < 15
    assert (std > 0).all()
    assert (std < 100).all()


def test_others_are_refused():
    refused = [name for name, kind in LIKELIHOODS.items() if not kind.in_units]
    assert {"categorical", "binary", "poisson", "multilabel"} <= set(refused)
    for name in refused:
        with pytest.raises(InputError, match=f"in their own units.*got {name!r}"):
            StochasticEnsembleRegressor(likelihood=name).fit([[0.0], [1.0]], [0.0, 1.0])
