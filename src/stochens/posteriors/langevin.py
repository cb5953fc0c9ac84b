"""A Langevin ensemble: every member is one draw from the posterior, by a short chain of its own.

A member begins as a draw from the prior, which is exact. Then the likelihood is let in little by
little while the member diffuses at temperature 1, so that it is carried along from the prior to the
posterior and never far from equilibrium:

    U_k(q) = beta_k N nll(q) + lambda / 2 |q|^2,   beta_k = min(1, k / (anneal K))^2

in K steps of underdamped Langevin dynamics (BAOAB: Leimkuhler and Matthews, 2013), sigma^2 = 1 /
lambda the prior's variance, c = exp(-friction h), n ~ N(0, 1):

    p -= h/2 sigma g;   q += h/2 sigma p;   p = c p + sqrt(1 - c^2) n;   q += h/2 sigma p;
    g = dU_k/dq;   p -= h/2 sigma g
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens.checks import positive, whole, whole_or_none
from stochens.cluster.connect import Engines
from stochens.errors import Failed, InputError
from stochens.files.checkpoints import kept_in
from stochens.likelihoods import Likelihood
from stochens.members import Builder, flatten
from stochens.posteriors.problem import prepare
from stochens.posteriors.sgmcmc_steps import (
    Gradient,
    batches,
    data_term_for,
    refuse_bad_start,
)
from stochens.posteriors.target import unflatten
from stochens.progress import Show, progress_bar
from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive
from stochens.result.posterior import Posterior

FORMAT = "stochens langevin 1"
STREAM = 2  # of the numbers of (seed, SAMPLER, member)
STEP = 0.2  # h = STEP / sqrt(N): the likelihood's curvature grows with the data
TAIL = 0.5  # the last part of the steps, over which mini-batch steps shrink
FRICTION = {True: 10.0, False: 1.0}  # with mini-batches, whose noise it must carry off; without
FAR = 10.0  # times the usual |q|^2: a member there has diverged
ENOUGH_TIME = 5.0  # sum of h: on the toy sets 2.3 was too little and 4.7 enough
LAST_STEP = {True: 0.1, False: 1.0}  # of the steps' size at the end, likewise


class Plan(NamedTuple):
    """What every step is."""

    steps: int
    step_size: float
    friction: float
    anneal: float
    last_step: float

    def size(self, step: int) -> float:
        """h, constant and then falling by a cosine to its last share over the tail."""
        done = max(0.0, (step / self.steps - (1 - TAIL)) / TAIL)
        share = self.last_step + (1 - self.last_step) * 0.5 * (1 + math.cos(math.pi * done))
        return self.step_size * share

    def weight(self, step: int) -> float:
        """beta, of the likelihood."""
        rise = self.anneal * self.steps
        return 1.0 if step >= rise else (step / rise) ** 2


def langevin(
    net: nn.Module | Builder,
    data: Any,
    *,
    members: int | Sequence[int] = 50,
    steps: int = 1250,
    batch_size: int | None = None,
    step_size: float | None = None,
    friction: float | None = None,
    anneal: float = 0.5,
    last_step: float | None = None,
    prior_precision: float = 1.0,
    likelihood: str | Likelihood = "categorical",
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    bf16: bool | None = None,
    engine: Engines = "auto",
    progress: Show = None,
    checkpoint: str | Path | None = None,
) -> Posterior:
    """An ensemble whose members are draws from the posterior, each carried there from the prior.

    What training costs, this costs; where a trained member is a mode of the posterior, one of these
    is a point of its bulk. A member depends only on (seed, member).

    net, data, likelihood: as in `fit`, but not a DataLoader. The network must not be stochastic.
    members: how many, or which.
    steps: full passes over the data, or mini-batches of `batch_size`. Too few leave the members
        too near the prior.
    step_size: h, in standard deviations of the prior; 0.2 / sqrt(N) when None. Too large a one
        makes members diverge, which are left out and named in a warning.
    friction: how fast momentum is forgotten, in units of 1 / time; 1 when None, 10 with
        mini-batches.
    anneal: the share of the steps over which the likelihood is let in.
    last_step: the size of the last step as a share of the first, which a cosine leads to over the
        second half; 1 when None, 0.1 with mini-batches, whose noise then dies away.
    bf16: the network in bfloat16, on CUDA; parameters stay as they are. None: only where
        ResNet20FRN's kernels serve, as in fit.
    engine: "auto", "fused" (a compiled kernel for small MLPs on a CPU), "compile", "vmap" or
        "loop", as in `fit`; "ray" or Ray(...) for blocks of members on many machines.
    checkpoint: a folder to save the run in once a minute; a run found there is gone on with.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = langevin(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), members=20, steps=300)
    >>> posterior.predict(x).probs.shape
    torch.Size([20, 40, 2])
    """
    posterior, plan = _walked(**locals())
    _warn_if_short(plan)
    fine = _kept(flatten(posterior.params), plan, prior_precision, posterior.members)  # [m]
    return posterior if len(fine) == len(posterior) else posterior.take(fine.tolist())


def _walked(
    *,
    net: nn.Module | Builder,
    data: Any,
    members: int | Sequence[int],
    steps: int,
    batch_size: int | None,
    step_size: float | None,
    friction: float | None,
    anneal: float,
    last_step: float | None,
    prior_precision: float,
    likelihood: str | Likelihood,
    seed: int,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    bf16: bool | None,
    engine: Engines,
    progress: Show,
    checkpoint: str | Path | None,
) -> tuple[Posterior, Plan]:
    """All members, those that diverged too."""
    options = dict(locals())
    whole(steps=steps)
    whole_or_none(batch_size=batch_size)
    if not 0 <= anneal <= 1:
        raise InputError(f"anneal must be a share in [0, 1], got {anneal!r}")
    problem = prepare(
        net,
        data,
        chains=members,
        which="members",
        likelihood=likelihood,
        start="prior",
        prior_precision=prior_precision,
        seed=seed,
        device=device,
        dtype=dtype,
        bf16=bf16,
        batch_size=batch_size,
        engine=engine,
        checkpoint=checkpoint,
    )
    N = len(problem.x)
    batch = min(batch_size or N, N)
    mini = batch < N
    plan = Plan(
        steps=steps,
        step_size=STEP / math.sqrt(N) if step_size is None else step_size,
        friction=FRICTION[mini] if friction is None else friction,
        anneal=anneal,
        last_step=LAST_STEP[mini] if last_step is None else last_step,
    )
    positive(step_size=plan.step_size, friction=plan.friction, last_step=plan.last_step)
    if problem.machines is not None:
        return problem.machines.sampled(_of_block, options), plan
    ids = problem.ids
    data_term, context = data_term_for(problem, bf16=bf16)
    gradient = Gradient(problem, data_term)
    q = flatten(problem.start)  # [M, D]
    keys = [derive(problem.seed, SAMPLER, member, STREAM) for member in ids]
    key = torch.tensor(keys, device=q.device)  # [M]
    p = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)  # [M, D]
    g = prior_precision * q  # of U_0, which is the prior's alone
    settings: dict[str, Any] = {}
    if checkpoint is not None:
        settings = {"batch_size": batch, **plan._asdict(), **problem.settings()}
        settings |= problem.begun(bf16=bf16)
    bars = progress_bar("langevin", total=steps * len(ids), show=progress)
    with context, bars as bar, kept_in(checkpoint, FORMAT, settings) as keep:
        done = 0
        if keep.found is not None:
            q, p, g = (keep.found[name].to(q) for name in ("q", "p", "g"))
            done = int(keep.found["step"])
        bar.advance(done * len(ids))
        stream = itertools.islice(batches(problem, batch), done, steps)
        for step, rows in enumerate(stream, done):
            noise = normal(key, torch.full_like(key, step), MOMENTUM, q.shape[1]).to(q)
            q, p = _drift(q, p, g, noise, plan, step, prior_precision)
            energy, g = gradient(q, rows, step, weight=plan.weight(step))
            if step == 0:
                refuse_bad_start(energy, ids)
            p = p - 0.5 * plan.size(step) * prior_precision**-0.5 * g
            bar.advance(len(ids))
            keep(step + 1, lambda: _named(q, p, g, step + 1))  # noqa: B023, called at once
        keep.now(steps, lambda: _named(q, p, g, steps))
    posterior = problem.posterior(unflatten(q, problem.shapes))
    return dataclasses.replace(posterior, members=ids), plan


def _of_block(**options: Any) -> Posterior:
    """Some of the members; who diverged is judged beside all of the others."""
    return _walked(**options)[0]


def _named(q: Tensor, p: Tensor, g: Tensor, step: int) -> dict[str, Tensor]:
    """A run after so many steps."""
    return {"q": q, "p": p, "g": g, "step": torch.tensor(step)}


def _drift(
    q: Tensor, p: Tensor, g: Tensor, n: Tensor, plan: Plan, step: int, precision: float
) -> tuple[Tensor, Tensor]:
    """The first four of a step's five parts."""
    h = plan.size(step)
    half = 0.5 * h * precision**-0.5
    c = math.exp(-plan.friction * h)
    p = p - half * g
    q = q + half * p
    p = c * p + math.sqrt(1 - c * c) * n
    return q + half * p, p


