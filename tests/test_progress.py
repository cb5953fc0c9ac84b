"""Loggers that users may or may not have, and the bar."""

import sys
import types

import pytest
import torch

import stochens
from stochens import InputError
from stochens.progress import log_to, progress_bar


def test_tensorboard_gets_every_value(monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            written.append("flush")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    log_to("tensorboard:here")(3, {"loss": 1.5})
    assert written == ["here", ("loss", 1.5, 3), "flush"]


def test_nothing_is_written_when_the_data_are_bad(monkeypatch):
    made = []
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = made.append
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    data = (torch.full((4, 2), float("nan")), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match="x must be finite"):
        stochens.fit(stochens.MLP(2, 2), data, method="regular", log="tensorboard")
    assert made == []


def test_wandb_gets_every_value(monkeypatch):
    logged = []
    run = types.SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    fake = types.ModuleType("wandb")
    fake.init = lambda project: logged.append(project) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log_to("wandb:mine")(2, {"loss": 0.5})
    assert logged == ["mine", ({"loss": 0.5}, 2)]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_what_is_not_installed_is_said(monkeypatch, name):
    module = "torch.utils.tensorboard" if name == "tensorboard" else "wandb"
    monkeypatch.setitem(sys.modules, module, None)  # an import of None is an ImportError
    with pytest.raises(InputError, match=f"pip install {name}"):
        log_to(name)


def test_the_bar_is_silent_unless_asked_or_looked_at(capsys):
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
