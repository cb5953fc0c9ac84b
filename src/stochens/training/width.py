"""How wide the predictions of Gaussian members are beside the errors that they leave.

A member that learns its noise s^2 minimises E_theta[(y - f_theta)^2] / (2 s^2) + log s. Its best is
s^2 = e^2 + v, with the error e of the mean of f_theta and its variance v, and predictions have the
variance s^2 + v. That is right where theta is drawn from the posterior: a network that has taken
gamma of the N squared errors away leaves e^2 = (1 - gamma / N) noise^2, and its v at these rows is
gamma / N noise^2. Of weights that are Gaussian one by one v is more, as soon as there are more of
them than the data can tell apart.
"""

import math

import torch
from torch import Tensor, nn

from stochens.data import Source
from stochens.likelihoods import Likelihood, draws_of
from stochens.members import device_of, forward, size, take
from stochens.posterior.low_rank import params_of_draw
from stochens.randomness.seeds import seeded
from stochens.training.task import Settings, Trained
from stochens.trees import Input, cat

MEMBERS, DRAWS = 4, 32  # that are looked at; few draws would miss the long tail that they have


def times_too_wide(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    followed: float,
) -> float:
    """The standard deviation of a member's predictions over that which is right, at its own data,

        wider^2 = (s^2 + v) / e^2 * (1 - g) / (1 + g),   g = gamma / N

    in units of the noise at each row; the mean over some members. `followed` is what
    `noise_too_small` says of them, 1 / sqrt(1 - g): data that it can look at are small."""
    x, y, weights = _rows(data, like, trained)
    taken = 1 - followed**-2
    found = [
        _variance_over_errors(settings, like, trained, net, k, x, y, weights)
        for k in range(min(MEMBERS, size(trained.params)))
    ]
    return math.sqrt(sum(found) / len(found) * (1 - taken) / (1 + taken))


def _variance_over_errors(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    net: nn.Module,
    k: int,
    x: Input,
    y: Tensor,
    weights: Tensor,
) -> float:
    """(s^2 + v) / e^2 of a member, means over rows in units of s."""
    means = squares = noise = torch.zeros((), dtype=torch.float64, device=y.device)
    assert trained.low_rank is not None
    own = slice(k, k + 1)
    mean, around = take(trained.params, own), trained.low_rank.take(own)
    for number in range(DRAWS):
        theta = params_of_draw(mean, around, number, seed=0)
        with torch.no_grad(), seeded(0, y.device):
            outputs = [
                forward(net, theta, x[at : at + settings.batch_size], engine=settings.engine)
                for at in range(0, len(y), settings.batch_size)
            ]
        f, variance = draws_of(like, torch.cat(outputs, 1).double()).moments()  # [1, B, D]
        means, squares, noise = means + f[0], squares + f[0].square(), noise + variance[0]
    f, noise = means / DRAWS, noise / DRAWS
    v = (squares - DRAWS * f.square()) / (DRAWS - 1)
    errors = (y - f).square() - v / DRAWS  # the mean of so many draws is itself that far off
    left = (weights * errors / noise).mean()
    return float((weights * (1 + v / noise)).mean() / left.clamp_min(torch.finfo().tiny))


def _rows(data: Source, like: Likelihood, trained: Trained) -> tuple[Input, Tensor, Tensor]:
    """x [N, ...], y [N, D] and weights [N, 1]; a loader is read once more."""
    device = device_of(trained.params)
    x, y, weights = data.x[: data.size], data.y[: data.size], data.weights
    if data.loader is not None:
        with seeded(0):  # a shuffle draws from torch's generator
            parts = list(data.batches())
        x, y = cat([one for one, _ in parts]), torch.cat([one for _, one in parts])
        y = like.check_targets(y)
    weights = torch.ones(len(y)) if weights is None else weights
    return x.to(device), y.to(device), weights.to(device)[:, None]
