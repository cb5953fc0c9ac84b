"""Active learning on repeated digits, small: what the folder holds, and that it can be gone on
with."""

import json

import pytest

from stochens import InputError
from stochens_lab.experiments import active
from stochens_lab.report.figures.files import save_figures
from stochens_lab.report.finish import finish_run
from stochens_lab.report.run_folder import SavedRun

SMALL = {
    "images": 80,
    "copies": 2,
    "begin": 10,
    "batch": 3,
    "end": 16,
    "hidden": 4,
    "members": 2,
    "draws": 2,
    "epochs": 2,
    "configurations": 20,
    "seeds": 2,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "active"
    return SavedRun(active.run(active.configure(out=out, **SMALL)))


def test_every_strategy_has_its_curve_and_its_interval(run):
    assert run.about["complete"]
    curves = run.about["curves"]
    assert set(curves) == set(active.STRATEGIES)
    for name, rows in curves.items():
        assert len(rows) == 2
        for k, labels in enumerate((10, 13, 16)):
            found = run.metrics[active.SET][name][f"{labels} labels"]["accuracy"]
            assert found == active.over_seeds([row[k] for row in rows])._asdict()
    starts = {tuple(row[0] for row in rows) for rows in curves.values()}
    assert len(starts) == 1  # all begin alike
    gain = run.metrics[active.WHOLE]["BatchBALD less random"]["test"]["accuracy"]["value"]
    mean = {name: sum(sum(row) / 3 for row in rows) / 2 for name, rows in curves.items()}
    assert gain == pytest.approx(mean["BatchBALD"] - mean["random"])


def test_it_is_drawn_and_written(run, tmp_path):
    save_figures([run], tmp_path)
    assert (tmp_path / "learning.svg").stat().st_size > 1000
    from rich.console import Console

    console = Console(record=True, width=100)
    assert len(list(finish_run(run.path, console))) == 3
    assert "BatchBALD less random" in console.export_text()
    assert "| BatchBALD |" in (run.path / "tables.md").read_text()


def test_a_stopped_run_goes_on_with_what_it_has(run, tmp_path, monkeypatch):
    out = tmp_path / "active"
    config = active.configure(out=out, **SMALL)
    real, begun = active.learning_curve, []

    def stopping(*arguments):
        begun.append(arguments)
        if len(begun) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(active, "learning_curve", stopping)
    with pytest.raises(KeyboardInterrupt):
        active.run(config)
    active.run(active.reconfigure(out), resume=True)
    assert len(begun) == 7  # 6 curves, one of them begun twice
    assert json.dumps(SavedRun(out).metrics) == json.dumps(run.metrics)
    active.run(active.reconfigure(out), resume=True)
    assert len(begun) == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"begin": 15}, "begin must be a multiple of 10"),
        ({"end": 14}, "some batches of 3"),
        ({"images": 5, "copies": 3}, "the pool has 15"),
        ({"seeds": 1}, "an interval over seeds needs 2"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(change, words, tmp_path):
    config = active.configure(out=tmp_path / "new", **{**SMALL, **change})
    with pytest.raises(InputError, match=words):
        active.run(config)
    assert not (tmp_path / "new").exists()
