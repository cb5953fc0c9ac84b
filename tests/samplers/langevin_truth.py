"""Standard deviations of the regression function by long NUTS runs, for test_langevin_audit.py.

python -m tests.samplers.langevin_truth    # prints TANH anew, in minutes
"""

import torch
from torch import nn

import stochens

GRID = torch.linspace(-3, 3, 11).unsqueeze(1)  # [B, 1]


def tanh_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1)
    )


def tanh_data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """100 points of a sine with noise 0.6."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(100, 1, generator=generator) - 2
    y = torch.sin(2 * x[:, 0]) + 0.6 * torch.randn(100, generator=generator)
    return x, y


def sd_by_nuts(seed: int) -> list[float]:
    posterior = stochens.nuts(
        tanh_net(),
        tanh_data(seed),
        chains=8,
        samples=500,
        warmup=500,
        likelihood=stochens.Homoscedastic(0.6),
    )
    return [round(sd, 4) for sd in posterior.predict(GRID).epistemic.sqrt().flatten().tolist()]


TANH: dict[int, list[float]] = {
    1: [0.7711, 0.4817, 0.1906, 0.1541, 0.1595, 0.1655, 0.1484, 0.1377, 0.2121, 0.4609, 0.7258],
    2: [0.924, 0.5822, 0.1791, 0.1523, 0.1575, 0.1407, 0.1327, 0.1458, 0.2209, 0.5262, 0.8263],
}

if __name__ == "__main__":
    for seed in TANH:
        print(f"    {seed}: {sd_by_nuts(seed)},")
