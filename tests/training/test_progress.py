"""Progress of work that goes on: what was done before counts, and all of it is the whole."""

import re

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens.training import work
from stochens.training.engines import COMPILES_SINCE
from stochens.training.loop import train


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


def test_steps_that_memory_ran_out_in_are_done_once_more(data, monkeypatch):
    """Of 11 members and then of 5, 7 member-steps each, before blocks of 2 fit: 44 and 14."""

    def limited(task, start, members, watchers):
        if len(members) > 2:
            watchers.bar.advance(7)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train(task, start, members, watchers)

    monkeypatch.setattr(work, "train", limited)
    told, options = Told(), {"method": "regular", "members": 11, "epochs": 2, "batch_size": 15}
    with pytest.warns(UserWarning, match="at a time do not fit"):
        stochens.fit(nn.Linear(2, 2), data, progress=told, **gather(**options))
    assert told.done[-1] == told.total == 11 * 2 * 2 + 14


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
