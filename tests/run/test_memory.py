"""Chunks of members follow the memory that is free."""

import pytest
import torch
from tests.tolerance import trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP
from stochens.run import memory
from stochens.training import ensemble, work
from stochens.training.loop import train


def test_activations_of_one_example():
    net = MLP(3, 10, 7, 2)
    # 3 inputs, and the outputs of five leaf modules: 10, 10, 7, 7, 2
    assert memory.activation_bytes(net, torch.zeros(4, 3)) == 4 * (3 + 10 + 10 + 7 + 7 + 2)
    assert memory.parameter_bytes(net) == 4 * (40 + 77 + 16)


def test_probing_leaves_the_users_randomness_alone():
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    memory.activation_bytes(net, torch.zeros(4, 3))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("free", "expected"), [(0, 1), (10**4, 1), (10**6, 53), (10**12, 53011026)]
)
def test_members_that_fit(monkeypatch, free, expected):
    """One member takes 6 * 532 bytes of parameters and 4 * 10 * 156 of activations: 9432."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    few, cpu = torch.zeros(1, 3), torch.device("cpu")
    net = MLP(3, 10, 7, 2)
    assert memory.members_that_fit(net, few, batch_size=10, device=cpu) == expected


def test_fit_trains_in_as_many_blocks_as_it_takes(float64, xor, monkeypatch):
    data = xor[0].double(), xor[1]
    whole = stochens.fit(MLP(2, 4, 2), data, method="regular", members=5, epochs=2, device="cpu")
    blocks = []

    def count(task, start, members, watchers):
        blocks.append(members)
        return train(task, start, members, watchers)

    monkeypatch.setattr(work, "train", count)
    monkeypatch.setattr(ensemble, "members_that_fit", lambda *_, **__: 2)
    cut = stochens.fit(MLP(2, 4, 2), data, method="regular", members=5, epochs=2, device="cpu")
    assert blocks == [(0, 1), (2, 3), (4,)]
    for name, p in whole.params.items():
        torch.testing.assert_close(cut.params[name], p, **trained(torch.float64, steps=2, rows=60))


def test_memory_is_planned_for_the_batches_of_a_loader(xor, monkeypatch):
    asked = []

    def seen(*_, batch_size, **__):
        asked.append(batch_size)
        return 5

    monkeypatch.setattr(ensemble, "members_that_fit", seen)
    loader = DataLoader(TensorDataset(*xor), batch_size=30)
    for data, rows in ((loader, 128), (xor, 12)):
        stochens.fit(MLP(2, 4, 2), data, members=2, epochs=1, batch_size=rows, device="cpu")
    assert asked == [30, 12]


def test_free_memory_is_some():
    assert memory.free_bytes(torch.device("cpu")) > 1 << 20
