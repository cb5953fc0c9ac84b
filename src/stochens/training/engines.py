"""The ways in which members can run on one machine, and which of them a network allows."""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from stochens.errors import InputError, Unsuited, outside
from stochens.members import Engine, Params, forward, forward_each, size, take
from stochens.program.program import build
from stochens.program.trace import Untraceable
from stochens.randomness.seeds import seeded
from stochens.run.memory import chosen_device
from stochens.run.options import CUDA_ONLY, Run
from stochens.trees import Input, for_members

ENGINES = ("auto", "fused", "compile", "vmap", "loop")
# Older ones stumble over what we give torch.compile: 2.8 to 2.10 over a context manager that a
# function returns, 2.6 over the gradient in float64 on a CPU.
COMPILES_SINCE = "2.11"


def refuse_unknown(engine: str, known: Sequence[str] = ENGINES) -> None:
    if engine not in known:
        raise InputError(f"engine must be one of {', '.join(known)}, ray, got {engine!r}")


def place_for(run: Run) -> torch.device:
    """Of what is done here: with a cluster the checks alone, whose blocks have their own."""
    elsewhere = run.cluster is not None
    place = chosen_device(run.device, elsewhere=elsewhere)
    known = not elsewhere or run.device is not None
    if known and run.precision in CUDA_ONLY and place.type != "cuda":
        raise InputError(
            f"precision={run.precision!r} is for CUDA, got device {place.type!r}; use 'float32'"
        )
    return torch.device("cpu") if elsewhere else place


def choose_engine(
    engine: str,
    template: nn.Module,
    params: Params,
    few: Input,
    *,
    own_rows: bool,
    training: bool = True,
    on_gpu: bool = False,
) -> Engine:
    """How members are run: by vmap, unless the network cannot be or a loop is asked for.

    own_rows: whether a step gives each member rows of its own, as in a training on mini-batches;
    a network that branches on x (`if (x == 0).all()`) allows vmap only where all share them.
    training: whether steps run in training mode. on_gpu: whether the network's program trains it,
    which may do what vmap cannot.
    """
    refuse_unknown(engine)
    if engine == "compile" and torch.__version__ < COMPILES_SINCE:  # as versions, not as strings
        raise InputError(
            f"engine='compile' needs torch {COMPILES_SINCE} or newer, this is "
            f"{torch.__version__}; use engine='auto'"
        )
    if engine == "loop":
        return "loop"
    try:
        _try_vmap(template, take(params, slice(0, 2)), few, own_rows=own_rows, training=training)
    except Exception as error:  # the network ran alone, so it is vmap that the error is about
        reason = _first_sentence(str(error)) or type(error).__name__
        if engine != "auto":
            raise Unsuited(f"vmap cannot run this network: {reason}; use engine='loop'") from error
        if on_gpu and _traceable(template, few):
            return "loop"
        warnings.warn(
            f"members run one after the other, since vmap cannot run this network ({reason}); "
            "engine='loop' does the same without this warning",
            stacklevel=outside(),
        )
        return "loop"
    return "vmap"


def _traceable(template: nn.Module, few: Input) -> bool:
    try:
        build(template, few)
    except Untraceable:
        return False
    return True


def _first_sentence(said: str) -> str:
    """What torch says next is meant for its own developers.

    >>> _first_sentence("vmap: no control flow here. Please file an issue")
    'no control flow here'
    """
    return said.split("\n")[0].split(". ")[0].removeprefix("vmap: ").rstrip(".")


def _try_vmap(
    template: nn.Module, two: Params, few: Input, *, own_rows: bool, training: bool
) -> None:
    """A step with its gradient, and a prediction, for two members."""
    mode = template.training
    own = {name: p.detach().clone().requires_grad_() for name, p in two.items()}
    try:
        with seeded(0):
            template.train(training)
            if own_rows:
                outputs = forward_each(template, own, for_members(few, size(own)))
            else:
                outputs = forward(template, own, few)
            if outputs.requires_grad:
                torch.autograd.grad(outputs.sum(), list(own.values()), allow_unused=True)
            with torch.no_grad():
                forward(template.eval(), two, few)
    finally:
        template.train(mode)
