"""SWA and SWAG against their definitions, cross-layer covariance included."""

import itertools
import math
from typing import Any

import pytest
import torch
from tests.running import fit_watched
from tests.tolerance import trained
from torch import nn

import stochens
from stochens import InputError
from stochens.posterior.low_rank import LowRankGaussian, draw
from stochens.samplers.swag import Tail


def path(steps: int, members: int = 2, seed: int = 0):
    """A random walk of two layers, as training would leave it: [steps] of {name: [M, ...]}."""
    generator = torch.Generator().manual_seed(seed)
    walk = {
        "a": torch.randn(steps, members, 2, generator=generator, dtype=torch.float64).cumsum(0),
        "b": torch.randn(steps, members, 1, 2, generator=generator, dtype=torch.float64).cumsum(0),
    }
    return [{name: values[t] for name, values in walk.items()} for t in range(steps)]


def flat(params, member):
    return torch.cat([p[member].flatten() for p in params.values()])


def test_moments_and_deviations_by_definition():
    steps = path(10)
    tail = Tail(average_from=0.5, snapshots=5, rank=3)
    for t, params in enumerate(steps, start=1):
        tail.update(params, step=t, steps=10)
    mean, spread = tail.finish(steps[-1])
    kept = steps[5:]  # steps 6 to 10: the start of the tail is not one of them
    for k in range(2):
        thetas = torch.stack([flat(p, k) for p in kept])
        torch.testing.assert_close(flat(mean, k), thetas.mean(0))
        torch.testing.assert_close(flat(spread.variance, k), thetas.var(0, correction=0))
        running = [thetas[: i + 1].mean(0) for i in range(5)]
        columns = torch.stack([thetas[i] - running[i] for i in (2, 3, 4)])
        got = torch.cat([d[k].flatten(1) for d in spread.deviations.values()], 1)
        torch.testing.assert_close(got, columns)


def test_swa_keeps_only_the_average():
    steps = path(8)
    tail = Tail(average_from=0.0, snapshots=4, rank=None)
    for t, params in enumerate(steps, start=1):
        tail.update(params, step=t, steps=8)
    mean, spread = tail.finish(steps[-1])
    assert spread is None
    expected = torch.stack([flat(steps[t - 1], 0) for t in (2, 4, 6, 8)]).mean(0)
    torch.testing.assert_close(flat(mean, 0), expected)


