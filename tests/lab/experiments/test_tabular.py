"""Regression on tables, small: what the folder holds, and how sets are read and split."""

import math

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import norm
from tests.tolerance import close
from torch.distributions import Normal

from stochens import InputError
from stochens.likelihoods import GaussianPredictive
from stochens_lab.data.tabular import Part, embed_numbers, load_table
from stochens_lab.experiments import tabular, tabular_rows
from stochens_lab.experiments.tabular_rows import PACKAGES, ROWS, rows_that_run, too_large
from stochens_lab.report.finish import finish_run
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.tabular import UCI, Panel, _format_panel

SMALL = {"members": 2, "draws": 4, "warmup": 4, "epochs": 2, "hidden": (3,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """50 rows under the names of some sets."""
    path = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(3, 2, (50, 2)), np.full((50, 1), 0.1)], 1)
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
    x, y = table.learn
    assert x.shape == (rows, 3)
    assert y.shape == (rows, 1)
    assert len(table.test.x) == len(table.test.y)
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(1))
    assert float(x[:, 2].abs().max()) < 1e-5  # a column that never changes


def test_splits_of_uci_are_the_published_ones(folder):
    """One permutation of the same stream after the other."""
    random, y = np.random.RandomState(1), np.load(folder / "uci-yacht.npz")["y"]
    for split in range(2):
        order = random.choice(range(50), 50, replace=False)
        table = load_table(folder, "yacht", split)
        own = y[order[:45]]
        expected = (y[order[45:]] - own.mean()) / own.std()
        np.testing.assert_allclose(table.test.y[:, 0].numpy(), expected, rtol=1e-5)


def test_rows_to_choose_by_are_of_those_to_learn_from(folder):
    """Held and rest are together what there is to learn from, and nothing of the test rows."""
    for split in range(2):
        table = load_table(folder, "yacht", split)
        both = torch.cat([table.rest.y, table.held.y]).flatten()
        assert len(table.held.y) == 7  # 15 % of 45
        assert torch.equal(both.sort().values, table.learn.y.flatten().sort().values)
        assert not set(both.tolist()) & set(table.test.y.flatten().tolist())
    own = load_table(folder, "house")
    assert own.rest is own.learn
    assert len(own.held.y) == 10  # the file's


