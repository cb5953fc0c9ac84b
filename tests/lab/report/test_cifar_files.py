"""What lies beside the page of CIFAR runs: figures, Markdown and the tables of the terminal."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.lab.report.cifar_sample import SET, cifar_run
from tests.lab.report.sample import sample_run

from stochens.metrics import accuracy as accuracy_of
from stochens.metrics import ece
from stochens_lab.report import finish, markdown
from stochens_lab.report.cifar.numbers import (
    compute_calibration,
    compute_entropies,
    compute_shares,
    list_corrupted,
    measure_distance,
    read_curve,
)
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.figures.cifar import draw_boxes, draw_cifar_figures
from stochens_lab.report.figures.files import save_figures
from stochens_lab.report.view import RunView


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    close = {"regular": 0.6, "SE1 0.1": 0.85}
    return [
        cifar_run(folder / name.replace(" ", "-"), name, closeness=c, seed=i)
        for i, (name, c) in enumerate(close.items())
    ]


@pytest.fixture
def row(runs):
    return gather([RunView(runs[1], "run0")])[0].methods[0]


def test_boxes_are_the_quartiles_over_corruptions(runs, row):
    table = runs[1].metrics[SET]["SE1 0.1"]
    values = sorted(v["NLL"]["value"] for name, v in table.items() if name.endswith("-3"))
    assert len(values) == 16
    assert sorted(list_corrupted(row, "NLL", 3)) == values
    assert list_corrupted(row, "NLL", 6) == []
    figure = draw_boxes(gather([RunView(runs[1], "run0")])[0])
    _, ax = figure.axes
    heights = np.asarray(ax.patches[2].get_path().vertices)[:, 1]
    assert heights.min() == pytest.approx(values[3] + 0.75 * (values[4] - values[3]))
    assert heights.max() == pytest.approx(values[11] + 0.25 * (values[12] - values[11]))
    drawn = {y for line in ax.lines for y in line.get_ydata()}
    assert {values[0], values[-1]} <= drawn
    assert any(y == pytest.approx((values[7] + values[8]) / 2) for y in drawn)


def test_histograms_add_up_and_distance_is_wassersteins():
    values = np.array([0.0, 0.1, 0.5, 2.3, 2.4])
    assert compute_shares(values, np.linspace(0, 2.3, 11)).sum() == pytest.approx(1)
    one = np.random.default_rng(0).random(1000)
    assert measure_distance(one, one + 0.25) == pytest.approx(0.25)
    assert measure_distance(one, np.concatenate([one, one]) + 0.25) == pytest.approx(0.25, abs=1e-3)
    assert measure_distance(one, one[::-1]) == 0


def test_gaps_of_calibration_average_to_accuracy_minus_confidence(tmp_path):
    run = cifar_run(tmp_path / "r", images=2000)
    row = gather([RunView(run, "run0")])[0].methods[0]
    labels = run.arrays[f"{SET}/points/labels-test"]
    mean = torch.from_numpy(run.arrays[f"{SET}/SE1 0.1/test/mean"])
    found = compute_calibration(row)
    assert all(0 <= c <= 1 for c in found.confidence)
    truth = ece(mean, torch.from_numpy(labels), bins=10, binning="equal-width")
    assert max(map(abs, found.gap)) >= truth  # a mean is at most its largest
    confidence = mean.max(1).values
    sure = confidence > 0.9
    gap = accuracy_of(mean[sure], torch.from_numpy(labels)[sure]) - confidence[sure].mean()
    assert found.gap[-1] == pytest.approx(float(gap), abs=1e-6)


def test_curves_are_read_as_they_are_written(runs, row):
    curve = read_curve(row, "members curve", "agreement")
    assert curve is not None
    x, y = curve
    about = runs[1].training[SET]["SE1 0.1"]["members curve"]
    assert (x, y) == (about["members"], about["agreement"])
    curve = read_curve(row, "inferences curve", "variance")
    assert curve is not None
    assert curve[0] == [1, 4, 16]
    assert read_curve(row, "members curve", "no such") is None
    assert compute_entropies(row, "nowhere") is None


def test_figures_of_several_runs_lie_beside_the_page(runs, tmp_path):
    page = tmp_path / "page.html"
    said = list(finish.write_companions([run.path for run in runs], page, figures=True))
    figures = tmp_path / "figures"
    for name in ("fig3", "fig4", "fig5", "members", "inferences"):
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (figures / f"{name}.svg").read_text()
    written = (("Figures: ", "figures"), ("Tables:  ", "tables.md"), ("Numbers: ", "metrics.json"))
    assert said == [f"{what}{tmp_path / name}" for what, name in written]
    assert "SE1 0.1" in (tmp_path / "tables.md").read_text()


def test_figures_of_the_same_run_are_the_same_files(runs, tmp_path):
    for again in ("first", "second"):
        save_figures([runs[0]], tmp_path / again)
    first, second = (
        {f.name: f.read_bytes() for f in (tmp_path / d).iterdir()} for d in ("first", "second")
    )
    assert len(first) > 2
    assert first == second


def test_figures_without_numbers_are_not_drawn(tmp_path):
    run = cifar_run(tmp_path / "r", corruptions=(), reference=False)
    assert [name for name, _ in draw_cifar_figures([run])] == [
        "fig3",
        "fig4",
        "members",
        "inferences",
    ]
    run.arrays, run.training = {}, {}
    assert list(draw_cifar_figures([run])) == []


def test_other_runs_keep_their_own_figures(runs, tmp_path):
    toy = sample_run(tmp_path / "toy", sets=("a",), methods=("regular",))
    list(finish.write_companions([runs[0].path, toy.path], tmp_path / "page.html", figures=True))
    assert (tmp_path / "figures" / "fig3.png").exists()
    assert (tmp_path / "figures" / "toy" / "fig1.png").exists()
    text = (tmp_path / "tables.md").read_text()
    assert "## CIFAR-10: test images (Table 2)" in text
    assert "## a\n" in text


def test_markdown_has_the_merged_rows_and_the_papers(runs):
    text = markdown.format_runs(runs)
    found = runs[1].metrics[SET]["SE1 0.1"]["test"]["NLL"]
    part = text.split("(Table 2)")[1].split("## ")[0]
    row = next(line for line in part.splitlines() if line.startswith("| SE1 0.1 |"))
    third = row.split(" | ")[2].replace("*", "")
    assert third == f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
    assert "| *SE1, paper* | *90.82* | *0.301* | *0.057* | *94.1* | *8.0* | *85.5* |  |" in text
    counts = {line.count(" |") for line in part.splitlines() if line.startswith("|")}
    assert len(counts) == 1  # as many cells in every row
    for run in runs:
        assert f"- {run.name}: `{run.about['command']}`" in text


def test_markdown_of_one_run_is_short(runs):
    text = markdown.format_run(runs[1])
    assert text.startswith(f"`{runs[1].about['command']}`\n")
    assert max(line.count("|") for line in text.splitlines()) < 10  # not 80 sets in a line
    assert "| fog | " in text
    assert markdown.format_runs(runs[1:]) == text


def test_the_end_of_a_run_fits_a_terminal(tmp_path):
    run = cifar_run(tmp_path / "r")
    console = Console(width=80, record=True, file=io.StringIO())
    said = list(finish.finish_run(run.path, console))
    text = console.export_text()
    accuracy = run.metrics[SET]["SE1 0.1"]["test"]["accuracy"]["value"]
    assert f"{accuracy:.3f}" in text
    assert "CIFAR-10: corrupted" in text
    assert "fog" not in text
    assert "…" not in text
    assert len(said) == 3
    for name in ("report.html", "tables.md", "figures/fig5.svg"):
        assert (run.path / name).exists()
