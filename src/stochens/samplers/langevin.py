"""A Langevin ensemble: every member is one draw from the posterior, by a short chain of its own.

A member begins as a draw from the prior, which is exact. Then the likelihood is let in little by
little while the member diffuses at temperature 1, so that it is carried along from the prior to the
posterior and never far from equilibrium:

    U(q) = beta N nll(q) + lambda / 2 |q|^2,   beta = min(1, u / anneal)^2

by underdamped Langevin dynamics, u from 0 to 1 the member's progress. The steps are in
langevin_steps.py; arrival.py judges whether the members are what they should be.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stochens.adapter import Output
from stochens.checks import positive, whole_or_none
from stochens.errors import Failed, InputError, outside
from stochens.likelihoods import Likelihood
from stochens.members import Builder, flatten
from stochens.moved import refuse_moved
from stochens.posterior.chains import Chains, count_or_list
from stochens.posterior.joining import join_posteriors
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import kept_in
from stochens.run.options import Run, matmul_precision, merge_run
from stochens.run.progress import Show, progress_bar
from stochens.samplers import arrival, langevin_steps
from stochens.samplers.arrival import Ends
from stochens.samplers.diagnostics import SamplingWarning
from stochens.samplers.gradients import Gradient, batches, data_term_for, gradient_in_w, told
from stochens.samplers.langevin_steps import State, StepRule
from stochens.samplers.problem import Problem, SamplerRequest, prepare
from stochens.samplers.target import unflatten
from stochens.training.request import Place, Start
from stochens.training.starts import settle_start

HOPELESS = 1e15  # nats: float32 knows such an energy to 1e8 of them
FORMAT = "stochens langevin 2"  # 1: one step size for all; an epoch ended in a short batch
STREAM = 2  # of the numbers of (seed, SAMPLER, member)
STEP = 0.2  # h = STEP / sqrt(N) at most: the likelihood's curvature grows with the data
FRICTION = {True: 10.0, False: 1.0}  # with mini-batches, whose noise it must carry off; without
LAST_STEP = {True: 0.1, False: 1.0}  # of the steps' size at the end, likewise
ANNEAL = {True: 0.5, False: 0.0}  # from the prior; from elsewhere
MOST_STEPS = 100_000  # where their number is not given
USUAL_STEPS = 1000  # likewise: what a way to run the network is chosen for
LEAST_SHARE = 0.5  # of the members: where fewer are left, those that are left say nothing
UNITS = 1000  # of a member's progress, for the bar


def usual_step(data_size: int) -> float:
    """h for so many data points, in standard deviations of the prior.

    >>> usual_step(400)
    0.01
    """
    return STEP / math.sqrt(data_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LangevinRequest(SamplerRequest):
    """What `langevin` is asked for."""

    which: ClassVar[str] = "members"

    steps: int | None
    step_size: float | None
    friction: float | None
    anneal: float | None
    last_step: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_or_none(steps=self.steps)
        if self.anneal is not None and not 0 <= self.anneal <= 1:
            raise InputError(f"anneal must be a share in [0, 1], got {self.anneal!r}")


@refuse_moved
def langevin(
    net: nn.Module | Builder,
    data: Any,
    *,
    members: int | Sequence[int] = 50,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    friction: float | None = None,
    anneal: float | None = None,
    last_step: float | None = None,
    prior: float | Prior = 1.0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    start: Place | Start = "prior",
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
) -> Posterior:
    """An ensemble whose members are draws from the posterior, each carried there from the prior.

    What training costs, this costs; where a trained member is a mode of the posterior, one of these
    is a point of its bulk. A member depends only on (seed, member).

    At the end the members are held against identities that draws obey. A SamplingWarning says
    where they do not: the spread of such members is wrong. Members that diverged are left out and
    named; Failed is raised where fewer than half are left.

    net, data, likelihood, output: as in `fit`, but no DataLoader, and no weights. The network must
        not be stochastic.
    members: how many, or which. Fewer than 5 cannot be judged by their spread.
    steps: full passes over the data, or mini-batches of `batch_size`. When None, as many as the
        member needs with its step size, at most 100,000.
    batch_size: None for the whole data set. The noise of mini-batches heats the members. It is
        small only where the data say little about each parameter; a warning says where it is not.
    step_size: h, in standard deviations of the prior. When None, 0.2 / sqrt(N), and less for a
        member where the posterior is stiffer than that allows.
    friction: how fast momentum is forgotten, in units of 1 / time; 1 when None, 10 with
        mini-batches.
    anneal: the share of the way over which the likelihood is let in; 0.5 when None, and 0 from a
        start that is not the prior.
    last_step: the size of the last step as a share of the first, which a cosine leads to over the
        second half; 1 when None, 0.1 with mini-batches, whose noise then dies away.
    prior: as in `nuts`. step_size is in standard deviations of each parameter's own prior.
    start: "prior", or as in `nuts`; weights that are trained already bring no spread with them.
    device, progress, run: how it runs, as in `fit`.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = langevin(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), members=20)
    >>> posterior.predict(x).probs.shape
    torch.Size([20, 40, 2])
    """
    request = LangevinRequest(
        net=net,
        data=data,
        members=members,
        steps=steps,
        batch_size=batch_size,
        step_size=step_size,
        friction=friction,
        anneal=anneal,
        last_step=last_step,
        prior=prior,
        likelihood=likelihood,
        output=output,
        start=start,
        seed=seed,
        run=merge_run(run, device=device, progress=progress),
    )
    request = settle_start(request)
    problem = prepare(request)
    plan = _plan(request, problem)
    if problem.machines is None:
        posterior = _walk(request, problem, plan)
    else:
        blocks = problem.machines.blocks(_walk_block, request)
        chains = Chains.join([block.chains for block in blocks if block.chains is not None])
        joined = join_posteriors(blocks).to(problem.machines.home)
        posterior = dataclasses.replace(joined, chains=chains)
    return _judged(posterior, plan, problem)


def _walk_block(request: LangevinRequest) -> Posterior:
    """Some of the members; they are judged beside all of the others."""
    problem = prepare(request)
    return _walk(request, problem, _plan(request, problem))


def _plan(request: LangevinRequest, problem: Problem) -> StepRule:
    """The options, with what was left to us."""
    N = len(problem.x)
    mini = min(request.batch_size or N, N) < N
    of_prior = isinstance(request.start, str) and request.start == "prior"
    friction, anneal, last = request.friction, request.anneal, request.last_step
    plan = StepRule(
        steps=request.steps,
        step_size=usual_step(N) if request.step_size is None else request.step_size,
        fixed=request.step_size is not None,
        friction=FRICTION[mini] if friction is None else friction,
        anneal=ANNEAL[of_prior] if anneal is None else anneal,
        last_step=LAST_STEP[mini] if last is None else last,
        precision=request.prior_precision,
    )
    positive(step_size=plan.step_size, friction=plan.friction, last_step=plan.last_step)
    return plan


def _walk(request: LangevinRequest, problem: Problem, plan: StepRule) -> Posterior:
    """All members, those that diverged too, with how they ended as `chains`."""
    run, steps, N = request.run, request.steps, len(problem.x)
    batch = min(request.batch_size or N, N)
    settings: dict[str, Any] = {}
    if run.checkpoint is not None:
        settings = {"batch_size": batch, **plan._asdict(), **problem.settings()}
        settings |= problem.begun(bf16=run.bf16)
    ids = problem.ids
    term = data_term_for(problem, request.batch_size, steps or USUAL_STEPS)
    bars = progress_bar("langevin", total=UNITS * len(ids), show=run.progress)
    keeping = kept_in(run.checkpoint, FORMAT, settings, every=run.every)
    with matmul_precision(run), term.context, bars as bar, keeping as keep:
        gradient = gradient_in_w(problem, told(term, bar))
        at, key = _beginning(problem)
        done = 0
        if keep.found is not None:
            at = State(*(keep.found[name].to(t) for name, t in at._asdict().items()))
            done = int(keep.found["step"])
        shown = 0
        stream = itertools.islice(batches(problem, batch), done, steps or MOST_STEPS)
        for step, rows in enumerate(stream, done):
            if step % langevin_steps.EVERY == 0:  # to look at u waits for a GPU
                bar.advance(-shown + (shown := int(UNITS * float(at.u.sum()))))
                if steps is None and bool((at.u >= 1).all()):
                    break
            at = _step(plan, at, gradient, rows, step, key, problem)
            now, counted = at, torch.tensor(step + 1)
            keep(step + 1, lambda: now._asdict() | {"step": counted})  # noqa: B023, at once
            done = step + 1
        bar.advance(int(UNITS * float(at.u.sum())) - shown)
        keep.now(done, lambda: at._asdict() | {"step": torch.tensor(done)})
        energy, s = _of_all(gradient, at, batch, N, done)
    params = unflatten(problem.coordinates.theta(at.q), problem.shapes)
    ended = {"s": s, "energy": energy, "p": at.p, "curvature": at.curvature}
    ended |= {"u": at.u, "time": at.time}
    chains = Chains(
        sampler="langevin",
        count=len(ids),
        stats={},
        state={name: t.cpu() for name, t in ended.items()},
        settings={"chains": count_or_list(ids)},
    )
    return dataclasses.replace(problem.posterior(params), members=ids, chains=chains)


def _beginning(problem: Problem) -> tuple[State, Tensor]:
    """Where members begin, and the keys of their numbers, [M]."""
    q = problem.coordinates.w(flatten(problem.start))  # [M, D]
    keys = [derive(problem.seed, SAMPLER, member, STREAM) for member in problem.ids]
    key = torch.tensor(keys, device=q.device)
    p, v = (normal(key, torch.full_like(key, k), MOMENTUM, q.shape[1]).to(q) for k in (-1, -2))
    return langevin_steps.initial(q, p, v), key


def _step(
    plan: StepRule,
    at: State,
    gradient: Gradient,
    rows: Tensor | None,
    step: int,
    key: Tensor,
    problem: Problem,
) -> State:
    def slope(q: Tensor) -> Tensor:
        return gradient.of_data(q, rows, step)[1]

    if step == 0:
        energy, s = gradient.of_data(at.q, rows, step)
        _refuse_bad_start(energy, problem.ids)
        at = at._replace(s=s)
    n = normal(key, torch.full_like(key, step), MOMENTUM, at.q.shape[1]).to(at.q)
    at = langevin_steps.move_members(plan, at, n, slope)
    often = step < 2 * langevin_steps.EVERY  # until the power method has found its direction
    if often or step % langevin_steps.EVERY == 0:
        at = langevin_steps.measure_curvature(plan, at, slope)
    return at


def _of_all(gradient: Gradient, at: State, batch: int, N: int, step: int) -> tuple[Tensor, Tensor]:
    """N nll [M] where members ended, and its slope [M, D], on all of the data."""
    if batch == N:
        return gradient.of_data(at.q, None, step)
    energy, s = torch.zeros_like(at.u), torch.zeros_like(at.q)
    for rows in torch.arange(N, device=at.q.device).expand(len(at.q), N).split(batch, dim=1):
        share = rows.shape[1] / N
        each, slope = gradient.of_data(at.q, rows, step)
        energy, s = energy + share * each, s + share * slope
    return energy, s


def _refuse_bad_start(energy: Tensor, ids: tuple[int, ...]) -> None:
    """Name the first member whose likelihood [M] is no number where it begins."""
    for member, value in zip(ids, energy.tolist(), strict=True):
        if not abs(value) < HOPELESS:
            raise InputError(
                f"member {member} cannot start: its log likelihood is {-value:.3g} there. Is the "
                "prior too wide for this network? Use prior=stochens.Prior(scale='fan-in'), a "
                "larger precision (prior=10.0), run=Run(precision='float64'), or start=fit(...), "
                "the posterior of trained members"
            )


# What comes of it ---------------------------------------------------------------------------------


def _judged(posterior: Posterior, plan: StepRule, problem: Problem) -> Posterior:
    """The members that did not diverge, with a warning where they are not draws."""
    sizes = {name: s.numel() for name, s in problem.shapes.items()}
    assert posterior.chains is not None
    ended = {name: t.double() for name, t in posterior.chains.state.items()}
    posterior = dataclasses.replace(posterior, chains=None)
    own = problem.coordinates.to(torch.device("cpu"))
    q = own.w(flatten(posterior.params).detach().double().cpu())
    g = ended["s"] + plan.precision * q
    energy = ended["energy"] + 0.5 * plan.precision * q.square().sum(1)
    ends = Ends(q, ended["p"], g, energy)
    short = _too_short(plan, ended)
    fine = arrival.not_diverged(ends, settled=short is None)
    _report_divergence(fine, posterior.members, short or _smaller_steps(plan))
    kept = fine.nonzero().flatten()
    verdict = arrival.judge(ends.take(kept), sizes)
    if short is not None:  # the cause is known; the identities would say no more
        said = f"{short}. Their spread may not be that of the posterior"
        warnings.warn(said, SamplingWarning, stacklevel=outside())
    elif not verdict.arrived:
        warnings.warn(_in_words(verdict, plan), SamplingWarning, stacklevel=outside())
    return posterior if bool(fine.all()) else posterior.take(kept.tolist())


def _report_divergence(fine: Tensor, ids: tuple[int, ...], why: str) -> None:
    lost, M = (~fine).nonzero().flatten().tolist(), len(fine)
    if len(lost) > (1 - LEAST_SHARE) * M:
        which = f"all {M}" if len(lost) == M else f"{len(lost)} of {M}"
        raise Failed(f"{which} members diverged: {why}")
    if lost:
        warnings.warn(
            f"{len(lost)} of {M} members diverged and are left out (members "
            f"{[ids[k] for k in lost[:10]]}): {why}",
            SamplingWarning,
            stacklevel=outside(),
        )


def _smaller_steps(plan: StepRule) -> str:
    if plan.fixed:
        return f"step_size = {plan.step_size:.3g} is too large; try {plan.step_size / 2:.3g}"
    larger = "" if plan.last_step == 1 else ", a larger batch_size"
    return f"try step_size={plan.step_size / 10:.2g}{larger} or a larger prior_precision"


def _too_short(plan: StepRule, ended: dict[str, Tensor]) -> str | None:
    """Of members who were stopped on the way, or had no time to lose the width of the prior."""
    u, time = ended["u"], ended["time"]
    # The steps aim at half of that, by the curvature on the way
    needed = plan.time_needed(ended["curvature"], left=0.04)
    if bool((u < 1).any()):
        return (
            f"{int((u < 1).sum())} of {len(u)} members had not ended after {MOST_STEPS:,} steps, "
            f"the stiffest after {float(u.min()):.0%} of its way. Give steps to go on for longer"
        )
    if not bool((time < needed).any()):
        return None
    worst = int((needed / time).argmax())
    factor = float(needed[worst] / time[worst])
    more = "" if plan.steps is None else f"; try steps={_up(plan.steps * factor)}"
    return (
        f"{int((time < needed).sum())} of {len(u)} members moved for too short a time to leave the "
        f"prior behind, {float(time[worst]):.3g} units of time where {float(needed[worst]):.3g} "
        f"are needed{more}"
    )


def _up(steps: float) -> int:
    """Two digits are enough for an advice."""
    tens = 10.0 ** max(0, int(math.log10(steps)) - 1)
    return math.ceil(steps / tens) * int(tens)


def _in_words(verdict: arrival.Verdict, plan: StepRule) -> str:
    (virial, error), (kinetic, spread) = verdict.virial, verdict.kinetic
    where = "" if verdict.place is None else f", most clearly in {verdict.place!r}"
    judged = "" if math.isnan(virial) else f"the virial is {virial:.3g} +- {error:.2g} and "
    said = f"{judged}the temperature {kinetic:.3g} +- {spread:.2g}, where 1 is right"
    larger = "" if plan.last_step == 1 else "a larger batch_size, "
    remedy = f"{larger}more steps, or step_size={plan.step_size / 2:.2g}"
    return (
        "these members are not draws from the posterior, and their mean or spread is wrong"
        f"{where}: {said}. Try {remedy}"
    )
