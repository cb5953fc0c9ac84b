"""A network that was found to fit its data: what training, and every sampler, begins with."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stochens.adapter import Calling, Output, calling_for
from stochens.checks import check_network, probe_outputs, telling_rows
from stochens.likelihoods import Likelihood, check_distribution
from stochens.members import Builder, Factory, builder, copy_network
from stochens.methods import Method, output_layer
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
    build, few = builder(net).then(stay_in_eval), telling_rows(x, FEW).cpu().clone()
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


def adapt_network(
    net: nn.Module | Builder,
    rules: Sequence[Method],
    x: Input,
    seed: int,
    *,
    output: Output | None = None,
    target: str | None = None,
) -> tuple[nn.Module, str | None]:
    """The network with what its members own of it, and the name of its output layer.

    Its own weights are the ones that all members share, so that a function that builds it is called
    once. x [N, ...]: to see which layer comes last.
    """
    if isinstance(net, nn.Module):
        own = copy_network(net).cpu()
    else:
        with seeded(derive(seed)):
            own = builder(net)()
    modes = {module: module.training for module in own.modules()}
    try:
        few = telling_rows(x, FEW).cpu().clone()
        calling = calling_for(own.eval(), few, output, target)
        last = output_layer(own if calling is None else calling.adapt(own), few)
    except Exception:  # said better by the probe that follows
        last = None
    for module, mode in modes.items():
        module.training = mode
    for rule in rules:
        own = rule.adapt(own, output=last)
    return own, last


def stay_in_eval(net: nn.Module) -> nn.Module:
    """Frozen parts that come in eval mode stay in it while the rest is trained: their dropout is
    off, so that they are one function of x for all members. The same module.

    >>> body = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5)).requires_grad_(False).eval()
    >>> net, x = stay_in_eval(nn.Sequential(body, nn.Linear(64, 1))).train(), torch.ones(1, 3)
    >>> bool((net(x) == net(x)).all())
    True
    """
    inside: set[nn.Module] = set()
    for module in net.modules():
        frozen = [not p.requires_grad for p in module.parameters()]
        if module not in inside and frozen and all(frozen) and not module.training:
            inside.update(module.modules())
            module.register_forward_pre_hook(_to_eval)
    return net


def _to_eval(module: nn.Module, args: tuple[object, ...]) -> None:
    if module.training:  # whoever trains the network puts all of it into training mode
        module.eval()


def fresh(build: Builder, seed: int) -> nn.Module:
    """The seed's own network, checked."""
    with seeded(derive(seed)):
        plain = build()
    check_network(plain)
    return plain
