"""What trials of methods are made of, when nothing else is said."""

import pytest
import torch

import stochens
from stochens import MLP, Auto
from stochens.training import auto


@pytest.fixture
def data():
    return stochens.toy_set("a", n=50)


@pytest.mark.parametrize(("epochs", "of_a_trial"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_trial_has_a_quarter_of_the_epochs_and_four_fifths_of_the_data(data, epochs, of_a_trial):
    """A quarter, rounded up, as the documentation of Auto says; a fifth of the data is held out."""
    seen = []

    def fit(net, data, **options):
        seen.append((options["epochs"], options["members"], len(data[0])))
        return stochens.fit(net, data, **options)

    options = {"epochs": epochs, "sample_weight": None, "seed": 0, "checkpoint": None}
    options["likelihood"] = "categorical"
    auto.run(fit, MLP(2, 4, 2), data, Auto(candidates=["regular"], members=2), options)
    assert seen == [(of_a_trial, 2, 40)]


def test_who_is_tried():
    """No noise, each rate of either dropout, and np-dropout, which has no rate."""
    rates = ("0.02", "0.05", "0.1", "0.2")
    assert [auto.label(method) for method in Auto().candidates] == [
        "regular",
        *(f"dropout {p}" for p in rates),
        *(f"dropconnect {p}" for p in rates),
        "np-dropout",
    ]
    assert (Auto().members, Auto().draws, Auto().held_out) == (8, 8, 0.2)


def test_two_examples_must_be_held_out_and_one_left(data):
    x, y = (t[:3] for t in data)
    options = {"method": Auto(candidates=["regular"], members=2, held_out=0.5), "epochs": 1}
    with pytest.raises(stochens.InputError, match="hold 0 of 1 examples out"):
        stochens.fit(MLP(2, 4, 2), (x[:1], y[:1]), **options)
    whole = Auto(candidates=["regular"], members=2, held_out=0.9)
    with pytest.raises(stochens.InputError, match="hold 3 of 3 examples out"):
        stochens.fit(MLP(2, 4, 2), (x, y), method=whole, epochs=1)
    posterior = stochens.fit(MLP(2, 4, 2), (x, y), members=2, **options)  # 2 out, 1 left
    assert torch.isfinite(torch.tensor(posterior.trials.rows[0].held_out))
