"""evaluate and compare: the numbers of stochens.compare, for people and for machines."""

import json
import re

import numpy as np
import pytest
import torch
from tests.lab.workflow.conftest import CLASSES, table
from tests.page_parser import Page

import stochens

NET = ("--model", "trees_nets:make_net")
SMALL = ("--members", 3, "--epochs", 3, "--batch-size", 16)
THOUSANDS = r"true ((?:\d{1,3})(?:,\d{3})+)"


@pytest.fixture
def run(typed, here, tmp_path):
    """A fitted run, and what it says of test.csv."""
    out = tmp_path / "one"
    words = ("--data", "train.csv", "--target", "kind", "--validation", 0.25, *SMALL)
    said = typed("fit", *NET, *words, "--method", "dropout", "--out", out)
    assert said.code == 0, said.err
    import trees_nets

    posterior = stochens.load(out / "posterior", trees_nets.make_net)
    return out, posterior


def metrics(said):
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_every_measure_with_a_reference_and_other_data(typed, run, tmp_path):
    out, posterior = run
    x, y = table(25, 1)
    p = posterior.predict(x)
    far = posterior.predict(table(25, 1)[0][:7] * 3)
    np.savez(tmp_path / "far.npz", x=table(25, 1)[0][:7] * 3)
    with (tmp_path / "far.csv").open("w") as file:
        file.write("a,b,c,d\n")
        file.writelines(",".join(map(repr, row)) + "\n" for row in (x[:7] * 3).tolist())
    draws = torch.rand(6, 25, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    reference = stochens.Predictive.of(draws.double())
    np.save(tmp_path / "draws.npy", draws.numpy())
    np.save(tmp_path / "mean.npy", draws.mean(0).numpy())
    wanted = stochens.compare(
        {"p": p, "r": reference}, torch.tensor(y), reference="r", ood={"p": far}, show=False
    ).rows["p"]
    words = ("evaluate", out, "test.csv", *NET, "--ood", tmp_path / "far.csv", "--json")
    found = metrics(typed(*words, "--reference", tmp_path / "draws.npy"))
    assert found["examples"] == 25
    assert {name: tuple(v.values()) for name, v in found["metrics"].items()} == {
        name: tuple(interval) for name, interval in wanted.items()
    }
    alone = metrics(typed(*words, "--reference", tmp_path / "mean.npy"))["metrics"]
    assert set(wanted) - set(alone) == {"MI error"}  # a mean does not tell it
    near = "total variation"
    assert alone[near]["value"] == pytest.approx(wanted[near].value, abs=1e-6)


def test_a_page_has_the_same_numbers(typed, run, tmp_path):
    out, _ = run
    page = tmp_path / "new" / "report.html"
    said = typed("evaluate", out, "test.csv", *NET, "--report", page, "--resamples", 5, "--json")
    found = metrics(said)
    assert found["report"] == str(page)
    shown = Page(page.read_text())
    values = [interval["value"] for interval in found["metrics"].values()]
    assert shown.numbers[: len(values)] == values
    for word in ("one on test.csv", *CLASSES, "member 2", "Training"):
        assert word in shown.text
    refused = typed("evaluate", out, "test.csv", *NET, "--report", tmp_path / "report.pdf")
    assert (refused.code, refused.out) == (2, "")
    assert "a report is one .html file" in refused.err


def test_a_page_of_numbers_is_in_the_units_of_the_data(typed, here, tmp_path):
    x, y = table(40, 1)
    y = 1e6 + 1e4 * x[:, 0]
    np.savez(tmp_path / "big.npz", x=100 * x, y=y)
    out, page = tmp_path / "real", tmp_path / "report.html"
    words = ("--data", tmp_path / "big.npz", "--target", "y", "--likelihood", "gaussian")
    said = typed("fit", "--model", "trees_nets:real", *words, *SMALL, "--normalise", "--out", out)
    assert said.code == 0, said.err
    asked = ("evaluate", out, tmp_path / "big.npz", "--same-model", "--resamples", 5)
    said = typed(*asked, "--report", page, "--json")
    values = [interval["value"] for interval in metrics(said)["metrics"].values()]
    shown = Page(page.read_text())
    assert shown.numbers[: len(values)] == values
    truths = [float(t.replace(",", "")) for t in re.findall(THOUSANDS, shown.text)]
    assert len(truths) == 16
    assert all(min(abs(y - truth)) <= 0.5 for truth in truths)  # rounded


def test_predictions_are_a_reference(typed, run, tmp_path):
    out, _ = run
    for name in ("p.csv", "p.parquet", "p.npz"):
        assert typed("predict", out, "test.csv", *NET, "-o", tmp_path / name).code == 0
        words = ("evaluate", out, "test.csv", *NET, "--reference", tmp_path / name, "--json")
        found = metrics(typed(*words))["metrics"]
        assert found["agreement"]["value"] == 1
        assert found["total variation"]["value"] < 1e-6
        assert found["MI error"]["value"] < 1e-6


def test_a_table_for_people(typed, run):
    out, _ = run
    said = typed("evaluate", out, "test.csv", *NET)
    for word in ("accuracy", "NLL", "Brier", "ECE", "AURC", "25 examples of test.csv"):
        assert word in said.out
    shown = typed("predict", out, "test.csv", *NET)
    assert "10 of 25 rows" in shown.out
    assert CLASSES[0] in shown.out


def test_runs_side_by_side(typed, here, run, tmp_path):
    out, _ = run
    other, elsewhere = tmp_path / "two", tmp_path / "three"
    words = (*NET, "--data", "train.csv", "--target", "kind", "--validation", 0.25, *SMALL)
    assert typed("fit", *words, "--method", "regular", "--normalise", "--out", other).code == 0
    assert typed("fit", *words, "--seed", 1, "--out", elsewhere).code == 0
    held = metrics(typed("compare", out, other, "--json"))
    assert held["examples"] == 15
    assert list(held["runs"]) == ["one", "two"]
    said = typed("compare", out, other)
    assert "what the runs held out" in said.out
    refused = typed("compare", out, elsewhere)
    assert refused.code == 2
    assert "held other rows out" in refused.err
    both = metrics(typed("compare", out, elsewhere, "--data", "test.csv", *NET, "--json"))
    for path in (out, elsewhere):
        alone = metrics(typed("evaluate", path, "test.csv", *NET, "--json"))
        assert both["runs"][path.name] == alone["metrics"]


def test_held_out_rows_are_not_learned_from(typed, here, tmp_path):
    from stochens_lab.workflow.training import split

    rows, held = split(60, 0.25, seed=0)
    assert len(held) == 15
    assert sorted([*rows.tolist(), *held.tolist()]) == list(range(60))
    assert torch.equal(held, split(60, 0.25, seed=0)[1])
    assert not torch.equal(held, split(60, 0.25, seed=1)[1])
    words = ("--data", "train.csv", "--target", "kind", "--validation", 0.25, "--normalise")
    assert typed("fit", *NET, *words, *SMALL, "--out", tmp_path / "run").code == 0
    import trees_nets

    x, y = (torch.tensor(part) for part in table(60, 0))
    mean, sd = x[rows].mean(0), x[rows].var(0, correction=0).sqrt()  # of these rows alone
    ours = stochens.fit(
        trees_nets.make_net,
        (((x - mean) / sd).float()[rows], y[rows]),
        members=3,
        epochs=3,
        batch_size=16,
    )
    theirs = stochens.load(tmp_path / "run" / "posterior", trees_nets.make_net)
    assert all(torch.equal(theirs.params[name], p) for name, p in ours.params.items())


def test_an_infinite_nll_is_shown_and_is_no_json(typed, here, tmp_path):
    sure = tmp_path / "sure"
    words = ("--data", "train.csv", "--target", "kind", "--validation", 0.5, "--method", "regular")
    one = ("--members", 1, "--epochs", 1, "--json", "--out", sure)
    said = typed("fit", "--model", "trees_nets:Sure", *words, *one)
    assert metrics(said)["validation"]["NLL"]["value"] is None
    assert metrics(said)["members"] == 1
    assert "inf" in typed("compare", sure).out
    assert "inf" in typed("fit", "--resume", sure).out  # which has ended, and tells it again
    found = metrics(typed("evaluate", sure, "test.csv", "--same-model", "--json"))["metrics"]
    assert found["NLL"]["value"] is None
    assert typed("report", sure).code == 0


def test_other_predictions_are_refused(typed, run, tmp_path):
    out, _ = run
    np.save(tmp_path / "short.npy", np.full((24, 3), 1 / 3))
    np.save(tmp_path / "logits.npy", np.full((25, 3), 2.0))
    for name, said in (
        ("short.npy", "must be [25, 3], row by row"),
        ("logits.npy", "sum to one"),
        ("none.npy", "is not there"),
        ("one/run.json", "a reference is .npy"),
    ):
        refused = typed("evaluate", out, "test.csv", *NET, "--reference", tmp_path / name)
        assert refused.code == 2
        assert said in refused.err
