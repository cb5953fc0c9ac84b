"""The folder of a training's checkpoints: who may work there, and what may go on from it."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stochens.data import Source
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Params, shared_by_all
from stochens.posterior.recipe import Recipe, describe_fully
from stochens.run.checkpoints import Checkpoints, Keeper, alone_in, as_read, digest, stoppable
from stochens.training.own_optimizer import describe_own
from stochens.training.request import FitRequest
from stochens.training.schedules import Optimizer, describe_schedule
from stochens.training.task import Collector, Settings
from stochens.trees import named

# 1: noise was drawn otherwise; 2: one group of parameters; 3: kl_weight was called temperature, and
# a short batch was a whole step; 4: as it still was to natural gradients
FORMAT = "stochens training 5"
Stop = Callable[[], BaseException | None]


def held_by(stack: contextlib.ExitStack, checkpoint: str | Path | None) -> Stop:
    """The checkpoint folder is ours alone, and signals wait for the end of a step."""
    if checkpoint is None:
        return lambda: None
    stack.enter_context(alone_in(checkpoint))
    return stack.enter_context(stoppable(checkpoint))


def saved_block_size(
    checkpoint: str | Path | None, ids: tuple[int, ...], chunk: int | None
) -> int | None:
    """Of the blocks that are kept there: the memory that chooses it may be another now."""
    for path in sorted(Path(checkpoint).glob("members-*/0*")) if checkpoint else ():
        first, last = (int(word) for word in path.parent.name.split("-")[1:])
        if first in ids and last in ids:
            size = ids.index(last) - ids.index(first) + 1
            if chunk is not None and min(chunk, len(ids)) != size:
                raise InputError(
                    f"{checkpoint} holds blocks of {size} members, which cannot go on in blocks of "
                    f"chunk = {chunk}; leave chunk out, or choose another folder"
                )
            return size if chunk is None else chunk
    return None


def identity(
    settings: Settings, template: nn.Module, like: Likelihood, recipe: Recipe, data: Source
) -> dict[str, Any]:
    """What a training that goes on must share with the one before it; how it is run is no part."""
    plain = dataclasses.asdict(settings)
    # how it runs; and what `own_identity` has
    for how in ("device", "fast", "compile", "warmup", "clip", "accumulate", "own"):
        del plain[how]
    plain["schedule"] = describe_schedule(settings.schedule)
    if not settings.tf32:
        del plain["tf32"]  # as before there was any
    if settings.natural is None:
        del plain["natural"]  # likewise
    # of a stream the first rows, which tell whether it is the same and in the same order
    known = data.loader is None or data.stream is not None
    in_memory = {**named(data.x), "y": data.y} if known else {}
    if data.stream is not None:
        in_memory["size"] = torch.tensor(data.size)
    if data.weights is not None:
        in_memory["weights"] = data.weights
    if data.total is not None:
        in_memory["total"] = torch.tensor(data.total, dtype=torch.float64)
    return as_read(
        {
            **plain,
            "network": str(template),
            "shared": digest(shared_by_all(template)),
            "methods": [describe_fully(method) for method in recipe.methods],
            "likelihood": describe_fully(like),
            "data": digest(in_memory),
        }
    )


def own_identity(request: FitRequest, held: Source | None = None) -> dict[str, Any]:
    """Likewise of options that came later: None, as where there were none, if they are not used."""
    prior, means = request.full_prior, None
    if prior is not None and prior.has_means:
        means = digest(prior.given_means())
    steps, augment = None, request.given.augment
    if isinstance(own := request.optimizer, Optimizer):
        later = {"warmup": own.warmup, "clip": own.clip, "accumulate": own.accumulate}
        steps = later if later != {"warmup": 0.0, "clip": None, "accumulate": 1} else None
    seen = None
    if held is not None:
        rows = {**named(held.x), "y": held.y}
        rows |= {} if held.weights is None else {"weights": held.weights}
        seen = {**request.validation.options(), "data": digest(rows)}
    return as_read(
        {
            "augment": None if augment is None else getattr(augment, "__qualname__", "a function"),
            "steps": steps,
            "own optimizer": describe_own(request.optimizer.name),
            "validation": seen,
            "bootstrap": request.bootstrap or None,
            "prior": None if prior is None else prior.description(),
            "prior means": means,
        }
    )


def keeper(
    folder: Path | None,
    every: float,
    whose: dict[str, Any],  # as `identity` says
    part: Params,
    own: tuple[int, ...],
    watch: Collector | None,
    stop: Stop,
) -> Keeper:
    """That of a block of members, which has a folder of its own."""
    if folder is None:
        return Keeper(None, whose, stop)
    collected = {} if watch is None else watch.settings()
    block = as_read({"members": own, "start": digest(part), "averages": collected})
    return Keeper(Checkpoints(folder, FORMAT, every=every), whose | block, stop)
