"""Targets that are missing, from `fit` to `compare`."""

import math
import warnings

import pytest
import torch
from torch import nn

import stochens
from stochens import InputError
from stochens.likelihoods import LIKELIHOODS


@pytest.mark.parametrize(
    "like", [stochens.Homoscedastic(missing="mask"), stochens.Heteroscedastic(missing="mask")]
)
def test_two_targets_of_which_many_are_missing(like):
    """Where the second is missing, the first is learned as if it were alone."""
    x = torch.linspace(-1, 1, 80).unsqueeze(1)
    y = torch.cat([x, -2 * x], 1) + 0.05 * torch.randn(
        80, 2, generator=torch.Generator().manual_seed(0)
    )
    holes = y.clone()
    holes[::2, 1] = math.nan
    options = {
        "method": "regular",
        "members": 2,
        "epochs": 300,
        "lr": 0.05,
        "batch_size": None,
        "progress": False,
    }
    outputs = 2 * (1 + (like.name == "heteroscedastic"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and no advice is given of what the loss cannot tell
        posterior = stochens.fit(
            nn.Linear(1, outputs), (x, holes), likelihood=like, device="cpu", **options
        )
    p = posterior.predict(x)
    assert (p.mean - torch.cat([x, -2 * x], 1)).abs().max() < 0.1
    rows = stochens.compare({"p": p}, holes, resamples=20, show=False).rows["p"]
    seen = ~holes.isnan()
    error = (p.mean - holes)[seen].square().mean().sqrt()
    assert rows["RMSE"].value == pytest.approx(float(error), rel=1e-5)
    low, high = p.interval(0.95)
    inside = ((low <= holes) & (holes <= high))[seen].double().mean()
    assert rows["95 % coverage"].value == pytest.approx(float(inside))
    crps = p.crps(holes)
    assert torch.equal(crps.isnan(), ~seen)
    assert rows["CRPS"].value == pytest.approx(float(crps[seen].mean()))
    with pytest.raises(InputError, match="missing='mask' leaves NaN out"):
        stochens.fit(nn.Linear(1, outputs), (x, holes), likelihood=like.name, **options)


def test_labels_that_nobody_gave():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = (x > 0).float()
    y[::3, 1] = math.nan
    like = stochens.likelihoods.Multilabel(missing="mask")
    options = {"method": "regular", "members": 2, "epochs": 60, "lr": 0.1, "progress": False}
    posterior = stochens.fit(nn.Linear(3, 3), (x, y), likelihood=like, device="cpu", **options)
    p = posterior.predict(x)
    rows = stochens.compare({"p": p}, y, resamples=20, show=False).rows["p"]
    there = ~y.isnan()
    right = (p.labels == y)[there].double().mean()
    assert rows["accuracy"].value == pytest.approx(float(right))
    assert rows["accuracy"].value > 0.95
    metrics = pytest.importorskip("sklearn.metrics")
    whole = there.all(1)  # scikit-learn knows no missing labels
    some = stochens.likelihoods.MultilabelPredictive.of(p.logits[:, whole])
    rows = stochens.compare({"p": some}, y[whole], resamples=5, show=False).rows["p"]
    truth, guess = y[whole].numpy(), some.labels.numpy()
    assert rows["macro F1"].value == pytest.approx(metrics.f1_score(truth, guess, average="macro"))
    assert rows["micro F1"].value == pytest.approx(metrics.f1_score(truth, guess, average="micro"))
    assert rows["exact match"].value == pytest.approx(metrics.accuracy_score(truth, guess))


def test_kernels_take_no_likelihood_whose_options_they_do_not_know():
    """Was: the C++ kernel would have read the label -100 as an address."""
    plain = [stochens.Categorical(), stochens.Homoscedastic(0.1), stochens.Heteroscedastic()]
    assert all(like.kernel() is not None for like in plain)
    for like in (
        stochens.Categorical(ignore_index=-100),
        stochens.Categorical(class_weights=[1.0, 2.0]),
        stochens.Homoscedastic(0.1, missing="mask"),
        stochens.Heteroscedastic(missing="mask"),
        stochens.Homoscedastic(),
        *(kind() for name, kind in LIKELIHOODS.items() if name not in KERNELS),
    ):
        assert like.kernel() is None, like


KERNELS = ("categorical", "gaussian", "heteroscedastic")


def test_a_small_mlp_learns_from_the_labels_that_there_are():
    """The network is one that a kernel runs; half of the labels are none."""
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    holes = y.clone()
    holes[::2] = -100
    like = stochens.Categorical(ignore_index=-100, class_weights=[1.0, 3.0])
    posterior = stochens.fit(
        stochens.MLP(2, 8, 2),
        (x, holes),
        likelihood=like,
        method="regular",
        members=2,
        epochs=60,
        lr=0.05,
        device="cpu",
        progress=False,
    )
    p = posterior.predict(x)
    assert (p.labels == y).double().mean() > 0.9
    assert p.log_prob(holes)[::2].abs().max() == 0
    rows = stochens.compare({"p": p}, holes, resamples=5, show=False).rows["p"]
    right = (p.labels == y)[1::2].double().mean()
    assert rows["accuracy"].value == pytest.approx(float(right))
