"""Every family of likelihoods from a file to its measures, as Python has them, and its errors."""

import csv
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.long import long_but
from torch import Tensor

import stochens
from stochens import InputError
from stochens.likelihoods import LIKELIHOODS
from stochens_lab.data.columns import parse_yes_or_no
from stochens_lab.workflow.likelihood import make_named
from stochens_lab.workflow.prediction import list_columns

ROWS, NEW = 40, 12
SMALL = ("--members", 2, "--epochs", 2, "--batch-size", 16, "--seed", 3)
OPTIONS = {"members": 2, "epochs": 2, "batch_size": 16, "seed": 3, "progress": False}
NETS = """
from torch import nn


def of(outputs):
    return lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs))


n1, n2, n3, n4, n6, n18 = of(1), of(2), of(3), of(4), of(6), of(18)
"""


class Family(NamedTuple):
    outputs: int
    targets: tuple[str, ...]
    column: str  # one that `predict` writes
    stated: tuple[str, int]  # which it is of the prediction's own
    measure: str
    options: tuple[str, ...] = ()


SHARES = ("x_share", "y_share", "z_share")
FAMILIES = {
    "categorical": Family(3, ("kind",), "prob_oak", ("prob", 2), "Brier"),
    "binary": Family(1, ("sick",), "low_yes", ("low", 1), "ECE"),
    "multilabel": Family(2, ("wet", "cold"), "prob_cold", ("prob", 1), "micro F1"),
    "ordinal": Family(3, ("grade",), "prob_4", ("prob", 3), "RPS"),
    "soft-labels": Family(3, SHARES, "prob_y_share", ("prob", 1), "total variation"),
    "gaussian": Family(2, ("u", "v"), "low_v", ("low", 1), "CRPS"),
    "heteroscedastic": Family(2, ("u",), "aleatoric_std", ("aleatoric_std", 0), "95 % coverage"),
    "student-t": Family(4, ("u", "v"), "high_u", ("high", 0), "RMSE", ("df=5",)),
    "laplace": Family(2, ("v",), "low", ("low", 0), "CRPS"),
    "mixture": Family(6, ("u",), "std", ("std", 0), "NLL", ("components=2",)),
    "quantiles": Family(6, ("u", "v"), "mean_v", ("mean", 1), "pinball", ("levels=0.1,0.5,0.9",)),
    "poisson": Family(2, ("count", "grade"), "high_grade", ("high", 1), "CRPS"),
    "negative-binomial": Family(2, ("count",), "low", ("low", 0), "95 % width"),
}
KEPT = ("binary", "multilabel", "soft-labels", "mixture", "poisson")


