"""Progress of work that goes on: what was done before counts, and all of it is the whole."""

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens


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
