"""A linear model with known noise, whose best mean-field Gaussian is a closed form."""

import math

import torch
from torch import Tensor

NOISE = 0.5
N = 60


def noisy_line() -> tuple[Tensor, Tensor]:
    """x [N, 2] whose columns are correlated, and a noisy linear function of them."""
    x = torch.randn(N, 2)
    x[:, 1] += 0.5 * x[:, 0]
    y = x @ torch.tensor([1.0, -2.0]) + 0.3 + NOISE * torch.randn(N)
    return x, y[:, None]


def exact(
    x: Tensor, y: Tensor, *, precision: Tensor, mean: Tensor, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and precision matrix of weights and bias under likelihood^(1 / weight) * prior; a prior
    mean [M, 3] has a mean for each row."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    of_data = rows.T @ rows / (weight * NOISE**2)
    right = rows.T @ y[:, 0] / (weight * NOISE**2) + precision * mean
    total = of_data + precision.diag()
    return torch.linalg.solve(total, right[..., None]).squeeze(-1), total


def hold(m: Tensor, sigma: Tensor, mean: Tensor, precision: Tensor) -> None:
    """Over members: mean and log sigma within 5 standard errors of the optimum, to which the
    average over a finite memory adds a bias of second order, (spread of log sigma)^2."""
    sd = precision.diagonal() ** -0.5
    away = (m - mean) / sd
    assert (away.mean(0).abs() < 5 * away.std(0) / math.sqrt(len(m)) + 0.01).all()
    logs = (sigma / sd).log()
    error = 5 * logs.std(0) / math.sqrt(len(m)) + logs.var(0)
    assert (logs.mean(0).abs() < error).all()
    assert logs.std(0).max() < 0.15
