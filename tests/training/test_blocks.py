"""Blocks of members: the same in any size, also where memory runs out half-way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.running import gather
from tests.tolerance import trained
from torch import nn

import stochens
from stochens import MLP, InputError
from stochens.training import work
from stochens.training.loop import train


@pytest.fixture
def data(float64):
    x, y = stochens.toy_set("a", n=40)
    return x.double(), y


def short_of_memory(monkeypatch, most: int) -> list[int]:
    """From now on a block of more than `most` members is too much; returns the sizes tried."""
    tried: list[int] = []

    def limited(*args):
        members = args[2]
        tried.append(len(members))
        if len(members) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train(*args)

    monkeypatch.setattr(work, "train", limited)
    return tried


OPTIONS = {"members": 11, "epochs": 2, "batch_size": 20, "method": "regular"}


def test_where_memory_runs_out_blocks_are_halved_and_this_is_said_once(data, monkeypatch):
    whole = stochens.fit(MLP(2, 4, 2), data, **gather(**OPTIONS))
    tried = short_of_memory(monkeypatch, 2)
    with pytest.warns(UserWarning, match="11 members at a time do not fit") as said:
        halved = stochens.fit(MLP(2, 4, 2), data, **gather(**OPTIONS))
    assert tried == [11, 5, 2, 2, 2, 2, 2, 1]
    assert len([w for w in said if "at a time" in str(w.message)]) == 1
    assert halved.members == whole.members
    for name, p in whole.params.items():
        torch.testing.assert_close(
            halved.params[name], p, **trained(torch.float64, steps=4, rows=20)
        )
    torch.testing.assert_close(halved.history.loss, whole.history.loss)


def test_one_member_that_does_not_fit_is_one_error(data, monkeypatch):
    short_of_memory(monkeypatch, 0)
    one = OPTIONS | {"members": 1}
    with pytest.raises(InputError, match="one member does not fit into memory"):
        stochens.fit(MLP(2, 4, 2), data, **gather(**one))


def test_members_that_are_coupled_cannot_be_parted(data, monkeypatch):
    short_of_memory(monkeypatch, 4)
    with pytest.raises(InputError, match="the members do not fit into memory"):
        stochens.fit(MLP(2, 4, 2), data, **gather(repulsion=0.1, **OPTIONS))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_memory_is_the_result_and_what_one_block_needs():
    """In units of one member's parameters. A block needs its parameters, their gradients, Adam's
    two moments, the prior's weight of each, three such arrays inside a step, the network that a
    member is copied from and the one that is run: 10. Each further member adds itself: 7 more. 7.3
    and 15.4 were measured, 1.1 more than these 7, whose cause is not known. All members' starts and
    a copy when blocks are joined made 3 of it for each."""
    script = Path(__file__).with_name("peak_of_blocks.py")
    source = Path(stochens.__file__).parents[1]
    # so that what is freed goes back to the system at once, and not into a heap with holes
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "100000", "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    one, eight = (float(line) for line in done.stdout.split())
    assert 4 < one < 10.5  # Adam's two moments, gradients and parameters at least
    assert eight < 10.5 + 7


@pytest.mark.parametrize("chunk", [None, 2])
def test_parameters_to_go_on_from_stay_as_they_are(data, chunk):
    first = stochens.fit(MLP(2, 4, 2), data, **gather(**OPTIONS))
    before = {name: p.clone() for name, p in first.params.items()}
    stochens.fit(MLP(2, 4, 2), data, start=first.params, **gather(chunk=chunk, **OPTIONS))
    assert all(torch.equal(first.params[name], p) for name, p in before.items())


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout", "gaussian"])
def test_noise_is_the_members_own_in_any_block(data, method, engine, float64):
    """A function of (seed, member, step): the same members in blocks of 3, 2 and 1."""
    data = data[0].double(), data[1]
    options = {"method": method, "members": 3, "epochs": 2, "batch_size": 20, "engine": engine}
    whole, *parts = (
        stochens.fit(MLP(2, 4, 2), data, **gather(chunk=n, **options)) for n in (3, 2, 1)
    )
    other = stochens.fit(MLP(2, 4, 2), data, **gather(**options | {"seed": 1}))
    for name, p in whole.params.items():
        assert not torch.equal(p, other.params[name])
        for part in parts:
            # float64 rounding, of blocks of another size, grown by four steps
            torch.testing.assert_close(part.params[name], p, rtol=1e-9, atol=1e-11)


def test_a_training_on_a_cpu_has_nothing_to_log(data, caplog):
    """It asks for no CUDA graph, which would be refused with a line in the log."""
    stochens.fit(MLP(2, 4, 2), data, device="cpu", **gather(**OPTIONS))
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore:the network's own dropout")
def test_a_networks_own_dropout_goes_on_where_it_was(data, tmp_path):
    """It draws from torch's generator, whose state is part of a checkpoint."""

    def net():
        return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    options = {"method": "regular", "members": 2, "epochs": 4, "batch_size": 20, "device": "cpu"}
    whole = stochens.fit(net, data, **gather(**options))

    def stop(epoch, values):
        if epoch == 1:
            raise KeyboardInterrupt

    options |= {"checkpoint": tmp_path / "kept", "every": 0.0}
    with pytest.raises(KeyboardInterrupt):
        stochens.fit(net, data, **gather(log=stop, **options))
    again = stochens.fit(net, data, **gather(**options))
    for name, p in whole.params.items():
        assert torch.equal(again.params[name], p)
