"""Runs the steps of `mclmc` on any density, without a network."""

import contextlib
import warnings
from typing import Any

import torch
from tests.samplers.density import Density
from torch import Tensor

from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import kept_in
from stochens.run.progress import progress_bar
from stochens.samplers.mclmc_plan import Schedule
from stochens.samplers.mclmc_run import (
    STATS,
    STREAM,
    Record,
    Way,
    begin,
    plain_mover,
    plain_trier,
    run,
)


def keys(members: int, seed: int = 0) -> Tensor:
    return torch.tensor([derive(seed, SAMPLER, member, STREAM) for member in range(members)])


def sample(
    density: Density, start: Tensor, *, seed: int = 0, sigma: float = 1.0, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draws [M, samples, D] and statistics by name [M, samples] of members that begin at start
    [M, D]. The density has no prior of its own: `sigma` is where L and the steps begin."""
    own = {"training": 0, "warmup": 1000, "samples": 200, "thin": 5, "energy_variance": 1e-3}
    plan = Schedule(**{**own, "precondition": False, "sigma": sigma, **options})
    key = keys(len(start), seed)
    at = begin(start, key, sigma**-2, density)
    M, D = start.shape
    stats = torch.zeros(M, plan.samples, len(STATS), dtype=torch.float64)
    record = Record(start.new_zeros(M, plan.samples, D), stats)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        bar = stack.enter_context(progress_bar("", total=1, show=False))
        keep = stack.enter_context(kept_in(None, "", {}))
        way = Way(density, plain_mover(key, density), plain_trier(key, density))
        run(plan, at, way, record, bar, keep)
    return record.draws, {name: stats[..., k] for k, name in enumerate(STATS)}
