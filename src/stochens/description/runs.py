"""What will run the members of a network, as far as it is known before training."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from stochens.likelihoods import Likelihood
from stochens.members import Engine, forward_each, trainable
from stochens.program.choice import (
    BACKWARD,
    ON_CPU_FROM,
    TRIED,
    Workload,
    flops,
    program_for,
)
from stochens.program.fusions import fused_by
from stochens.program.precision import auto_dtype
from stochens.randomness.seeds import seeded
from stochens.trees import Input, for_members

LOOP = "a loop, member after member, since vmap cannot run it"


def what_trains(net: nn.Module, likelihood: Likelihood, few: Input) -> str:
    """In words, for a network and inputs few [B, ...] on the device that will train it, with
    engine="auto" and precision="auto"."""
    net = net.train()
    if isinstance(few, Tensor) and (fusion := fused_by(net, likelihood, few)) is not None:
        return fusion.name
    reason = _why_no_vmap(net, few)
    engine: Engine = "loop" if reason else "vmap"
    otherwise = f"{LOOP} ({reason})" if reason else "vmap"
    dtype = auto_dtype(net, few, coarse=likelihood.coarse)
    task = Workload(len(few), 0.0, own_rows=True, engine=engine, dtype=dtype)
    with _silent():
        if program_for(net, few[:TRIED], task) is None:
            return f"{otherwise}; it has no program"
    if few.is_cuda:
        return "its program" if dtype is None else "its program, in bfloat16"
    each = BACKWARD * flops(net, few) / len(few)
    if not each:
        return otherwise
    rows = ON_CPU_FROM / each
    return f"{otherwise}; its program where members x rows x epochs are {rows:.1e} or more"


def what_predicts(net: nn.Module, few: Input, engine: Engine) -> str:
    """Likewise for predictions of members that `engine` has trained."""
    net = net.eval()
    if engine == "vmap" and isinstance(few, Tensor):
        fusion = fused_by(net, None, few)
        if fusion is not None:
            return fusion.name
    if engine == "vmap" and few.is_cuda:
        task = Workload(len(few), 0.0, own_rows=False, gradients=False)
        with _silent():
            if program_for(net, few[:TRIED], task) is not None:
                return "its program"
    if engine != "vmap":
        return LOOP
    each = 0.0 if few.is_cuda else flops(net, few) / len(few)
    if not each:
        return "vmap"
    rows = ON_CPU_FROM / each  # whether there is one is found out when it is needed
    return f"vmap; its program, if it has one, where draws x members x rows are {rows:.1e} or more"


def _why_no_vmap(net: nn.Module, few: Input) -> str:
    """What vmap says to a step of two members with rows of their own, or nothing if it can."""
    two = {n: p.detach().expand(2, *p.shape).clone() for n, p in trainable(net).items()}
    try:
        with seeded(0, few.device):
            for p in two.values():
                p.requires_grad_()
            outputs = forward_each(net, two, for_members(few, 2))
            torch.autograd.grad(outputs.sum(), list(two.values()), allow_unused=True)
    except Exception as error:  # the network ran alone, so it is vmap that the error is about
        said = str(error).split("\n")[0].split(". ")[0].removeprefix("vmap: ").rstrip(".")
        return said or type(error).__name__
    return ""


@contextmanager
def _silent() -> Iterator[None]:
    """The log says what is chosen for a training, and this is none."""
    log = logging.getLogger("stochens")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
