"""What a training keeps to go on from, part by part."""

from types import SimpleNamespace

import pytest
import torch

from stochens.training.snapshot import Held, restore_snapshot, take_snapshot


@pytest.mark.parametrize("device", ["cuda", "cpu", None])
def test_generators_go_on_where_they_were(device, monkeypatch):
    """Those of the CPU and of the GPU that draws; the latter is played here."""
    gpu = {"state": torch.tensor([1, 2], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: gpu["state"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, _: gpu.update(state=state))
    params = {"w": torch.zeros(2, 3)}
    recorder = SimpleNamespace(state=dict, restore=lambda _: None)
    where = None if device is None else torch.device(device)
    held = Held(params, torch.optim.SGD(list(params.values())), recorder, None, None, None, where)
    torch.manual_seed(0)
    kept = take_snapshot(4, held)
    first, gpu["state"] = torch.rand(3), torch.tensor([3, 4], dtype=torch.uint8)
    assert restore_snapshot(kept, held) == 4
    assert torch.equal(torch.rand(3), first) is (device is not None)
    assert gpu["state"].tolist() == ([1, 2] if device == "cuda" else [3, 4])
