"""What would train, and badly, is told before it is trained."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens import MLP, Heteroscedastic, InputError
from stochens.data import source
from stochens.prior import Centred
from stochens.training import advice, schedules

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def told(net=None, data=(X, Y), **options) -> list[str]:
    options = {"members": 2, "epochs": 1, "lr": 1.0} | options
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stochens.fit(MLP(2, 4, 2) if net is None else net, data, **gather(**options))
    of_ours = [w for w in said if issubclass(w.category, UserWarning)]
    assert all(w.filename == __file__ for w in of_ours)  # the user's line
    return [str(w.message) for w in said]


def test_nothing_is_said_of_what_is_well():
    assert told() == []


@pytest.mark.parametrize(
    ("options", "few"),
    [
        ({"lr": 1e-3}, True),
        ({"lr": 1e-3, "epochs": 2000}, False),  # cosine: 0.5 of them count
        ({"lr": 1e-3, "epochs": 600, "schedule": "constant"}, False),
        ({"lr": 0.1, "optimizer": "sgd"}, True),
        ({"lr": 0.1, "optimizer": "sgd", "epochs": 200}, False),
    ],
)
def test_few_steps(options, few):
    said = told(**options)
    assert ("steps of training are few" in " ".join(said)) == few


@pytest.mark.parametrize("precision", [3.0, 30.0])
def test_a_prior_of_each_parameter_is_weighed_as_one_of_all(precision):
    """Of 50 rows and 40 columns, all of which are followed; what is left depends on the prior."""
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    params = {"weight": torch.zeros(1, 2, 40), "bias": torch.zeros(1, 2)}
    trained, data, net = SimpleNamespace(params=params), source((x, x[:, :1])), nn.Linear(40, 2)

    def said_of(of_all, prior=None):
        settings = SimpleNamespace(kl_weight=1.0, prior_precision=of_all)
        return advice._followed(settings, Heteroscedastic(), trained, data, net, prior)

    each = Centred(dict.fromkeys(params, precision), {})
    said = said_of(precision), said_of(99.0, each), said_of(2 * precision)
    assert said[0] == said[1] != said[2]
    assert "by a factor of about" in str(said[0])


def test_members_that_go_on_need_few():
    first = stochens.fit(MLP(2, 4, 2), (X, Y), members=2, epochs=1, lr=1.0)
    assert told(start=first.params, lr=1e-3) == []


def test_targets_far_from_0():
    y = X[:, :1].sin()
    net = MLP(2, 4, 1)
    assert told(net, (X, y), likelihood="gaussian") == []
    (said,) = told(net, (X, 200 * y + 1000), likelihood="gaussian")
    assert "targets have mean 998" in said
    assert "mean 0 and standard deviation 1" in said


@pytest.mark.parametrize("far", [0, 1])
def test_of_several_targets_the_farthest_is_named(far):
    """Whichever column it is; the others are near 0."""
    y = X.sin()
    y[:, far] = 3 * y[:, far] + 50
    (said,) = told(MLP(2, 4, 2), (X, y), likelihood="gaussian")
    mean, sd = float(y[:, far].double().mean()), float(y[:, far].double().std())
    assert f"targets have mean {mean:.3g} and standard deviation {sd:.3g}" in said


@pytest.mark.parametrize("factor", [1.0, schedules.NOISE_FACTOR])
def test_a_noise_that_did_not_come_down(factor, monkeypatch):
    """It is to be 0.1. At a weight's rate 200 steps of at most 0.01, on average half of that, bring
    the logarithm of its square from 0 to -1, which is a noise of 0.6."""
    monkeypatch.setattr(schedules, "NOISE_FACTOR", factor)
    y = X[:, :1].sin() + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(1))
    options = {"method": "regular", "members": 3, "epochs": 200, "lr": 0.01}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = stochens.fit(MLP(2, 20, 1), (X, y), likelihood="gaussian", **gather(**options))
    noise = posterior.params["log_variance"].exp().sqrt().median()
    left = posterior.predict(X).draw_means.sub(y).square().mean((1, 2)).sqrt().median()
    if factor > 1:  # it came down too far: 60 rows are few for 81 parameters, which is said as well
        assert not [w for w in said if "is still" in str(w.message)]
        assert 0.8 < noise / left < 1.25  # the last steps are not the best of all, and the prior
    else:
        assert f"noise is still about {noise / left:.0f}" in str(said[0].message)
        assert said[0].filename == __file__


def test_how_small_a_noise_the_prior_lets_come():
    """At the minimum  sum_d error_d^2 / noise_d^2 = sum_d (1 + 2 w log noise_d^2), w = lambda / N:
    here 1 - 2 * 5 / 100 * 4 = 0.6. Half of that is the least that is not spoken of."""
    logs = torch.full((3, 1), -4.0)
    options = SimpleNamespace(kl_weight=1.0, prior_precision=5.0)

    def said(left: float) -> str | None:
        nll = torch.full((advice.EPOCHS, 3), 0.5 * (left - 4.0 + math.log(2 * math.pi)))
        trained = SimpleNamespace(params={"log_variance": logs}, history=SimpleNamespace(nll=nll))
        return advice._not_arrived(options, 7, stochens.Homoscedastic(), trained, 100.0)

    assert said(0.32) is None
    assert f"still about {(0.6 / 0.28) ** 0.5:.1f} times" in str(said(0.28))
    assert "still about 100.0 times" in str(said(-0.1))  # by rounding, where no error is left


def test_a_softmax_at_the_end():
    (said,) = told(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)), method="regular")
    assert "seems to end in a softmax" in said


def test_trials_of_methods_are_short_and_say_nothing_of_it():
    """A quarter of 1200 steps at 1e-3, on average half of that, would be too few for a training."""
    method = stochens.Auto(candidates=["regular"], members=2)
    assert told(method=method, epochs=1200, lr=1e-3) == []
    assert "300 steps of training are few" in told(method="regular", epochs=300, lr=1e-3)[0]


def test_a_function_must_build_a_network_each_time():
    net = MLP(2, 4, 2)
    with pytest.raises(InputError, match="returns the same module each time"):
        stochens.fit(lambda: net, (X, Y), members=2, epochs=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": stochens.Dropout}, r"Dropout\(\), with the parentheses"),
        ({"method": 3}, "unknown method 3"),
        ({"members": 3.0}, "a whole number or a list of them, got 3.0"),
        ({"optimizer": 3}, "unknown optimizer 3"),
        ({"device": "gpu"}, "device must be 'cpu' or 'cuda', got 'gpu'"),
    ],
)
def test_words_of_another_kind(options, said):
    with pytest.raises(InputError, match=said):
        stochens.fit(MLP(2, 4, 2), (X, Y), **gather(**{"members": 2, "epochs": 1} | options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there():
    with pytest.raises(InputError, match="torch finds no GPU here; use 'cpu'"):
        stochens.fit(MLP(2, 4, 2), (X, Y), device="cuda")


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (Y[:, None], r"use y.squeeze\(1\)"),
        (nn.functional.one_hot(Y), r"use y.argmax\(1\)"),
        (nn.functional.one_hot(Y).float(), r"use y.argmax\(1\)"),
        (Y.float(), r"use y.long\(\)"),
    ],
)
def test_labels_of_another_shape(y, said):
    with pytest.raises(InputError, match=said):
        stochens.fit(MLP(2, 4, 2), (X, y))


def test_a_frozen_layer_is_left_to_vmap():
    net = MLP(2, 4, 2)
    net[0].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where nothing has noise, frozen layers need not be told
        posterior = stochens.fit(net, (X, Y), method="regular", members=2, epochs=1, lr=1.0)
    assert "0.weight" not in posterior.params
    assert posterior.predict(X).probs.shape == (2, 60, 2)


def test_members_of_longer_trainings_join_without_their_history():
    parts = [
        stochens.fit(MLP(2, 4, 2), (X, Y), members=[k], epochs=k + 1, lr=1.0) for k in range(2)
    ]
    both = stochens.join(parts)
    assert len(both) == 2
    assert both.history is None


def test_targets_of_an_own_likelihood_may_be_one_number_each():
    """Float y [N] as its `check_targets` leaves them: was an IndexError."""

    class Plain(stochens.Homoscedastic):
        def check_targets(self, y):
            return y

        def check_outputs(self, outputs, y):
            assert outputs.shape[1:] == (1,)

        def nll(self, outputs, y, weights=None):
            return super().nll(outputs, y.unsqueeze(-1), weights)

    net = MLP(2, 4, 1)
    assert told(net, (X, X[:, 0]), likelihood=Plain(1.0)) == []
    (said,) = told(net, (X, X[:, 0] + 50), likelihood=Plain(1.0))
    assert "targets have mean 50 and standard deviation" in said
