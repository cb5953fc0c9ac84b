"""`Data(augment=...)`: batches that are changed at random before each step, for each member."""

from typing import Any

import torch
from torch import Tensor

from stochens.data import Augment, Source
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Params
from stochens.program.choice import TRIED, Workload
from stochens.program.data_term import Term, own_noise
from stochens.program.outputs import outputs_for
from stochens.program.program import Noise
from stochens.randomness.seeds import AUGMENTATION, member_seed, noise_seed, reseed, seeded
from stochens.training.task import Task

SEEN = 4  # rows that a function is tried on


def augmented_term(task: Task, members: tuple[int, ...]) -> Term:
    """The mean NLL of each member on its batch as the user's function has changed it, [M].

    No kernel and no CUDA graph serves it: the function is Python, and may do anything.
    """
    net, data, likelihood, settings = task.net, task.data, task.likelihood, task.settings
    augment, device = data.augment, settings.device
    assert augment is not None
    ids = torch.tensor(members, device=device)
    first = torch.tensor([noise_seed(settings.seed)], device=device)
    examples = settings.epochs * data.size * len(members)
    work = Workload(settings.batch_size, examples, True, False, settings.engine)
    few = data.x[:TRIED].to(device)
    run = outputs_for(net, few, work, fast=settings.fast, bf16=settings.bf16)

    def batch_of(batch: Any) -> tuple[Any, Tensor, Tensor | None]:
        """x, y [M, B, ...] and what rows count."""
        if isinstance(batch, tuple):  # of a loader
            x, y = batch[0].to(device), likelihood.check_targets(batch[1]).to(device)
        elif batch is not None:
            weights = None if data.weights is None else data.weights[batch]
            return data.x[batch], data.y[batch], weights
        else:
            x, y = data.x, data.y
        # copies, which a function may change
        x, y = (t.expand(len(members), *t.shape).clone() for t in (x, y))
        return x, y, data.weights

    def of(params: Params, batch: Any, step: int | Tensor) -> Tensor:
        x, y, weights = batch_of(batch)
        number = int(step)
        seeds = [member_seed(settings.seed, k, AUGMENTATION, number) for k in members]
        x, y = augmented(augment, x, y, seeds)
        noise = Noise(ids, first + step)
        outputs = run.each(params, x, noise, own_noise(noise))  # [M, B, C]
        nll: Tensor = likelihood.nll(outputs, y, *(() if weights is None else (weights,)))
        return nll

    return Term(of)


@torch.no_grad()
def augmented(augment: Augment, x: Tensor, y: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
    """`augment` of each member's x [M, B, ...] and y [M, B, ...], by its own seed.

    >>> x, y = torch.zeros(2, 3, 1), torch.zeros(2, 3)
    >>> changed, _ = augmented(lambda x, y: (x + torch.rand(1), y), x, y, [0, 1])
    >>> changed.flatten(1).unique(dim=1).shape
    torch.Size([2, 1])
    """
    parts = []
    with seeded(0, x.device):
        for own_x, own_y, seed in zip(x, y, seeds, strict=True):
            reseed(seed, x.device)
            parts.append(_pair(augment(own_x, own_y), own_x, own_y))
    return torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])


def _pair(found: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the function gave, or an InputError."""
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    if not pair or not all(isinstance(t, Tensor) for t in found):
        raise InputError(f"augment must return x and y as two tensors, got {type(found).__name__}")
    new_x, new_y = found
    if len(new_x) != len(x) or new_y.shape != y.shape or new_y.dtype != y.dtype:
        raise InputError(
            f"augment must keep the number of rows and the shape and type of y: of x {_told(x)}, "
            f"y {_told(y)} it makes x {_told(new_x)}, y {_told(new_y)}. For mixed labels give "
            "probabilities [N, C] and likelihood='soft-labels'"
        )
    return new_x, new_y


def _told(t: Tensor) -> str:
    return f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}"


def refuse_augment(given: Source, likelihood: Likelihood, way: str) -> None:
    """Where it does not fit what it is for; tried on a few rows, which must stay as they are."""
    assert given.augment is not None
    if way in ("fused", "compile"):
        raise InputError(f"engine={way!r} knows no augment; use engine='auto'")
    if not isinstance(given.x, Tensor):
        raise InputError("augment is for inputs of one tensor, and these are several")
    x, y = given.x[:SEEN].clone(), given.y[:SEEN].clone()
    with seeded(0):
        new_x, new_y = _pair(given.augment(x, y), x, y)
    if new_x.shape[1:] != x.shape[1:] or new_x.dtype != x.dtype:
        raise InputError(
            f"augment must keep the shape and type of a row: of x {_told(x)} it makes "
            f"{_told(new_x)}"
        )
    likelihood.check_targets(new_y)
    if not bool(new_x.isfinite().all() if new_x.is_floating_point() else True):
        raise InputError("augment makes inputs that are not finite")
