"""`kl_weight` of fit and `temperature` of sgmcmc: two things with two names."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import stochens
from stochens.errors import InputError
from stochens.estimators import StochasticEnsembleClassifier, StochasticEnsembleRegressor
from stochens.likelihoods import Homoscedastic

N, SLOPE, NOISE = 40, 2.0, 0.5


def line():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    y = SLOPE * x + NOISE * torch.randn(N, 1, generator=generator, dtype=torch.float64)
    return x, y, nn.Linear(1, 1, bias=False).double()


@pytest.mark.parametrize("weight", [0.0, 1.0, 30.0])
def test_kl_weight_leaves_the_likelihood_and_weighs_the_prior(weight):
    """The mode of likelihood^(1 / w) * prior: a ridge regression whose penalty is w lambda."""
    x, y, net = line()
    options = {"likelihood": Homoscedastic(NOISE), "prior": 4.0, "members": 1}
    trained = stochens.fit(
        net,
        (x, y),
        method="regular",
        batch_size=None,
        epochs=300,
        lr=0.1,
        kl_weight=weight,
        progress=False,
        **options,
    )
    mode = (x * y).sum() / ((x * x).sum() + weight * 4.0 * NOISE**2)
    # Adam's steps shrink with the cosine schedule; after 300 they are far below 1e-4
    assert float(trained.params["weight"]) == pytest.approx(float(mode), abs=1e-4)


def test_the_old_name_is_refused_with_the_new_one():
    x, y, net = line()
    with pytest.raises(
        InputError, match=r"fit has no temperature .* is called kl_weight now, kl_w"
    ):
        stochens.fit(net, (x, y), temperature=0.5)  # type: ignore[call-arg]
    with pytest.raises(
        InputError, match=r"multiswa has no temperature any more: it is called kl_weight"
    ):
        stochens.multiswa(net, (x, y), likelihood="gaussian", temperature=0.5)
    kinds: tuple[Any, ...] = (StochasticEnsembleClassifier, StochasticEnsembleRegressor)
    for kind in kinds:
        with pytest.raises(InputError, match=f"{kind.__name__} has no temperature .*kl_weight=0.5"):
            kind(temperature=0.5)
        names = inspect.signature(kind).parameters
        assert "kl_weight" in names  # clone and search read them
        assert "temperature" not in names
        assert kind(kl_weight=0.5).get_params()["kl_weight"] == 0.5
