"""The network of members that are given or saved: batch norms frozen, or folded into weights."""

import torch
from torch import Tensor, nn

from stochens.conversions import FrozenBatchNorm, freeze_batchnorm
from stochens.members import Params
from stochens.private_names import BatchNorm


def with_frozen_norms(net: nn.Module) -> nn.Module:
    """The same network, or a copy of it with frozen statistics where it has batch norms."""
    return freeze_batchnorm(net) if any(isinstance(m, BatchNorm) for m in net.modules()) else net


def frozen_norms(net: nn.Module) -> dict[str, FrozenBatchNorm]:
    """By name."""
    return {path: m for path, m in net.named_modules() if isinstance(m, FrozenBatchNorm)}


def give_affine(norm: FrozenBatchNorm) -> None:
    """A weight of 1 and a bias of 0 where it has none (affine=False)."""
    if norm.weight is None or norm.bias is None:
        norm.weight = nn.Parameter(torch.ones_like(norm.mean))
        norm.bias = nn.Parameter(torch.zeros_like(norm.mean))


def fold_statistics(
    mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """weight' and bias' by which statistics of mean 0 and variance 1 compute the same:

        (x - mean) / sqrt(var + eps) weight + bias  =  x / sqrt(1 + eps) weight' + bias'

    Each [C].

    >>> ones = torch.ones(1)
    >>> fold_statistics(2 * ones, 4 * ones, 3 * ones, ones, 0.0)
    (tensor([1.5000]), tensor([-2.]))
    """
    m, v = mean.double(), var.double()
    w = torch.ones_like(m) if weight is None else weight.detach().double()
    b = torch.zeros_like(m) if bias is None else bias.detach().double()
    slope = w / (v + eps).sqrt()
    return (slope * (1 + eps) ** 0.5).to(mean), (b - m * slope).to(mean)


def as_members_have_it(net: nn.Module, params: Params) -> nn.Module:
    """The plain network given to `load` with what members own, `params`, trainable: a batch norm
    can only be meant as one that is frozen, and it has weights where members have some."""
    net = with_frozen_norms(net)
    for path, norm in frozen_norms(net).items():
        if (f"{path}.weight" if path else "weight") in params:
            give_affine(norm)
    for name, p in net.named_parameters():
        if p.is_floating_point():
            p.requires_grad_(name in params)
    return net
