"""Rows that differ in epochs, read at the same number of members."""

import pytest
from tests.lab.report.cifar_sample import SET, cifar_run, part_of_all
from tests.lab.report.test_cifar_page import Tables

from stochens_lab.report import markdown
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.cifar.trade import find_trades
from stochens_lab.report.figures.cifar import draw_cifar_figures
from stochens_lab.report.view import RunView

TITLE = "Epochs of training against distance to HMC"


def runs_of(folder, *settings):
    return [
        cifar_run(folder / f"{i}", closeness=0.5 + 0.05 * i, images=60, seed=i, **one)
        for i, one in enumerate(settings)
    ]


def trades_of(runs):
    return find_trades(gather([RunView(run, f"run{i}") for i, run in enumerate(runs)])[0])


def test_epochs_are_compared_at_the_members_that_all_have(tmp_path):
    few = [{"members": 10, "epochs": epochs} for epochs in (60, 15)]
    runs = runs_of(tmp_path, *few, {"members": 50, "epochs": 300}, {"members": 20, "epochs": 300})
    for run in runs:
        run.about["timings"] = {f"{SET}/SE1 0.1 0000-0009": 40.0, f"{SET}/other": 7.0}
    (trade,) = trades_of(runs)
    assert (trade.name, trade.members) == ("SE1 0.1", 10)
    assert [p.epochs for p in trade.points] == [15, 60, 300]
    assert trade.points[2].row.settings["members"] == 50  # most ensembles of 10 to take the mean of
    curve = runs[2].training[SET]["SE1 0.1"]["members curve"]
    at = curve["members"].index(10)
    assert trade.points[2].values["agreement"] == curve["agreement"][at]
    assert trade.points[2].intervals == {}
    stored = runs[0].metrics[SET]["SE1 0.1"]["test"]["variance"]
    assert trade.points[1].intervals["variance"]._asdict() == stored
    assert [p.seconds for p in trade.points] == [4.0, 4.0, 0.8]
    table = Tables(part_of_all(runs)).found[TITLE]
    want = [f"{100 * curve['agreement'][at]:.2f}", f"{100 * curve['variance'][at]:.2f}"]
    assert table["SE1 0.1, 10 members"][:3] == ["300", *want]  # the last row of that name
    span = f"({100 * stored['low']:.2f} to {100 * stored['high']:.2f})"
    lines = [x for x in markdown.format_runs(runs).splitlines() if "10 members | 60 | " in x]
    assert len(lines) == 1
    assert span in lines[0]
    assert "epochs" in dict(draw_cifar_figures(runs))


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 300},  # the same epochs
        {"epochs": 30, "train_images": 40960},  # another recipe
        {"epochs": 30, "lr": 0.05},
    ],
)
def test_rows_that_differ_in_more_or_in_nothing_are_no_trade(tmp_path, other):
    runs = runs_of(tmp_path, {"epochs": 300}, other)
    assert trades_of(runs) == []
    if other == {"epochs": 300}:  # what is drawn follows from the trades
        assert TITLE not in part_of_all(runs)
        assert "epochs" not in dict(draw_cifar_figures(runs))


def test_recipes_are_told_apart_by_their_images(tmp_path):
    both = [
        {"epochs": epochs, "train_images": images}
        for epochs in (30, 60)
        for images in (40960, None)
    ]
    names = [trade.name for trade in trades_of(runs_of(tmp_path, *both))]
    assert sorted(names) == ["SE1 0.1, 40,960 images", "SE1 0.1, 50,000 images"]
