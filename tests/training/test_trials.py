"""What trials of methods are made of, when nothing else is said."""

import pytest
import torch

import stochens
from stochens import MLP, Auto
from stochens.training import auto
from stochens.training.ensemble import train_ensemble
from stochens.training.outcomes import Outcome
from stochens.training.request import FitRequest


@pytest.fixture
def data():
    return stochens.toy_set("a", n=50)


@pytest.mark.parametrize(("epochs", "of_a_trial"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_trial_has_a_quarter_of_the_epochs_and_four_fifths_of_the_data(
    data, epochs, of_a_trial, monkeypatch
):
    """A quarter, rounded up, as the documentation of Auto says; a fifth of the data is held out."""
    seen = []

    def train(request):
        seen.append((request.epochs, request.members, len(request.data.data[0])))
        return train_ensemble(request)

    monkeypatch.setattr(auto, "train_ensemble", train)
    request = FitRequest(net=MLP(2, 4, 2), data=data, epochs=epochs)
    auto.run_trials(request, Auto(candidates=["regular"], members=2))
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


def test_a_row_is_made_of_its_outcome():
    """Means over members, the standard error of the KL loss sd / sqrt(M), that of a weighted mean
    over examples, and the gap to the best example by example."""
    log_p = torch.tensor([[-1.0, -2.0, -4.0], [-1.5, -1.0, -3.0]], dtype=torch.float64)
    loss = torch.tensor([3.0, 5.0, 10.0], dtype=torch.float64)
    found = {
        name: Outcome(
            log_p=log_p[k],
            loss=loss + k,
            loss_sd=torch.tensor([0.5, 1.5]),
            stochasticity=torch.tensor(-2.0 * k),
            ranked=torch.tensor(k == 0),
        )
        for k, name in enumerate("ab")
    }
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    a, b = auto._rows(found, weights)
    assert (a.label, a.kl, a.kl_fluctuation, a.stochasticity) == ("a", 6.0, 1.0, 0.0)
    assert a.kl_error == pytest.approx((26 / 2 / 3) ** 0.5, rel=1e-12)  # 9 + 1 + 16 over 2
    assert (b.kl, b.stochasticity) == (None, -2.0)
    assert (a.held_out, b.held_out) == (-2.0, -1.75)
    assert (a.gap, b.gap) == (0.25, 0.0)  # b is the best: -0.5, 1 and 1, weighted
    rows = (a, b._replace(kl=7.0), b._replace(kl=None))
    assert auto.choice(rows, "kl") == ("a", "a: the lowest KL loss, 6.0 nats, 1 others")


def test_the_table_is_shown_where_progress_is(data, capsys):
    options = {"method": Auto(candidates=["regular"], members=2), "members": 2, "epochs": 1}
    stochens.fit(MLP(2, 4, 2), data, progress=True, **options)
    assert "held-out" in capsys.readouterr().err
    stochens.fit(MLP(2, 4, 2), data, progress=False, **options)
    assert "held-out" not in capsys.readouterr().err