def _kept(q: Tensor, plan: Plan, precision: float, ids: tuple[int, ...]) -> Tensor:
    """Which members did not diverge, [m]: one that is far beyond the others and the prior has."""
    size = precision * q.double().square().sum(1)  # [M]; under the prior chi^2 with D degrees
    usual = float(size[size.isfinite()].median()) if bool(size.isfinite().any()) else 0.0
    fine = size <= FAR * (usual + q.shape[1] + math.sqrt(2 * q.shape[1]))  # NaN: no
    lost = (~fine).nonzero().flatten().tolist()
    remedy = f"step_size = {plan.step_size:.3g} is too large; try {plan.step_size / 2:.3g}"
    if len(lost) == len(q):
        raise Failed(f"all {len(q)} members diverged: {remedy}")
    if lost:
        warnings.warn(
            f"{len(lost)} of {len(q)} members diverged and are left out (members "
            f"{[ids[k] for k in lost[:10]]}): {remedy}",
            stacklevel=3,
        )
    return fine.nonzero().flatten()


def _warn_if_short(plan: Plan) -> None:
    time = sum(plan.size(step) for step in range(plan.steps))
    if time < ENOUGH_TIME:
        warnings.warn(
            f"{plan.steps} steps last {time:.2g} units of time, and members need about "
            f"{ENOUGH_TIME:g} to leave the prior behind; take more steps",
            stacklevel=3,
        )
