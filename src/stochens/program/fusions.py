"""The kernels that run a whole network, and the networks that each one runs: by what a network
computes, as graph.py sees it, whatever its class.

A kernel is taken after it has been seen to give what the network gives on a few rows.
"""

import contextlib
import logging
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stochens.kernels.mlp import alone_on_the_cores
from stochens.kernels.noise import words
from stochens.likelihoods import Likelihood
from stochens.members import Params, forward, size, take
from stochens.program import mlp_fusion, resnet_fusion
from stochens.program.choice import TRIED, WITHIN, distance, say, two_members
from stochens.program.graph import Disturbed, certain_graph, graph_of
from stochens.program.known import findings
from stochens.program.nodes import Graph
from stochens.program.program import Noise
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import seeded

log = logging.getLogger("stochens")

Nll = Callable[[Params, Any, int | Tensor], Tensor]  # (params, rows [M, B] or None, step) -> [M]
Outputs = Callable[[Params, Tensor, Noise], Tensor]  # (params, x [B, ...], whose) -> [M, B, C]


class FusedNll(Protocol):
    def __call__(
        self,
        graph: Graph,
        likelihood: Likelihood,
        x: Tensor,
        y: Tensor,
        members: tuple[int, ...],
        seed: int,
        /,
    ) -> Nll | None: ...


class Fusion(NamedTuple):
    """A kernel for whole networks; its functions are None, or False, for those that it cannot."""

    name: str  # as `describe` says it
    takes: Callable[[Graph, Likelihood | None, Tensor], bool]
    nll: FusedNll
    outputs: Callable[[Graph, Tensor, torch.dtype], Outputs | None]
    bf16: bool = False  # whether it always computes in bfloat16
    recordable: bool = False  # whether a CUDA graph can hold it
    context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


MLP = Fusion(
    "the MLP kernel",
    mlp_fusion.takes,
    mlp_fusion.nll,
    mlp_fusion.outputs,
    context=alone_on_the_cores,
)
RESNET = Fusion(
    "the ResNet kernel, in bfloat16",
    resnet_fusion.takes,
    resnet_fusion.nll,
    resnet_fusion.outputs,
    bf16=True,
    recordable=True,
)
FUSIONS = (MLP, RESNET)


def fused_by(net: nn.Module, likelihood: Likelihood | None, x: Tensor) -> Fusion | None:
    """The kernel for a network in its mode and inputs like x [B, ...], on their device; likelihood:
    None for predictions.

    >>> from stochens.likelihoods import Categorical
    >>> net = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    >>> fused_by(net, Categorical(), torch.zeros(4, 3)) is None
    True
    """
    graph = graph_of(net)
    if graph is None:
        return None
    return next((fusion for fusion in FUSIONS if fusion.takes(graph, likelihood, x)), None)


def fused_nll(
    net: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    members: tuple[int, ...],
    seed: int,
    *,
    bf16: bool = True,
) -> tuple[Fusion, Nll] | None:
    """The mean NLL of all members on rows of x [N, ...] and y by a kernel, or None where none fits;
    bf16: whether one may that computes in it."""
    graph = graph_of(net)
    if graph is None:
        return None
    for fusion in _allowed(bf16):
        found = fusion.nll(graph, likelihood, x, y, members, seed)
        if found is not None and _holds(fusion, graph, net, None, x[:TRIED]):
            say(net, f"members run by {fusion.name}")
            return fusion, found
    return None


def fused_batch_nll(
    net: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    members: tuple[int, ...],
    seed: int,
    *,
    bf16: bool = True,
) -> tuple[Fusion, Callable[[Tensor, Tensor], Nll | None]] | None:
    """Likewise for batches that come unseen, like x [B, ...]: a function (x, y) of a batch -> its
    mean NLL, or None where the kernel cannot take it."""
    graph = graph_of(net)
    if graph is None:
        return None
    for fusion in _allowed(bf16):
        if fusion.takes(graph, likelihood, x) and _holds(fusion, graph, net, None, x[:TRIED]):
            say(net, f"members run by {fusion.name}")

            def of(x: Tensor, y: Tensor, fusion: Fusion = fusion) -> Nll | None:
                return fusion.nll(graph, likelihood, x, y, members, seed)

            return fusion, of
    return None


def fused_outputs(
    net: nn.Module, params: Params, x: Tensor, *, bf16: bool = True
) -> Outputs | None:
    """Outputs of all members for inputs like x [B, ...] by a kernel, likewise. What a network
    computes is looked at once, and so is whether the kernel gives that on inputs of this kind.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    >>> params = {name: p[None] for name, p in net.named_parameters()}
    >>> fused_outputs(net, params, torch.zeros(4, 3)) is None
    True
    """
    kept = findings(net)
    graph = _kept_graph(net, kept, x.device)
    if graph is None:
        return None
    dtype = next(iter(params.values())).dtype
    for fusion in _allowed(bf16):
        found = fusion.outputs(graph, x, dtype)
        if found is None:
            continue
        case = (fusion.name, dtype, tuple(x.shape[1:]), x.dtype, x.device)
        if case not in kept:
            kept[case] = _holds(fusion, graph, net, take(params, slice(1)), x[:TRIED])
        if kept[case]:
            say(net, f"members run by {fusion.name}")
            return found
    return None


def _kept_graph(net: nn.Module, kept: dict[Hashable, Any], device: torch.device) -> Graph | None:
    if "graph" not in kept:
        try:
            with seeded(0, device):  # a network that draws leaves no trace of it
                kept["graph"] = certain_graph(net)
        except Disturbed:
            return None
    found: Graph | None = kept["graph"]
    return found


def _allowed(bf16: bool) -> list[Fusion]:
    return [fusion for fusion in FUSIONS if bf16 or not fusion.bf16]


def _holds(
    fusion: Fusion, graph: Graph, net: nn.Module, params: Params | None, few: Tensor
) -> bool:
    """Whether the kernel gives what the network gives on few [B, ...], for these members; None: for
    two that begin at the network's own parameters."""
    with torch.no_grad(), seeded(0, few.device):
        params = two_members(net, few.device) if params is None else params
        dtype = next(iter(params.values())).dtype
        outputs = fusion.outputs(graph, few, dtype)
        if outputs is None:
            return True
        ids = torch.arange(size(params), device=few.device)
        noise = Noise(ids, torch.zeros(1, dtype=torch.int64, device=few.device))
        with member_noise(*noise, words):
            known = forward(net, params, few, engine="loop")
        with member_noise(*noise, words):
            off = distance(outputs(params, few, noise), known)
    allowed = WITHIN[torch.bfloat16 if fusion.bf16 else dtype]
    if off <= allowed or not bool(known.isfinite().all()):
        return True
    log.warning(
        "members do not run by %s, which is off by %.1e where %.1e is allowed; please report this "
        "network",
        *(fusion.name, off, allowed),
    )
    return False