@pytest.mark.parametrize("steps", [2, 39, 40, 41, 118, 119, 1000])
def test_as_many_snapshots_as_are_asked_for(steps, monkeypatch):
    seen: list[int] = []
    tail = Tail(average_from=0.5, snapshots=20, rank=None)
    for step in range(1, steps + 1):
        monkeypatch.setattr(tail, "snapshot", lambda params, step=step: seen.append(step))
        tail.update({}, step=step, steps=steps)
    first = steps // 2
    assert len(seen) == min(20, steps - first)
    assert seen[0] > first
    assert seen[-1] == steps
    gaps = {b - a for a, b in itertools.pairwise(seen)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_a_rank_too_large_is_refused_at_the_first_step(xor):
    epochs = []
    options = {"members": 2, "epochs": 10, "batch_size": None}
    with pytest.raises(InputError, match=r"the tail has 5 steps.*fewer than rank = 6"):
        stochens.multiswag(
            nn.Linear(2, 2),
            xor,
            rank=6,
            run=stochens.Run(log=lambda epoch, _: epochs.append(epoch)),
            **options,
        )
    assert not epochs


def test_sample_covariance_over_the_whole_vector_is_the_definition():
    """Sigma = 1/2 (diag + D D^T / (rank - 1)), between layers too."""
    torch.manual_seed(0)
    mean = {"a": torch.zeros(1, 2), "b": torch.ones(1, 1, 2)}
    spread = LowRankGaussian(
        {name: torch.rand_like(p) for name, p in mean.items()},
        {name: torch.randn(1, 4, *p.shape[1:]) for name, p in mean.items()},
    )
    generator = torch.Generator().manual_seed(0)
    n = 40_000  # 40 draws of 1000 members that are all alike
    alike = LowRankGaussian(
        *({k: v.repeat_interleave(1000, 0) for k, v in part.items()} for part in spread)
    )
    means = {name: p.repeat_interleave(1000, 0) for name, p in mean.items()}
    parts = [draw(means, alike, generator) for _ in range(40)]
    draws = torch.cat([torch.cat([p.flatten(1) for p in part.values()], 1) for part in parts])
    d = torch.cat([v[0].flatten(1) for v in spread.deviations.values()], 1)  # [rank, P]
    sigma = 0.5 * (torch.diag(flat(spread.variance, 0)) + d.T @ d / 3)
    assert sigma[:2, 2:].abs().max() > 0.3  # the layers do covary, so the test can see it
    # a sample covariance's standard error is sqrt((S_ii S_jj + S_ij^2) / n); five of them
    diagonal = sigma.diagonal()
    error = 5 * ((diagonal[:, None] * diagonal + sigma.square()) / n).sqrt()
    assert bool(((draws.T.cov() - sigma).abs() < error).all())
    assert bool(((draws.mean(0) - flat(mean, 0)).abs() < 5 * (diagonal / n).sqrt()).all())


class Witness:
    """Keeps the parameters after every step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def update(self, params, *, step, steps):
        self.seen.append({name: p.detach().clone() for name, p in params.items()})

    def finish(self, params):
        return params, None


@pytest.mark.parametrize("method", ["regular", "dropconnect"])
def test_multiswa_averages_the_tail_of_each_member(float64, xor, method):
    xor = xor[0].double(), xor[1]
    options = {"method": method, "members": 2, "epochs": 6, "batch_size": 20, "device": "cpu"}
    witness: Any = Witness()  # no checkpoints, no state
    net = stochens.MLP(2, 4, 2)
    fit_watched(net, xor, lambda: witness, schedule="constant", **options)
    averaged = stochens.multiswa(net, xor, average_from=0.5, snapshots=9, **options)
    assert len(witness.seen) == 18
    for name, p in averaged.params.items():
        tail = torch.stack([params[name] for params in witness.seen[9:]])
        torch.testing.assert_close(p, tail.mean(0), **trained(torch.float64, steps=18, rows=20))
    assert averaged.low_rank is None


@pytest.mark.parametrize("stop", range(13))
def test_a_tail_goes_on_from_its_state(stop):
    """Stopped after any step, before the first snapshot too, and restored it ends the same."""
    generator = torch.Generator().manual_seed(0)
    steps = [{"w": torch.randn(2, 3, generator=generator)} for _ in range(12)]
    whole = Tail(0.5, snapshots=5, rank=3)
    part = Tail(0.5, snapshots=5, rank=3)
    for step, params in enumerate(steps):
        if step == stop:
            state = part.state()
            part = Tail(0.5, snapshots=5, rank=3)
            part.restore(state)
            assert len(part.deviations) == min(3, part.count)
        for tail in (whole, part):
            tail.update(params, step=step + 1, steps=12)
    mean, spread = whole.finish(steps[-1])
    again, spread_again = part.finish(steps[-1])
    assert torch.equal(mean["w"], again["w"])
    for one, two in zip(spread, spread_again, strict=True):
        assert torch.equal(one["w"], two["w"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 1}, "rank must be between 2 and snapshots"),
        ({"rank": 41}, "rank must be between 2 and snapshots"),
        ({"average_from": 1.0}, "average_from must be a share"),
        ({"snapshots": 0}, "rank must be between"),
        ({"epochs": 2, "batch_size": None}, r"the tail has 1 steps.*fewer than rank = 20"),
    ],
)
def test_bad_settings(xor, change, message):
    with pytest.raises(InputError, match=message):
        stochens.multiswag(nn.Linear(2, 2), xor, **({"members": 2} | change))


def test_low_rank_scale_in_one_dimension():
    """With one weight: variance = diag / 2 + sum d^2 / (2 (rank - 1))."""
    n = 20_000  # members that are all alike
    columns = torch.tensor([[[1.0], [-1.0], [2.0]]]).expand(n, 3, 1)
    spread = LowRankGaussian({"w": torch.full((n, 1), 4.0)}, {"w": columns})
    values = draw({"w": torch.zeros(n, 1)}, spread, torch.Generator().manual_seed(0))["w"]
    expected = 4 / 2 + 6 / (2 * 2)
    assert abs(values.var() - expected) < 5 * expected * math.sqrt(2 / n)
