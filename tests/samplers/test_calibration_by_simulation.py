"""Simulation-based calibration of `mclmc` (Talts et al., 2018) on a small network.

Parameters from the prior give data; then the rank of the true prediction among those of independent
draws from the posterior is uniform. Each member gives one draw, so that draws are independent.
"""

import pytest
import torch
from scipy import stats
from tests.samplers.going_on import quiet
from torch import nn

import stochens
from stochens.members import forward
from stochens.randomness.seeds import seeded

DATA_SETS, MEMBERS, NOISE = 200, 19, 0.5
ALARM = 1e-4  # how often a sampler that is right fails, for each quantity
AT = torch.tensor([[-2.5], [0.0], [1.0]])  # inside of the data, at their edge and outside


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))


def simulated(number: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Data (x, y) of 10 points, and the true f at AT, [3]."""
    net = network()
    with seeded(number), torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p))
        x = torch.linspace(-1, 1, 10).unsqueeze(1)
        y = net(x)[:, 0] + NOISE * torch.randn(10)
        return (x, y), net(AT)[:, 0]


@pytest.mark.long
@pytest.mark.parametrize("target", [None, 0.9], ids=["plain", "trials"])
@quiet
def test_ranks_are_uniform(target):
    """chi^2 over the 20 ranks of 200 data sets, 10 in each: enough for its distribution."""
    ranks = torch.zeros(DATA_SETS, len(AT), dtype=torch.long)
    for k in range(DATA_SETS):
        data, truth = simulated(k)
        posterior = stochens.mclmc(
            network(),
            data,
            members=MEMBERS,
            draws_per_member=1,
            thin=100,
            warmup=1000,
            training=100,
            target_accept=target,
            likelihood=stochens.Homoscedastic(NOISE),
            seed=k,
            progress=False,
        )
        f = forward(posterior.net, posterior.params, AT)[..., 0]  # [MEMBERS, 3]
        ranks[k] = (f < truth).sum(0)
    for each in ranks.T:
        counts = each.bincount(minlength=MEMBERS + 1)
        chance = stats.chisquare(counts.numpy()).pvalue
        assert chance > ALARM, counts.tolist()
