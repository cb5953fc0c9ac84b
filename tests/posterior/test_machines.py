"""What the driver of a prediction on many machines decides by itself, without a cluster."""

from typing import Any

import pytest
import torch
from torch import nn

import stochens
from stochens import Posterior
from stochens.posterior import machines
from stochens.run.cluster.connect import Room


@pytest.mark.parametrize(
    ("rows", "slots", "ends"), [(7, 1, (2, 4, 6, 7)), (9, 1, (4, 8, 9)), (9, 2, (2, 4, 6, 8, 9))]
)
def test_pieces_are_whole_batches_and_some_for_each_worker(rows, slots, ends, monkeypatch):
    """Batches of 2 rows, 4 pieces at most for a worker; a posterior on the CPU is predicted there,
    whatever the machines have, and all rows are sent at once, however many there are."""
    seen: dict[str, Any] = {"sent": 0}

    def room(ray, cluster, device):
        seen["device"] = device
        return Room(slots, gpu=False, memory=None)

    def here(ray, cluster, where, work, shared, pieces, **_):
        seen.update({"pieces": list(pieces.values()), "sent": seen["sent"] + 1})
        return {name: work(shared, at, lambda *_: None) for name, at in pieces.items()}, {}

    monkeypatch.setattr(machines, "connect", lambda cluster: None)
    monkeypatch.setattr(machines, "room", room)
    monkeypatch.setattr(machines, "run_pieces", here)
    monkeypatch.setattr("stochens.posterior.pieces.PIECE", 1)
    torch.manual_seed(0)
    posterior = Posterior.of([nn.Linear(2, 3) for _ in range(2)], example=torch.zeros(1, 2))
    x = torch.randn(rows, 2)
    found = posterior.predict(x, batch_size=2, run=stochens.Run(engine="ray"))
    assert torch.equal(found.mean, posterior.predict(x, batch_size=2).mean)
    assert (seen["device"], seen["sent"]) == ("cpu", 1)
    assert [min(at.stop, rows) for at in seen["pieces"]] == list(ends)
    assert [at.start for at in seen["pieces"]] == [0, *ends[:-1]]