def columns(rows: int, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, rows))
    shares = np.round(rng.dirichlet([1, 1, 1], rows), 6)
    shares[:, 2] = 1 - shares[:, 0] - shares[:, 1]
    return {
        "a": a.tolist(),
        "b": b.tolist(),
        "kind": rng.permutation([*"xyz"] * rows)[:rows].tolist(),
        "sick": [("no", "yes")[int(k)] for k in a + rng.normal(size=rows) > 0],
        "wet": [int(k) for k in a > 0],
        "cold": [("false", "True")[int(k)] for k in b > 0],
        "grade": rng.permutation([1, 2, 3, 4] * rows)[:rows].tolist(),
        **{f"{n}_share": shares[:, k].tolist() for k, n in enumerate("xyz")},
        "u": (200 + 30 * a + rng.normal(size=rows)).tolist(),
        "v": (b * 1e-3).tolist(),
        "count": rng.poisson(np.exp(1 + a / 2)).tolist(),
    }


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """A folder with train.csv, new.csv and networks with so many outputs."""
    here = tmp_path_factory.mktemp("days")
    (here / "days_nets.py").write_text(NETS)
    for name, rows, seed in (("train", ROWS, 0), ("new", NEW, 1)):
        found = columns(rows, seed)
        found["kind"] = [{"x": "ash", "y": "elm", "z": "oak"}[k] for k in found["kind"]]
        with (here / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(found)
            writer.writerows(zip(*found.values(), strict=True))
    return here


@pytest.fixture
def here(days, monkeypatch):
    monkeypatch.chdir(days)
    return days


def truth(family: str, seed: int, rows: int) -> Tensor:
    """As a user of Python would write it."""
    found = columns(rows, seed)
    codes = {
        "categorical": lambda: [[*"xyz"].index(k) for k in found["kind"]],
        "binary": lambda: [int(k == "yes") for k in found["sick"]],
        "ordinal": lambda: [k - 1 for k in found["grade"]],
    }
    if family in codes:
        return torch.tensor(codes[family]())
    each = [found[name] for name in FAMILIES[family].targets]
    as_numbers = [[{"True": 1, "false": 0}.get(v, v) for v in values] for values in each]
    return torch.tensor(as_numbers, dtype=torch.float64).T


def words(family: str, *more: object) -> list[object]:
    about = FAMILIES[family]
    targets = [word for name in about.targets for word in ("--target", name)]
    options = [word for option in about.options for word in ("--option", option)]
    features = ("--feature", "a", "--feature", "b")
    return ["--model", f"days_nets:n{about.outputs}", *features, *targets, *options, *more]


def test_every_name_has_its_row():
    assert set(FAMILIES) == set(LIKELIHOODS)


@pytest.mark.parametrize("family", long_but(KEPT, FAMILIES))
def test_from_a_file_to_measures_as_in_python(typed, here, tmp_path, family):
    about, run = FAMILIES[family], tmp_path / "run"
    like = make_named(family, about.options)
    given = ("--data", "train.csv", "--likelihood", family, "--validation", 0.2, *SMALL)
    normalise = ("--normalise",) if like.in_units else ()
    said = typed("fit", *words(family, *given, *normalise, "--out", run))
    assert said.code == 0, said.err
    assert about.measure in said.out, "of what was held out"

    import days_nets

    posterior = stochens.load(run / "posterior", getattr(days_nets, f"n{about.outputs}"))
    assert posterior.likelihood == like
    x = torch.tensor([columns(NEW, 1)[name] for name in "ab"], dtype=torch.float64).T
    y = truth(family, 1, NEW)
    if like.in_units:  # scales are those of the rows that were learned from
        from stochens_lab.workflow.training import split

        rows, _ = split(ROWS, 0.2, 3)
        before = torch.tensor([columns(ROWS, 0)[name] for name in "ab"], dtype=torch.float64).T
        old = truth(family, 0, ROWS)[rows]
        x = (x - before[rows].mean(0)) / before[rows].var(0, correction=0).sqrt()
        p = posterior.predict(x.float(), keep_draws=True)
        p = p.moved(old.mean(0), old.var(0, correction=0).sqrt())
    else:
        p = posterior.predict(x.float(), keep_draws=True)
    said = typed("predict", run, "new.csv", "--same-model", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert about.column in found[0]
    stated, k = about.stated
    column = list_columns(p, like.targets, 0.95)[stated][:, k]
    assert [row[about.column] for row in found] == column.tolist()
    said = typed("evaluate", run, "new.csv", "--same-model", "--json")
    assert said.code == 0, said.err
    wanted = stochens.compare({"p": p}, y, show=False).rows["p"]
    measured = json.loads(said.out)["metrics"]
    assert set(measured) == set(wanted)
    assert measured[about.measure]["value"] == wanted[about.measure].value


@pytest.mark.parametrize("family", long_but(["quantiles"], ["multilabel", "quantiles", "poisson"]))
def test_a_report_in_the_targets_own_units(typed, here, tmp_path, family):
    """Of one array with several columns, which have no names."""
    about, run = FAMILIES[family], tmp_path / "run"
    x = np.stack([columns(ROWS, 0)[name] for name in "ab"], 1)
    data = tmp_path / "it.npz"
    np.savez(data, x=x, y=truth(family, 0, ROWS).numpy())
    options = [word for option in about.options for word in ("--option", option)]
    given = ("--model", f"days_nets:n{about.outputs}", "--data", data, "--likelihood", family)
    said = typed("fit", *given, *options, "--normalise", *SMALL, "--out", run)
    assert said.code == 0, said.err
    said = typed("evaluate", run, data, "--same-model", "--report", tmp_path / "page.html")
    assert said.code == 0, said.err
    text = (tmp_path / "page.html").read_text()
    measured = [line.split() for line in said.out.splitlines() if about.measure in line]
    assert float(measured[0][len(about.measure.split())]) > 0
    assert about.measure in text


def test_the_classes_of_texts_in_the_order_that_was_said(typed, here, tmp_path):
    model = ("--model", "days_nets:n2", "--feature", "a", "--feature", "b")
    given = (*model, "--data", "train.csv", "--target", "kind", "--likelihood", "ordinal", *SMALL)
    said = typed("fit", *given, "--out", tmp_path / "none")
    assert said.code == 2
    assert "the order of the classes ash, elm, oak is not told by their names" in said.err
    order = ("--order", "oak", "--order", "ash", "--order", "elm")
    said = typed("fit", *given, *order, "--out", tmp_path / "run", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["classes"] == ["oak", "ash", "elm"]
    said = typed("predict", tmp_path / "run", "new.csv", "--same-model", "--json")
    assert [n for n in json.loads(said.out)[0] if n.startswith("prob_")] == [
        *("prob_oak", "prob_ash", "prob_elm")
    ]
    for wrong, text in (
        (("--order", "oak", "--order", "ash"), "'kind' has elm, which --order does not name"),
        ((*order, "--order", "oak"), "names a class twice"),
        ((*order, "--order", "fir"), "has 4 classes (oak, ash, elm, fir), and the network has 2"),
    ):
        said = typed("fit", *given, *wrong, "--out", tmp_path / "none")
        assert said.code == 2
        assert text in said.err


@pytest.mark.parametrize("suffix", long_but([".csv", ".npz"], [".csv", ".parquet", ".npz"]))
def test_targets_that_nobody_measured(typed, here, tmp_path, suffix):
    """missing=mask leaves them out, of the scale, of training and of measures."""
    found = columns(ROWS, 0)
    x = np.stack([found["a"], found["b"]], 1)
    y = np.stack([found["u"], found["v"]], 1)
    y[::3, 1] = np.nan
    train = tmp_path / f"train{suffix}"
    if suffix == ".csv":
        with train.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "u", "v"])
            blank = ["", "NA", "?"]
            writer.writerows(
                [*row, u, blank[i % 3] if math.isnan(v) else v]
                for i, (row, (u, v)) in enumerate(zip(x.tolist(), y.tolist(), strict=True))
            )
    elif suffix == ".parquet":
        column = [None if math.isnan(v) else v for v in y[:, 1]]
        named = {"a": x[:, 0], "b": x[:, 1], "u": y[:, 0], "v": column}
        pq.write_table(pa.table(named), train)
    else:
        np.savez(train, x=x, y=y)
    targets = () if suffix == ".npz" else ("--target", "u", "--target", "v")
    given = ("--model", "days_nets:n4", "--data", train, *targets, "--normalise", *SMALL)
    like = ("--likelihood", "laplace")
    said = typed("fit", *given, *like, "--out", tmp_path / "none")
    assert said.code == 2
    said = typed("fit", *given, *like, "--option", "missing=mask", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    own, there = torch.tensor(y), ~torch.tensor(y).isnan()
    mean = own.nanmean(0)
    sd = torch.stack([own[there[:, k], k].var(correction=0).sqrt() for k in (0, 1)])
    features = torch.tensor(x)
    features = (features - features.mean(0)) / features.var(0, correction=0).sqrt()

    import days_nets

    posterior = stochens.fit(
        days_nets.n4,
        (features.float(), ((own - mean) / sd).float()),
        likelihood=stochens.likelihoods.Laplace(missing="mask"),
        **OPTIONS,
    )
    p = posterior.predict(features.float()).moved(mean, sd)
    said = typed("evaluate", tmp_path / "run", train, "--same-model", "--json")
    assert said.code == 0, said.err
    rows = stochens.compare({"p": p}, own, show=False).rows["p"]
    for name, measure in json.loads(said.out)["metrics"].items():  # the sd to its last bit
        assert measure["value"] == pytest.approx(rows[name].value, rel=1e-4), name


def test_labels_with_holes_in_parquet(typed, here, tmp_path):
    found = columns(ROWS, 0)
    wet = [None if i % 4 == 0 else bool(v) for i, v in enumerate(found["wet"])]
    cold = [None if i % 5 == 0 else v for i, v in enumerate(found["cold"])]
    data = tmp_path / "t.parquet"
    named = {"a": found["a"], "b": found["b"], "wet": wet, "cold": cold}
    pq.write_table(pa.table(named), data)
    given = ("--model", "days_nets:n2", "--data", data, "--target", "wet", "--target", "cold")
    like = ("--likelihood", "multilabel", "--option", "missing=mask")
    said = typed("fit", *given, *like, *SMALL, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    said = typed("evaluate", tmp_path / "run", data, "--same-model", "--json")
    assert said.code == 0, said.err

    import days_nets

    posterior = stochens.load(tmp_path / "run" / "posterior", days_nets.n2)
    p = posterior.predict(torch.tensor([found["a"], found["b"]]).T)
    y = torch.tensor(
        [
            [math.nan if v is None else float(v in (True, "True")) for v in column]
            for column in (wet, cold)
        ]
    ).T
    rows = stochens.compare({"p": p}, y, show=False).rows["p"]
    assert json.loads(said.out)["metrics"]["accuracy"]["value"] == rows["accuracy"].value


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        (
            "categorical",
            {"targets": ("wet", "cold")},
            "classes need one target, got wet, cold",
        ),
        ("categorical", {"targets": ("wet,cold",)}, "name several one by one, each after its own"),
        ("categorical", {"outputs": 1, "targets": ("wet",)}, "--likelihood binary would fit"),
        ("binary", {"outputs": 3}, "must return one logit [B, 1] or [B], got (4, 3)"),
        ("binary", {"targets": ("kind",)}, "has 3 classes (ash, elm, oak), and the network has 1"),
        ("multilabel", {"targets": ("wet", "kind")}, "column 'kind' has 'oak' in row 1; a label"),
        ("multilabel", {"targets": ("wet", "count")}, "a label is yes or no: 1 or 0"),
        ("soft-labels", {"targets": ("u", "v", "a")}, "'a' cannot be a feature and the target"),
        ("soft-labels", {"targets": ("u", "v", "count")}, "train.csv: soft labels must be >= 0"),
        ("gaussian", {"targets": ("kind",)}, "classes are for --likelihood categorical"),
        ("gaussian", {"options": ("nois=3",)}, "unknown --option of gaussian 'nois'; did you mean"),
        ("gaussian", {"options": ("noise=-3",)}, "--option: noise must be a positive number"),
        ("gaussian", {"options": ("noise",)}, "--option must be NAME=VALUE, got 'noise'"),
        ("gaussian", {"options": ("noise=1", "noise=2")}, "--option noise is given twice"),
        ("soft-labels", {"options": ("noise=1",)}, "--likelihood soft-labels has no options"),
        ("mixture", {"options": ("components=2.5",)}, "components must be a whole number, got 2.5"),
        ("quantiles", {"options": ("levels=a,b",)}, "could not convert string to float: 'a'"),
        ("student-t", {"outputs": 1}, "needs a network with outputs [B, 4], got (4, 1)"),
        ("poisson", {"targets": ("u", "v")}, "train.csv: counts must be whole numbers"),
        ("poisson", {"targets": ("count", "missing")}, "has no column 'missing'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    typed, here, tmp_path, monkeypatch, family, change, said
):
    monkeypatch.setitem(FAMILIES, family, FAMILIES[family]._replace(**change))
    given = ("--data", "train.csv", "--likelihood", family, *SMALL, "--out", tmp_path / "run")
    answer = typed("fit", *words(family, *given))
    assert answer.code == 2, answer.out
    last = answer.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last
    assert not (tmp_path / "run").exists()


def test_folders_of_images_are_classes(typed, files, monkeypatch, tmp_path):
    monkeypatch.chdir(files)
    words = ("--model", "trees_nets:grey", "--data", "train-images", "--likelihood", "poisson")
    said = typed("fit", *words, "--out", tmp_path / "run")
    assert said.code == 2
    assert "its folders are classes, and --likelihood poisson takes numbers" in said.err


def test_options_in_scaled_units_are_told(typed, here, tmp_path):
    given = ("--data", "train.csv", "--likelihood", "student-t", "--option", "scale=0.3", *SMALL)
    more = ("--normalise", "--out", tmp_path / "run")
    said = typed("fit", "--model", "days_nets:n1", "--target", "u", "--feature", "a", *given, *more)
    assert said.code == 2, "one feature, and a network of two"
    said = typed("fit", *words("laplace", *given, *more))
    assert said.code == 2, "a scale that is given needs one output"
    both = ("--feature", "a", "--feature", "b")
    said = typed("fit", "--model", "days_nets:n1", "--target", "u", *both, *given, *more)
    assert said.code == 0, said.err
    sd = np.std(columns(ROWS, 0)["u"])
    assert f"--option scale=0.3: of targets in units of their sd ({sd:.3g})" in said.err


def test_other_targets_are_not_compared(typed, here, tmp_path):
    for family in ("multilabel", "gaussian"):
        given = ("--data", "train.csv", "--likelihood", family, *SMALL, "--out", tmp_path / family)
        more = ("--normalise",) if family == "gaussian" else ()
        assert typed("fit", *words(family, *given, *more)).code == 0
    both = (tmp_path / "multilabel", tmp_path / "gaussian")
    said = typed("compare", *both, "--data", "new.csv", "--model", "days_nets:n2")
    assert said.code == 2
    assert "predict other things: wet, cold (labels), and u, v (numbers)" in said.err
    for option in ("--ood", "--reference"):
        said = typed("evaluate", both[0], "new.csv", "--same-model", option, "new.csv")
        assert said.code == 2
        assert "are for classes, and this run predicts labels" in said.err


def test_yes_and_no_of_arrays():
    found = parse_yes_or_no(np.array([[True, False], [False, False]]), "y", "f.npz")
    assert found.tolist() == [[1, 0], [0, 0]]
    with pytest.raises(InputError, match=r"column 'y' has \[0.0, 2.0\] in row 2"):
        parse_yes_or_no(np.array([[0, 1], [0, 2]]), "y", "f.npz")
