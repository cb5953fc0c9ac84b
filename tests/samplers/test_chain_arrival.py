"""The numbers that tell whether chains have arrived, on chains that are made for them."""

import math

import pytest
import torch

from stochens.posterior.chains import Chains
from stochens.samplers.chain_arrival import arrival_troubles, measure_arrival

M, N = 10, 60


def made(
    *,
    members: int = M,
    rise: float = 0.0,
    virial: float = 1.0,
    stiff: float = 1.0,
    error: float = 1e-3,
    failed: int = 0,
):
    """Independent draws whose log density rises by `rise` nats in all, and so on."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(5, members, N, generator=generator, dtype=torch.float64)
    time = torch.linspace(0, 1, N, dtype=torch.float64)
    stats = {
        "likelihood": noise[0] - rise * time,
        "prior": noise[1],
        "error": torch.full((members, N), error),
        "virial": virial + 0.1 * noise[2],
        "stiff": stiff + noise[4],
        "failed": torch.full((members, N), failed),
    }
    settings = {"energy_variance": 1e-3}
    chains = Chains(sampler="mclmc", count=members, stats=stats, state={}, settings=settings)
    return chains, noise[3].unsqueeze(2)


def test_draws_that_are_right_are_not_told_of():
    found = measure_arrival(*made())
    assert arrival_troubles(found) == []
    value, error = found.virial
    assert value == pytest.approx(1, abs=4 * error)
    assert error == pytest.approx(0.1 / (N * M) ** 0.5, rel=0.7)  # a spread of 10: 3 times 24 %
    assert found.energy_variance == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rise": 30.0}, "log density is still rising"),
        ({"rise": -30.0}, "log density is still falling"),
        ({"virial": 1.2}, "too wide"),
        ({"virial": 0.8}, "too narrow"),
        ({"stiff": 0.7}, "right: the draws are too narrow there"),
        ({"stiff": 1.5}, "right: the draws are too wide there"),
        ({"error": 0.01}, "energy variance is 0.01"),
        ({"failed": 1}, "600 steps failed"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_each_fault_is_told_by_its_name(wrong, words):
    said = arrival_troubles(measure_arrival(*made(**wrong)))
    assert len(said) == 1
    assert words in said[0]


def test_predictions_that_drift_are_told_of():
    """By a third of 2 standard deviations, from the middle third to the last."""
    chains, outputs = made()
    drifting = outputs + 2 * torch.linspace(0, 1, N, dtype=torch.float64).view(1, N, 1)
    found = measure_arrival(chains, drifting)
    spread = math.sqrt(1 + 4 / 12)
    assert found.drift == pytest.approx(2 / 3 / spread, abs=0.2)  # 0.2: 10 members of 20 draws each
    assert "predictions drift" in arrival_troubles(found)[0]


def test_few_members_are_not_judged_by_how_they_differ():
    found = measure_arrival(*made(members=3, rise=30.0))
    assert math.isnan(found.energy_drift[1])
    assert math.isnan(found.drift_chance)
    assert "nan" not in str(found)


def test_chains_without_a_stiffest_direction_are_judged_by_the_rest():
    """As `mclmc` made them before it looked for one."""
    chains, outputs = made()
    del chains.stats["stiff"]
    found = measure_arrival(chains, outputs)
    assert math.isnan(found.stiff[0])
    assert arrival_troubles(found) == []
