"""Loggers that users may or may not have, and the bar."""

import sys
import time
import types
from typing import Any

import pytest
import torch

import stochens
from stochens import InputError
from stochens.run.progress import log_to, progress_bar


def test_tensorboard_gets_every_value(monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            written.append("flush")

    fake: Any = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    log = log_to("tensorboard:here")
    assert log is not None
    log(3, {"loss": 1.5})
    assert written == ["here", ("loss", 1.5, 3), "flush"]


def test_nothing_is_written_when_the_data_are_bad(monkeypatch):
    made: list[Any] = []
    fake: Any = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = made.append
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    data = (torch.full((4, 2), float("nan")), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match="x must be finite"):
        stochens.fit(
            stochens.MLP(2, 2), data, method="regular", run=stochens.Run(log="tensorboard")
        )
    assert made == []


def test_wandb_gets_every_value(monkeypatch):
    logged: list[Any] = []
    run = types.SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    fake: Any = types.ModuleType("wandb")

    def init(project):
        logged.append(project)
        return run

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = log_to("wandb:mine")
    assert log is not None
    log(2, {"loss": 0.5})
    assert logged == ["mine", ({"loss": 0.5}, 2)]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_what_is_not_installed_is_said(monkeypatch, name):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)  # an import of None is an ImportError
    with pytest.raises(InputError, match=f"pip install {name}"):
        log_to(name)


def test_short_work_is_silent_unless_asked_or_looked_at(capsys):
    with progress_bar("working", total=3, show=None) as bar:  # stderr is no terminal here
        bar.advance(3)
    assert capsys.readouterr().err == ""
    with progress_bar("working", total=3, show=True) as bar:
        bar.advance(3)
        bar.note("all done")
    shown = capsys.readouterr().err
    assert "working" in shown
    assert "100%" in shown
    assert "all done" in shown


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets forward."""
    now = types.SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.seconds)
    return now


def test_long_work_says_in_a_log_file_how_far_it_is(capsys, clock):
    with progress_bar("training", total=200, show=None) as bar:
        bar.advance(100)  # by the run before
        for step in range(1, 101):
            clock.seconds += 9.0
            bar.advance(1)
            if step == 30:
                bar.note("loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 54% after 0:01:03, 0:13:57 left"
    assert lines[4].endswith("; loss 0.5")
    assert lines[-1].startswith("training: 99% after 0:14:42, 0:00:18 left")
    assert len(lines) == 900 // 63


def test_work_that_grows_is_not_over_before_it_is(capsys, clock):
    seen = []
    with progress_bar("training", total=100, show=lambda *told: seen.append(told)) as bar:
        bar.advance(100)
        bar.extend(100)
        bar.note("again")
        bar.advance(50)
    assert seen == [(100, 200, "again"), (150, 200, None)]
    with progress_bar("training", total=100, show=None) as bar:
        for step in range(200):
            clock.seconds += 9.0
            bar.advance(1)
            if step == 90:
                bar.extend(100)
    shares = [int(line.split()[1][:-1]) for line in capsys.readouterr().err.splitlines()]
    assert max(shares) < 100
    assert shares[-1] >= 95
    assert len(shares) == 1800 // 63  # it went on to tell


def test_a_log_file_gets_a_hundred_lines_at_most(capsys, clock):
    with progress_bar("training", total=100_000, show=None) as bar:
        for _ in range(10_000):
            clock.seconds += 100.0
            bar.advance(10)
    assert 90 < len(capsys.readouterr().err.splitlines()) <= 100


def test_a_note_that_costs_is_asked_for_ten_times_a_second_at_most(clock):
    with progress_bar("training", total=100, show=None) as bar:
        asked = 0
        for _ in range(100):
            clock.seconds += 0.03
            bar.advance(1)  # which shows the last note again, and asks for none
            if bar.wants_note:
                asked += 1
                bar.note("loss")
        assert asked == 25
    with progress_bar("training", total=100, show=False) as bar:
        clock.seconds += 10.0
        assert not bar.wants_note
