"""Noise that is drawn once for all inputs, so that each draw of a member is one function of x."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stochens.conversions import AlwaysDropout
from stochens.errors import InputError
from stochens.members import watch
from stochens.randomness.noise import Request, draw_noise, record_noise
from stochens.randomness.seeds import PREDICTION, derive
from stochens.trees import Input


def noise_requests(net: nn.Module, x: Input) -> list[Request]:
    """What the layers ask for in one pass of one example, x [1, ...]."""
    for path, module in net.named_modules():
        if isinstance(module, AlwaysDropout):
            raise InputError(
                f"{path} is the network's own dropout, whose noise cannot be given from "
                "outside; leave noise to the method (method='dropout')"
            )
    with record_noise() as requests:
        watch(net, x.to(next(net.parameters()).device), {})
    return requests


def noise_of_draw(requests: list[Request], members: int, number: int, *, seed: int) -> list[Tensor]:
    """That of one draw of every member, each [M, ...]."""
    return draw_noise(requests, members, seed=derive(seed, PREDICTION, number))


def noise_by_name(
    requests: list[Request], members: int, *, draws: int, seed: int
) -> dict[str, Tensor]:
    """That of several draws, each [S, ...]: all of the members' first draws, then the next."""
    parts = [noise_of_draw(requests, members, number, seed=seed) for number in range(draws)]
    joined = (torch.cat(own) for own in zip(*parts, strict=True))
    return dict(zip(noise_names(requests), joined, strict=True))


def noise_names(requests: Sequence[Request]) -> list[str]:
    """By what is to be drawn and in which order: "uniform_0", "normal_1".

    >>> noise_names([Request("uniform", (1, 10)), Request("normal", (1, 10))])
    ['uniform_0', 'normal_1']
    """
    return [f"{request.kind}_{k}" for k, request in enumerate(requests)]
