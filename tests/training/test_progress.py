"""Progress of work that goes on: what was done before counts, and all of it is the whole."""

import re

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens.training.engines import COMPILES_SINCE


class Told:
    """Adds up what a bar is told."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.total = 0

    def __call__(self, done: int, total: int, note: str | None) -> None:
        self.done.append(done)
        self.total = total


@pytest.fixture
def data():
    return stochens.toy_set("b", n=30)


def test_a_training_that_was_done_is_whole_at_once(data, tmp_path):
    options = {"method": "regular", "members": 3, "epochs": 4, "batch_size": 10}
    options["checkpoint"] = tmp_path / "run"
    first, again = Told(), Told()
    one = stochens.fit(nn.Linear(2, 2), data, progress=first, **gather(**options))
    two = stochens.fit(nn.Linear(2, 2), data, progress=again, **gather(**options))
    assert torch.equal(one.params["weight"], two.params["weight"])
    assert first.total == again.total == 3 * 4 * 3  # member-steps
    assert first.done[-1] == again.done[-1] == first.total


@pytest.mark.skipif(torch.__version__ < COMPILES_SINCE, reason="engine='compile' is refused")
def test_compiling_is_told_when_it_begins_and_when_it_ends(data, monkeypatch, caplog, capsys):
    """For each size of a batch, which torch compiles by itself: 20 rows, and the 10 that are left.
    Where there is no bar, in a line of its own."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    caplog.set_level("INFO", "stochens")
    run = stochens.Run(engine="compile")
    options = {"method": "regular", "members": 2, "epochs": 2, "batch_size": 20, "run": run}
    stochens.fit(nn.Linear(2, 2), data, **options)
    began = "compiling the program; torch keeps it for the next run"
    for said in (capsys.readouterr().err, caplog.text):
        assert said.count(began) == 2
        assert len(re.findall(r"compiled in \d+\.\d s", said)) == 2
    notes = []
    stochens.fit(nn.Linear(2, 2), data, progress=lambda *told: notes.append(told[2]), **options)
    assert notes.count(began) == 2
