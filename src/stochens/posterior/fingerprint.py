"""What a network computes, in a few numbers: names and shapes of parameters do not tell an
activation from another, nor constants that are no parameters."""

import copy

import torch
from torch import Tensor, nn

from stochens.members import Params, plain_attention
from stochens.methods import stochastic_places
from stochens.posterior.recipe import Inputs
from stochens.randomness.seeds import seeded
from stochens.trees import Input, InputTree

ROWS = 2
ROUNDING = 1e-3  # of the largest output: another machine, another order of sums


def fingerprint(net: nn.Module, params: Params, inputs: Inputs | None) -> Tensor | None:
    """Outputs [ROWS, ...] of the first member, without noise, at fixed inputs; None where the
    network has none that are always the same.

    net: with the method's layers; params: its trainable parameters, [M, ...].
    """
    if inputs is None:
        return None
    try:
        plain = copy.deepcopy(net).cpu().eval()
        own = dict(plain.named_parameters())
        for name, p in params.items():
            own[name].data = p[0].detach().cpu()
        for path, layer in stochastic_places(plain).items():
            if not path:
                plain = layer.plain
            else:
                plain.set_submodule(path, layer.plain)
        outputs = []
        for seed in (0, 1):
            with torch.no_grad(), seeded(seed), plain_attention():
                outputs.append(plain(_example(inputs)))
    except Exception:  # whatever a network of the user's own raises: it is not judged then
        return None
    one, other = outputs
    if not isinstance(one, Tensor) or not one.isfinite().all() or not torch.equal(one, other):
        return None
    return one


def differs(one: Tensor, other: Tensor) -> float | None:
    """How far apart they are, where that is more than rounding."""
    if one.shape != other.shape:
        return float("inf")
    apart = float((one.double() - other.double()).abs().max())
    return apart if apart > ROUNDING * float(one.abs().max()) else None


def _example(inputs: Inputs) -> Input:
    """Numbers in [-1, 1] that no generator of random ones is needed for; whole numbers are 0, and
    1 in masks."""
    one = inputs.example()
    return one.each(_numbers) if isinstance(one, InputTree) else _numbers(one)


def _numbers(one: Tensor) -> Tensor:
    zeros = one.expand(ROWS, *one.shape[1:])
    if not zeros.is_floating_point():
        return zeros.clone()
    return torch.arange(1.0, 1.0 + zeros.numel()).sin().view(zeros.shape).to(zeros)
