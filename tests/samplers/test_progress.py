"""Progress of work that goes on: what was done before counts, and all of it is the whole."""

import pytest
import torch
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
def test_mclmc_that_goes_on_begins_where_it_was(data):
    options = {"members": 2, "training": 2, "warmup": 10}
    run = stochens.mclmc(nn.Linear(2, 2), data, draws_per_member=4, **options)
    told = Told()
    stochens.mclmc(nn.Linear(2, 2), data, draws_per_member=6, resume=run, progress=told, **options)
    assert told.done[-1] == told.total


@pytest.mark.filterwarnings("ignore")
def test_langevin_tells_how_far_its_members_are(data):
    told = Told()
    for steps in (5, None):
        stochens.langevin(nn.Linear(2, 2), data, members=2, steps=steps, progress=told)
        assert told.done[-1] == told.total > 0


COMPILED = {
    "sgmcmc": lambda **o: stochens.sgmcmc(nn.Linear(2, 2), chains=2, burn_in=2, samples=2, **o),
    "langevin": lambda **o: stochens.langevin(nn.Linear(2, 2), members=2, steps=3, **o),
    "mclmc": lambda **o: stochens.mclmc(
        nn.Linear(2, 2), members=2, training=2, warmup=10, draws_per_member=4, **o
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(torch.__version__ < COMPILES_SINCE, reason="engine='compile' is refused")
@pytest.mark.parametrize("sampler", COMPILED)
def test_samplers_tell_when_they_compile(data, sampler, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    caplog.set_level("INFO", "stochens")
    notes = []
    run = stochens.Run(engine="compile", progress=lambda *told: notes.append(told[2]))
    COMPILED[sampler](data=data, run=run)
    began = "compiling the program; torch keeps it for the next run"
    assert notes.count(began) == caplog.text.count(began) == 1
    assert len([note for note in notes if note and note.startswith("compiled in ")]) == 1
