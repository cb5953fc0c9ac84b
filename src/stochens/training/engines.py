"""The ways in which members can run on one machine, and which of them a network allows."""

import warnings

import torch
from torch import Tensor, nn

from stochens.errors import InputError, Unsuited
from stochens.members import Engine, Params, forward, take
from stochens.randomness.seeds import seeded

ENGINES = ("auto", "fused", "compile", "vmap", "loop")


def refuse_unknown(engine: str) -> None:
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, ray, got {engine!r}")


def choose_engine(engine: str, template: nn.Module, params: Params, few: Tensor) -> Engine:
    """How members are run: by vmap, unless the network cannot be or a loop is asked for."""
    refuse_unknown(engine)
    if engine == "loop":
        return "loop"
    two = take(params, slice(0, 2))
    try:
        with torch.no_grad(), seeded(0):
            forward(template, two, few)
    except RuntimeError as error:
        if engine != "auto":
            raise Unsuited(f"vmap cannot run this network: {error}") from error
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"members run one after the other, since vmap cannot run this network ({reason}); "
            "engine='loop' says that you know",
            stacklevel=3,
        )
        return "loop"
    return "vmap"
