"""Regression on tables, small: what the folder holds, and how sets are read and split."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from stochens import InputError
from stochens_lab.data.tabular import load_table
from stochens_lab.experiments import tabular
from stochens_lab.report.finish import finish_run
from stochens_lab.report.run_folder import SavedRun

SMALL = {"members": 2, "draws": 4, "warmup": 4, "epochs": 2, "hidden": (3,), "seeds": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """50 rows under the names of two sets."""
    path = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(3, 2, (50, 2)), np.ones((50, 1))], 1)
    y = 10 + 5 * x[:, 0]
    for name in ("bde-airfoil", "uci-yacht"):
        np.savez(path / f"{name}.npz", x=x, y=y)
    parts = {"train": slice(0, 30), "val": slice(30, 40), "test": slice(40, 50)}
    both = {f"x_{name}": x[rows] for name, rows in parts.items()}
    np.savez(path / "tabm-house.npz", **both, **{f"y_{n}": y[rows] for n, rows in parts.items()})
    return path


@pytest.mark.parametrize(("name", "rows"), [("airfoil", 40), ("yacht", 45), ("house", 30)])
def test_a_set_is_split_by_its_protocol_and_standardised(folder, name, rows):
    table = load_table(folder, name)
    assert table.x.shape == (rows, 3)
    assert table.y.shape == (rows, 1)
    assert len(table.x_test) == len(table.y_test)
    torch.testing.assert_close(table.x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(table.y.std(0, correction=0), torch.ones(1))
    assert bool((table.x[:, 2] == 0).all())  # a column that never changes


def test_splits_of_uci_are_the_published_ones(folder):
    """One permutation of the same stream after the other."""
    random, y = np.random.RandomState(1), np.load(folder / "uci-yacht.npz")["y"]
    for split in range(2):
        order = random.choice(range(50), 50, replace=False)
        table = load_table(folder, "yacht", split)
        own = y[order[:45]]
        expected = (y[order[45:]] - own.mean()) / own.std()
        np.testing.assert_allclose(table.y_test[:, 0].numpy(), expected, rtol=1e-5)


def test_what_is_not_there_is_named(folder):
    with pytest.raises(InputError, match=r"bde-bikesharing\.npz"):
        load_table(folder, "bike")
    with pytest.raises(InputError, match="did you mean 'airfoil'"):
        load_table(folder, "airfoul")
    with pytest.raises(InputError, match="--data"):
        tabular.configure()


@pytest.mark.filterwarnings("ignore")  # runs this short are not to be trusted
def test_every_row_has_its_measures_and_a_run_goes_on(folder, tmp_path):
    out = tmp_path / "run"
    config = tabular.configure(folder, out=out, rows=("regular", "mclmc"), **SMALL)
    run = SavedRun(tabular.run(config))
    assert run.about["complete"]
    found = run.metrics["airfoil"]
    assert set(found) == {"regular", "mclmc"}
    assert set(found["mclmc"]["test"]) == {"RMSE", "NLL", "seconds"}
    before = json.dumps(run.about["found"]["airfoil"]["mclmc"])
    again = tabular.reconfigure(out, rows=("natural",))
    run = SavedRun(tabular.run(again, resume=True))
    assert set(run.metrics["airfoil"]) == {"regular", "mclmc", "natural"}
    assert json.dumps(run.about["found"]["airfoil"]["mclmc"]) == before
    console = Console(record=True, width=100)
    list(finish_run(out, console))
    assert "mclmc" in console.export_text()


def test_the_nll_is_that_of_one_gaussian():
    y = torch.tensor([[0.3], [-1.0]])
    mean, variance = torch.tensor([[0.1], [0.2]]), torch.tensor([[0.5], [2.0]])
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).mean()
    found = tabular.measure(tabular.Moments(mean, variance), y)
    assert found["NLL"] == pytest.approx(float(expected), rel=1e-6)
    assert found["RMSE"] == pytest.approx(float((y - mean).square().mean().sqrt()), rel=1e-6)
