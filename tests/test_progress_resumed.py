"""Progress of work that goes on: what was done before counts, and all of it is the whole."""

import pytest
import torch
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
    one = stochens.fit(nn.Linear(2, 2), data, progress=first, **options)
    two = stochens.fit(nn.Linear(2, 2), data, progress=again, **options)
    assert torch.equal(one.params["weight"], two.params["weight"])
    assert first.total == again.total == 3 * 4 * 3  # member-steps
    assert first.done[-1] == again.done[-1] == first.total


@pytest.mark.filterwarnings("ignore")  # so few draws are troubled
@pytest.mark.parametrize("sampler", [stochens.nuts, stochens.hmc, stochens.sgmcmc])
def test_a_run_that_goes_on_begins_where_it_was(data, sampler):
    burn = "burn_in" if sampler is stochens.sgmcmc else "warmup"
    options = {"chains": 2, burn: 4}
    run = sampler(nn.Linear(2, 2), data, samples=3, **options)
    told = Told()
    sampler(nn.Linear(2, 2), data, samples=5, resume=run, progress=told, **options)
    assert told.done[-1] == told.total


@pytest.mark.filterwarnings("ignore")
def test_langevin_tells_how_far_its_members_are(data):
    told = Told()
    for steps in (5, None):
        stochens.langevin(nn.Linear(2, 2), data, members=2, steps=steps, progress=told)
        assert told.done[-1] == told.total > 0
