"""The density that NUTS and HMC see, by the network's program and by vmap."""

import pytest
import torch
from tests.inputs.networks import Attending, TwoArguments, padded, parts, sentences
from tests.tolerance import close
from torch import nn

import stochens
from stochens import Run
from stochens.program import choice
from stochens.program.program import Program
from stochens.samplers import sampling

FEW = {"chains": 2, "samples": 3, "warmup": 2, "seed": 0}


def trees():
    a, b, y = parts()
    return TwoArguments(), ({"a": a.double(), "b": b.double()}, y)


def tokens():
    data = padded(sentences([6] * 12))
    y = data.pop("label")
    return Attending(), ({**data, "mask": data["mask"].double()}, y)


def pictures():
    x = torch.randn(12, 1, 5, 5, dtype=torch.float64)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))
    return net, (x, torch.arange(12) % 2)


def targets(monkeypatch):
    """Every target that a sampler is given from now on."""
    seen = []

    def kept(*args):
        seen.append(before(*args))
        return seen[-1]

    before = sampling._target
    monkeypatch.setattr(sampling, "_target", kept)
    return seen


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", [trees, tokens, pictures])
def test_long_work_is_done_by_the_program(make, monkeypatch):
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0)
    seen = targets(monkeypatch)
    net, data = make()
    posterior = stochens.hmc(net, data, max_leapfrogs=4, **FEW)
    (by_program,) = seen
    assert isinstance(by_program.outputs, Program)
    stochens.hmc(net, data, max_leapfrogs=4, run=Run(engine="vmap"), **FEW)
    by_vmap = seen[1]
    assert by_vmap.outputs is None
    q = torch.cat([p.flatten(1) for p in posterior.params.values()], 1)[:2]
    (energy, gradient), (known, own) = by_program(q), by_vmap(q)
    # sums over 30 rows at most, of outputs behind at most 10 layers with sums of up to 27 products
    within = close(torch.float64, terms=30, depth=20, condition=100)
    torch.testing.assert_close(energy, known, **within)
    torch.testing.assert_close(gradient, own, **within)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_short_work_is_done_by_vmap(monkeypatch):
    seen = targets(monkeypatch)
    net, (x, y) = pictures()
    stochens.hmc(net, (x.float(), y), max_leapfrogs=4, **FEW)
    assert seen[0].outputs is None
