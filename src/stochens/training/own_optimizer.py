"""An optimiser of the user's own: `fit(optimizer=lambda params: torch.optim.RMSprop(params))`."""

from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.members import Params
from stochens.training.schedules import OptimizerOf

TRIED = 3  # steps
WITHIN = 1e-6  # of a step in float64, between a member alone and beside another


def own_optimizer(make: OptimizerOf, params: Params) -> torch.optim.Optimizer:
    """It, for parameters [M, ...]; a group's "factor" is the rate that it was given."""
    given = list(params.values())
    optimizer: Any = make(given)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            "optimizer must be a function of a list of parameters that gives a "
            f"torch.optim.Optimizer; it gives a {type(optimizer).__name__}"
        )
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if sorted(held) != sorted(map(id, given)):
        raise InputError(
            f"the optimizer has {len(held)} parameters, and must have the {len(given)} that it is "
            "given, each once; those that shall not learn are frozen by requires_grad_(False)"
        )
    for group in optimizer.param_groups:
        if "lr" not in group:
            raise InputError(
                f"{type(optimizer).__name__} has no 'lr' in its groups, which the schedule changes"
            )
        group["factor"] = float(group["lr"])
    return optimizer


def refuse_mixing(make: OptimizerOf, params: Params, *, kept: bool) -> None:
    """Where a member's steps depend on the members beside it, as they do where a norm is taken over
    a whole tensor. Two members are moved by random gradients, and the second of them alone.

    `kept`: whether it must go on from a checkpoint, which has tensors only.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn() -> list[Tensor]:
        shapes = ((2, *p.shape[1:]) for p in params.values())
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    start, gradients = drawn(), [drawn() for _ in range(TRIED)]
    ended = []
    for rows in (slice(0, 2), slice(1, 2)):
        own = {str(k): p[rows].clone().requires_grad_() for k, p in enumerate(start)}
        optimizer = own_optimizer(make, own)
        for step in gradients:
            for p, g in zip(own.values(), step, strict=True):
                p.grad = g[rows].clone()
            try:
                optimizer.step()
            except (RuntimeError, TypeError, ValueError) as error:
                raise InputError(
                    f"{type(optimizer).__name__} cannot step for parameters stacked over members "
                    f"by their gradients alone: {error}"
                ) from error
        ended.append([p.detach()[-1] for p in own.values()])
    for p, alone in zip(*ended, strict=True):
        if not torch.allclose(p, alone, rtol=WITHIN, atol=WITHIN):
            raise InputError(
                f"{type(optimizer).__name__} moves a member otherwise when another is beside it: "
                "it takes a norm, a matrix or a draw over the whole tensor [M, ...]. Use one that "
                "works element by element, or treats the first axis apart"
            )
    state = [v for values in optimizer.state.values() for v in values.values() if v is not None]
    other = next((v for v in state if not isinstance(v, Tensor)), None)
    if kept and other is not None:
        raise InputError(
            f"{type(optimizer).__name__} keeps a {type(other).__name__} in its state, and a "
            "checkpoint has tensors only; leave checkpoint out, or make it a tensor"
        )


def describe_own(name: Any) -> str | None:
    """A word for it that a training that goes on must share; None where it has a name."""
    if isinstance(name, str):
        return None
    try:
        optimizer = name([torch.zeros(1, 1, requires_grad=True)])
        return f"{type(optimizer).__name__} {optimizer.defaults}"
    except Exception:  # it may count on the parameters that it is for
        return str(getattr(name, "__qualname__", type(name).__qualname__))