def test_equal_numbers_of_tabm_lie_in_the_middle_of_their_ranks(folder, tmp_path):
    """A third of a column is 0: where others of as many ranks would be on average, not at the
    end."""
    arrays = dict(np.load(folder / "tabm-house.npz"))
    rows = len(arrays["x_train"])
    column = np.sort(np.random.RandomState(0).rand(rows))
    column[: rows // 3] = 0.0
    for scale in (1e-6, 1.0, 1e6):
        x = {"x_train": arrays["x_train"].astype(np.float64).copy()}
        x["x_train"][:, 0] = scale * column
        np.savez(tmp_path / "tabm-house.npz", **arrays | x)
        found = load_table(tmp_path, "house").learn.x[:, 0]
        ranks = ((np.arange(rows) + 0.5) / rows)[rows // 3 :]
        zeros = np.full(rows // 3, norm.ppf(rows // 3 / 2 / rows))
        normal = np.concatenate([zeros, norm.ppf(ranks)])
        expected = (normal - normal.mean()) / normal.std()
        np.testing.assert_allclose(found, expected, **close(torch.float32, terms=10))


def test_quantiles_of_tabm_are_those_of_the_training_rows(folder, tmp_path):
    """Whatever the test rows are, training rows stay the same."""
    arrays = dict(np.load(folder / "tabm-house.npz"))
    np.savez(tmp_path / "tabm-house.npz", **arrays | {"x_test": 100 * arrays["x_test"]})
    a, b = (load_table(path, "house") for path in (folder, tmp_path))
    assert torch.equal(a.learn.x, b.learn.x)
    assert torch.equal(a.held.x, b.held.x)
    order = torch.from_numpy(arrays["x_train"][:, 0]).argsort()
    assert bool((a.learn.x[order, 0].diff() >= 0).all())


def test_embedded_numbers_have_bins_of_the_training_rows(folder):
    table = load_table(folder, "yacht")
    found = embed_numbers(table, 4)
    assert found.learn.x.shape == (45, 4 + 4 + 1)  # a column that never changes has one bin
    assert float(found.learn.x.min()) >= 0  # quantiles of these rows: none is beyond the edges
    assert float(found.learn.x.max()) <= 1
    assert torch.equal(found.test.y, table.test.y)


def test_what_is_not_there_is_named(folder, monkeypatch):
    with pytest.raises(InputError, match=r"bde-bikesharing\.npz"):
        load_table(folder, "bike")
    with pytest.raises(InputError, match="did you mean 'airfoil'"):
        load_table(folder, "airfoul")
    with pytest.raises(InputError, match="20 splits, counted from 0; got 20"):
        load_table(folder, "yacht", 20)
    with pytest.raises(InputError, match="--data"):
        tabular.configure()
    with pytest.raises(InputError, match="splits must be at least 1"):
        tabular.run(tabular.configure(folder, sets=("yacht",), splits=0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install lightgbm"):
        rows_that_run(("lightgbm",))
    assert not {"bde", "lightgbm"} & set(rows_that_run(()))


@pytest.mark.filterwarnings("ignore")  # runs this short are not to be trusted
def test_every_row_has_its_measures_and_a_run_goes_on(folder, tmp_path):
    out = tmp_path / "run"
    rows = {"sets": ("yacht", "airfoil"), "rows": ("regular", "mclmc")}
    config = tabular.configure(folder, out=out, splits=2, seeds=1, **rows, **SMALL)
    run = SavedRun(tabular.run(config))
    assert run.about["complete"]
    assert set(run.metrics["airfoil"]) == {"regular", "mclmc"}
    assert set(run.metrics["airfoil"]["mclmc"]["test"]) == set(tabular.MEASURES)
    found = run.about["found"]["yacht"]["regular"]
    assert [(one["split"], one["seed"]) for one in found] == [(0, 0), (1, 1)]
    assert found[0]["chosen"]["lr"] in tabular_rows.TabularConfig.rates
    # other rows, and more splits: what was done stays
    again = tabular.reconfigure(out, sets=("yacht",), rows=("regular", "natural"), splits=3)
    after = SavedRun(tabular.run(again, resume=True)).about["found"]
    assert after["yacht"]["regular"][:2] == found
    assert len(after["yacht"]["natural"]) == 3
    assert after["airfoil"] == run.about["found"]["airfoil"]
    said: list[str] = []
    tabular.run(again, resume=True, note=said.append)
    assert "complete" in said[0]
    console = Console(record=True, width=100)
    list(finish_run(out, console))
    assert "mclmc" in console.export_text()
    tables = (out / "tables.md").read_text()
    assert "(3 of 20)" in tables  # splits of yacht
    assert "(1 of 5)" in tables  # seeds of airfoil


@pytest.mark.filterwarnings("ignore")  # runs this short are not to be trusted
def test_mclmc_begins_at_trained_members(folder, tmp_path):
    rows = {"sets": ("airfoil",), "rows": ("mclmc",), "seeds": 1}
    config = tabular.configure(folder, out=tmp_path / "run", start="trained", **rows, **SMALL)
    (found,) = SavedRun(tabular.run(config)).about["found"]["airfoil"]["mclmc"]
    assert found["chosen"]["trained"]["lr"] in tabular_rows.TabularConfig.rates
    with pytest.raises(InputError, match="did you mean 'trained'"):
        tabular.run(tabular.configure(folder, start="traned", **rows))


@pytest.mark.filterwarnings("ignore")
def test_gaussian_has_one_noise_for_all_rows(folder):
    config = tabular.configure(folder, likelihood="gaussian", rates=(0.001,), **SMALL)
    found = ROWS["regular"](load_table(folder, "house"), config, 0)
    assert found.chosen["lr"] == 0.001
    assert found.predicted.aleatoric.std() < 1e-6 * found.predicted.aleatoric.mean()


def test_what_is_no_likelihood_and_no_rate_is_refused(folder):
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        tabular.run(tabular.configure(folder, sets=("house",), likelihood="gausian"))
    with pytest.raises(InputError, match=r"rates\[1\] must be a positive number"):
        tabular.run(tabular.configure(folder, sets=("house",), rates=(0.01, -1.0)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [row for row in ROWS if row not in PACKAGES])
def test_each_row_predicts_at_the_test_rows(folder, row):
    table = load_table(folder, "house")
    found = ROWS[row](table, tabular.configure(folder, **SMALL), 0)
    assert found.predicted.mean.shape == table.test.y.shape
    assert bool((found.predicted.variance > 0).all())


def test_lightgbm_has_the_noise_of_held_rows(folder):
    """N(mean, s^2) with one s, that of its errors on the rows to choose by."""
    pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
    found = ROWS["lightgbm"](load_table(folder, "yacht"), tabular.configure(folder), 0)
    assert float(found.predicted.variance.std()) == 0
    expected = pytest.approx(found.chosen["noise"] ** 2, rel=1e-5)
    assert float(found.predicted.variance[0]) == expected


def test_choices_do_not_depend_on_test_rows(folder):
    """The rate and the epochs that are taken are the same, whatever there is to predict."""
    table = load_table(folder, "yacht")
    other = table._replace(test=Part(table.test.x + 1, -table.test.y))
    config = tabular.configure(folder, **SMALL)
    a, b = (ROWS["regular"](t, config, 0).chosen for t in (table, other))
    assert a == b


def test_nuts_is_left_out_where_it_would_take_too_long(folder):
    table, config = load_table(folder, "yacht"), tabular.configure(folder, **SMALL)
    assert not too_large("nuts", table, config)
    many = table._replace(learn=Part(torch.zeros(10**6, 3), torch.zeros(10**6, 1)))
    assert too_large("nuts", many, config)
    assert not too_large("mclmc", many, config)


def test_measures_are_those_of_the_mixture_and_of_one_gaussian():
    """In float64, by torch's distributions, in the units of the file."""
    y, unit = torch.tensor([[0.3], [-1.0]]), 3.0
    means = torch.tensor([[[0.1], [0.2]], [[0.5], [-0.7]]])  # [S, B, D]
    variances = torch.tensor([[[0.5], [2.0]], [[0.1], [1.0]]])
    found = tabular.measure(GaussianPredictive.of(means, variances), y, unit)
    scaled = Normal(unit * means.double(), unit * variances.double().sqrt())
    mixture = scaled.log_prob(unit * y.double()).logsumexp(0) - math.log(2)
    assert found["mixture NLL"] == pytest.approx(-float(mixture.mean()), rel=1e-6)
    mean = means.mean(0)
    variance = variances.mean(0) + means.var(0, correction=0)
    one = Normal(unit * mean, unit * variance.sqrt()).log_prob(unit * y).mean()
    assert found["NLL"] == pytest.approx(-float(one), rel=1e-6)
    rmse = unit * float((y - mean).square().mean().sqrt())
    assert found["RMSE"] == pytest.approx(rmse, rel=1e-6)


def test_a_table_says_how_many_splits_it_has():
    """A few of them are no claim; a value that was infinite is no number."""
    found = {"yacht": {"a": [{"NLL": 0.1}, {"NLL": 0.2}], "b": [{"NLL": None}]}}
    found |= {"wine": {"lightgbm": [{"NLL": 0.1}]}}  # which is not ours
    lines = "\n".join(_format_panel(Panel("x", "NLL", UCI), found))
    assert "| yacht | 0.16 |  | 0.1500 ± 0.0500 (2 of 20) | inf (1 of 20) |" in lines
    assert "1 of 9 sets: yacht by a (2 of 20)." in lines
    whole = {"yacht": {"a": 20 * [{"NLL": 0.1}]}}
    assert "**0.1000 ± 0.0000** (20 of 20)" in "".join(_format_panel(Panel("x", "NLL", UCI), whole))
