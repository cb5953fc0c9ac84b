"""The merged metrics.json: names, numbers and places; and what it must never overwrite."""

import json
from typing import Any

import pytest
import torch
from tests.lab.report.cifar_sample import SET, cifar_run, part_of_all
from tests.lab.report.test_cifar_page import TABLE_2, Tables
from typer.testing import CliRunner

from stochens.metrics import ece, ece_interval
from stochens_lab.cli import app
from stochens_lab.report import finish
from stochens_lab.report.cifar.markdown import RUN_KEYS, cifar_metrics
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.figures.cifar import draw_cifar_figures
from stochens_lab.report.page.build import build_page
from stochens_lab.report.run_folder import METRICS
from stochens_lab.report.view import RunView

LABELS = "points/labels-test"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found: tuple[tuple[str, dict[str, Any]], ...] = (
        ("regular", {}),
        ("SE1 0.1", {"members": 10}),
        ("SE1 0.1", {"train_images": 40960}),
        ("SE1 0.1", {"train_images": None}),
    )
    return [
        cifar_run(folder / f"row{i}", name, seed=i, corruptions=("fog",) if i == 0 else (), **more)
        for i, (name, more) in enumerate(found)
    ]


@pytest.fixture(scope="module")
def all_runs(runs):
    return part_of_all(runs)


def test_rows_of_one_name_are_told_apart_and_named_alike_everywhere(runs, all_runs):
    names = [
        "HMC",
        "regular",
        "SE1 0.1, 50 members, 40,960 images",
        "SE1 0.1, 50 members, 50,000 images",
        "SE1 0.1, 10 members",
    ]
    merged = cifar_metrics(runs)
    assert list(merged) == names
    table = Tables(all_runs).found[TABLE_2]
    assert [name for name in table if name in names] == names
    drawn = dict(draw_cifar_figures(runs))["members"].legends[0]
    assert {text.get_text() for text in drawn.get_texts()} >= set(names[1:])


def test_every_number_is_in_its_place(runs):
    merged = cifar_metrics(runs)
    regular, stored = merged["regular"], runs[0].metrics[SET]["regular"]
    for name, key in (("accuracy", "accuracy"), ("NLL", "nll"), ("ECE", "ece")):
        wanted = stored["test"][name]
        if name == "ECE":  # its interval is measured again
            mean, labels = (runs[0].arrays[f"{SET}/{n}"] for n in ("regular/test/mean", LABELS))
            found = ece_interval(torch.from_numpy(mean), torch.from_numpy(labels))
            wanted = {"value": wanted["value"], "low": found.low, "high": found.high}
        assert regular[key] == wanted
        assert regular["corrupted"][key] == stored["corrupted"][name]
    for name in ("agreement", "variance"):
        assert regular[name] == stored["test"][name]
    assert regular["auroc"] == {o: stored[o]["OOD AUROC"] for o in ("cifar100", "svhn")}
    assert "corrupted" not in merged["SE1 0.1, 10 members"]
    made = merged["SE1 0.1, 50 members, 50,000 images"]["run"]
    assert tuple(made) == RUN_KEYS == tuple(merged["HMC"]["run"])
    assert (made["members"], made["epochs"], made["images"]) == (50, 300, 50_000)
    assert (made["draws"], made["seed"]) == (1, 3)
    assert made["command"] == runs[3].about["command"]
    assert made["seconds"] == runs[3].about["seconds"]
    assert made["device"].endswith("cores")
    assert set(merged["HMC"]) == {"run", "accuracy", "nll", "ece"}


def test_members_are_those_that_there_are(tmp_path):
    """A run that was stopped has asked for more than it has."""
    run = cifar_run(tmp_path / "r", complete=False)
    run.training[SET]["SE1 0.1"]["members curve"]["members"][-1] = 30
    assert cifar_metrics([run])["SE1 0.1"]["run"]["members"] == 30


def test_rows_of_two_sets_have_the_set_in_their_names(runs, tmp_path):
    other = cifar_run(tmp_path / "hundred", "SE1 0.3", set_name="cifar100")
    names = list(cifar_metrics([runs[0], other]))
    assert names == ["HMC, CIFAR-10", "regular, CIFAR-10", "HMC, CIFAR-100", "SE1 0.3, CIFAR-100"]


@pytest.mark.long
def test_report_writes_the_page_the_tables_and_the_numbers_into_a_folder(runs, tmp_path):
    out = tmp_path / "results" / "cifar10"
    paths = [str(run.path) for run in runs]
    done = CliRunner().invoke(app, ["report", *paths, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "report.html", "tables.md"]
    assert json.loads((out / METRICS).read_text()) == cifar_metrics(runs)
    assert "Row: SE1 0.1, 10 members." in (out / "tables.md").read_text()
    again = ["report", *paths[:2], "-o", str(out / "page.html"), "--figures"]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output
    assert (out / "page.html").exists()
    assert (out / "figures" / "members.png").exists()


def test_a_runs_own_files_are_never_overwritten(runs, tmp_path):
    run = cifar_run(tmp_path / "own", "SE3")
    before = {name: (run.path / name).read_bytes() for name in (METRICS, "run.json")}
    said = list(
        finish.write_companions([runs[0].path, run.path], run.path / "page.html", figures=True)
    )
    assert len(said) == 1
    assert "is a run's own folder" in said[0]
    assert not (run.path / "tables.md").exists()
    list(finish.write_companions([run.path], run.path / "report.html", figures=True))
    assert (run.path / "tables.md").exists()  # its own
    for name, content in before.items():
        assert (run.path / name).read_bytes() == content


def test_a_folder_that_cannot_be_is_one_line(runs, tmp_path):
    (tmp_path / "file").write_text("x")
    done = CliRunner().invoke(
        app, ["report", str(runs[0].path), "-o", str(tmp_path / "file" / "a")]
    )
    assert done.exit_code != 0
    assert "cannot write to" in str(done.exception)


def test_an_ece_interval_of_an_older_run_is_measured_again(tmp_path):
    run = cifar_run(tmp_path / "r", images=1000)
    stored = run.metrics[SET]["SE1 0.1"]["test"]["ECE"]
    stored |= {"low": stored["value"] + 0.01, "high": stored["value"] + 0.03}
    row = gather([RunView(run, "run0")])[0].methods[0]
    found = row.interval("test", "ECE")
    mean = torch.from_numpy(run.arrays[f"{SET}/SE1 0.1/test/mean"])
    labels = torch.from_numpy(run.arrays[f"{SET}/points/labels-test"])
    assert found.value == stored["value"]
    # The stored mean is in single precision, and so is what is measured of it.
    assert found.value == pytest.approx(ece(mean, labels), abs=1e-6)
    assert (found.low, found.high) == ece_interval(mean, labels)[1:]
    assert found.low <= found.value <= found.high
    run.arrays.clear()
    row = gather([RunView(run, "run0")])[0].methods[0]
    assert row.interval("test", "ECE").low == stored["low"]  # nothing to measure it of


def test_what_hmc_has_by_definition_is_shown_and_no_preset_is(runs, all_runs):
    row = Tables(all_runs).found[TABLE_2]["HMC"]
    assert row[3:5] == ["100", "0"]
    assert "by definition" in all_runs
    assert "Preset" not in build_page(runs[:1])
