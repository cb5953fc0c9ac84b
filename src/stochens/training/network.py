"""A network that was found to fit its data: what training, and every sampler, begins with."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stochens.adapter import Calling, Output, calling_for
from stochens.checks import check_network, probe_outputs, telling_rows
from stochens.likelihoods import Likelihood, check_distribution
from stochens.members import Builder, Factory, builder
from stochens.randomness.seeds import derive, seeded
from stochens.trees import Input

FEW = 4  # rows that it is tried on


class Built(NamedTuple):
    net: nn.Module  # with what the likelihood adds to it
    build: Factory  # of such networks, each initialised anew
    few: Input  # rows of x, on the CPU
    outputs: Tensor  # at these, as the network is at first
    calling: Calling | None  # how it is called, where that is not net(x)


def build_network(
    net: nn.Module | Builder,
    like: Likelihood,
    x: Input,
    y: Tensor,
    seed: int,
    *,
    dtype: torch.dtype | None = None,
    refuse: Callable[[nn.Module, Input], None] | None = None,
    output: Output | None = None,
    target: str | None = None,
) -> Built:
    """The network for x [N, ...] and y [N, ...], or an InputError that names what is wrong.

    dtype: of its parameters; its own when None. refuse(net, few): what else must not be.
    output: what of its outputs counts; target: what y was called (adapter.py).
    """
    if isinstance(net, nn.Module):
        check_network(net)  # before it is copied, which a lazy layer does not bear
    build, few = builder(net), telling_rows(x, FEW).cpu()
    plain = fresh(build, seed)
    plain = plain if dtype is None else plain.to(dtype)
    calling = calling_for(plain, few, output, target)
    if calling is not None:
        plain, build = calling.adapt(plain), build.then(calling.adapt)
    if refuse is not None:
        refuse(plain, few)
    plain = like.prepare(plain, y)
    outputs = probe_outputs(plain, few)
    like.check_outputs(outputs, y)
    check_distribution(like, outputs)
    return Built(plain, build.then(lambda net: like.prepare(net, y)), few, outputs, calling)


def fresh(build: Builder, seed: int) -> nn.Module:
    """The seed's own network, checked."""
    with seeded(derive(seed)):
        plain = build()
    check_network(plain)
    return plain
