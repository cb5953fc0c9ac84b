"""`mclmc`: an ensemble of chains that go on from trained members (Sommer et al., 2025).

The steps are in mclmc_steps.py, and their order in mclmc_run.py.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from stochens.adapter import Output
from stochens.checks import positive, whole
from stochens.errors import InputError, outside
from stochens.likelihoods import Likelihood
from stochens.members import Builder, flatten
from stochens.moved import refuse_moved
from stochens.posterior.chains import Chains
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.run.checkpoints import kept_in, refuse_other
from stochens.run.options import Run, matmul_precision, merge_run
from stochens.run.progress import Show, progress_bar
from stochens.samplers.diagnostics import SamplingWarning, judge_members, warn_of_trouble
from stochens.samplers.gradients import data_term_for, gradient_in_w, refuse_bad_start, told
from stochens.samplers.mclmc_plan import Schedule
from stochens.samplers.mclmc_run import (
    STATS,
    Progress,
    Record,
    begin,
    choose_way,
    keys_of,
    slope_of,
)
from stochens.samplers.mclmc_run import run as drive
from stochens.samplers.problem import Problem, SamplerRequest, prepare
from stochens.samplers.snapshot import refuse_both
from stochens.samplers.target import unflatten
from stochens.training.request import Place, Start
from stochens.training.starts import settle_start

FORMAT = "stochens mclmc 2"  # 1: without the stiffest direction
TRAINING = {
    True: 1000,
    False: 0,
}  # steps of Adam, from weights that nobody has trained; from others
UNTRAINED = ("reset", "prior")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MclmcRequest(SamplerRequest):
    """What `mclmc` is asked for."""

    which: ClassVar[str] = "members"

    plan: Schedule
    until: str | None
    budget: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until not in (None, "arrived"):
            raise InputError(f"until must be None or 'arrived', got {self.until!r}")
        whole(budget=self.budget)
        if self.until is not None and self.budget < self.plan.steps:
            raise InputError(
                f"budget = {self.budget} steps is less than the {self.plan.steps} of the first "
                "round: training + warmup + draws_per_member * thin"
            )
        if self.until is not None and self.run.cluster is not None:
            raise InputError(
                "until='arrived' looks at all members together, and Ray has them on many machines; "
                "leave until out, and go on with resume"
            )
        if self.run.precision == "bf16":
            raise InputError(
                "mclmc tunes its steps by errors of the energy, which bfloat16 cannot hold; use "
                "precision='float32' or 'float64'"
            )


@refuse_moved
def mclmc(
    net: nn.Module | Builder,
    data: Any,
    *,
    members: int | Sequence[int] = 10,
    draws_per_member: int = 200,
    thin: int = 10,
    warmup: int = 10_000,
    training: int | None = None,
    energy_variance: float = 1e-3,
    precondition: bool = True,
    target_accept: float | None = None,
    until: Literal["arrived"] | None = None,
    budget: int = 200_000,
    prior: float | Prior = 1.0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    start: Place | Start = "reset",
    seed: int = 0,
    resume: Posterior | None = None,
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
) -> Posterior:
    """An ensemble whose members are chains of microcanonical Langevin dynamics (MCLMC).

    Each member descends to a mode of the posterior of its own, goes on from there by dynamics that
    find its bulk, tunes itself, and draws (Robnik et al., 2023; Sommer et al., 2025). Nothing has
    to be set: a member's step is as long as the errors of its energy allow, and its direction is
    forgotten over the length that its effective sample size asks for. Every draw of every member
    is a member of the Posterior that is returned, one member's after the other's; a member depends
    only on (seed, member). All of the data are used in each step, which takes two gradients.

    Without `target_accept` no step is refused, so that the draws have a bias, which falls with
    `energy_variance`: on Gaussians of many shapes the standard deviations are 1 % too small at
    0.001, 3 % at 0.01 and more, and very unevenly, at 0.1. With `precondition`, no direction is
    much worse than these, but for one that is stiff and not along a parameter.
    At its end it warns (SamplingWarning) where the draws themselves say that they are not right:
    the energy variance, the virial, also in the stiffest direction, a drift from the middle third
    of the draws to the last, R-hat over members, and effective sample sizes. `diagnose` has the
    numbers.

    net, data, likelihood, output: as in `fit`, but no DataLoader, and no weights. The network must
        not be stochastic.
    members: how many, or which. Fewer than 5 cannot be judged by how they differ.
    draws_per_member: how many of a member's positions are kept, one in `thin` steps.
    warmup: steps of each member before its draws. The first 60 % find the posterior with steps
        that are longer at first; the others tune preconditioner, step and length.
    training: steps of Adam before that, on all of the data; 1000 when None, and 0 from weights
        that are given.
    energy_variance: the mean squared error in the energy of a step, divided by the number of
        parameters, that steps are tuned to.
    precondition: whether steps are in units of each parameter's own standard deviation in the
        member's chain, or in those of its prior.
    target_accept: None, or the share of trials that are accepted. Then draws come from trials,
        stretches of steps that are accepted or not (Robnik et al., 2025), and have no bias from the
        size of steps, which is tuned to this share. Ours were run with 0.9.
    until: "arrived" goes on by itself: as long as there is something to warn of, a further round
        follows from where the members are, with twice the steps of the one before it for warm-up
        and draws, and smaller ones where they were too long. The draws are those of the last round.
    budget: the most steps of a member, training and all rounds together, with `until`. A round that
        would need more is not begun.
    prior: as in `nuts`.
    start: "reset" (the layers' own initialisation), or as in `nuts`.
    resume: what an interrupted call returned, or a finished one when more draws are wanted. The
        draws are those that one long run would have made. Refused where run.checkpoint holds a run.
    device, progress, run: how it runs, as in `fit`; Ray is for blocks of members.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = mclmc(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), warmup=1000)
    >>> posterior.predict(x).probs.shape
    torch.Size([2000, 40, 2])
    """
    whole(draws_per_member=draws_per_member, thin=thin, warmup=warmup)
    _check_training(training)
    positive(energy_variance=energy_variance)
    _check_acceptance(target_accept)
    first = start.at if isinstance(start, Start) else start
    fresh = isinstance(first, str) and first in UNTRAINED
    request = MclmcRequest(
        plan=Schedule(
            training=TRAINING[fresh] if training is None else int(training),
            warmup=int(warmup),
            samples=int(draws_per_member),
            thin=int(thin),
            energy_variance=float(energy_variance),
            precondition=bool(precondition),
            sigma=1.0,  # of the prior, which the request knows
            target_accept=None if target_accept is None else float(target_accept),
        ),
        until=until,
        budget=budget,
        net=net,
        data=data,
        members=members,
        prior=prior,
        likelihood=likelihood,
        output=output,
        start=start,
        seed=seed,
        resume=resume,
        run=merge_run(run, device=device, progress=progress),
    )
    plan = request.plan._replace(sigma=request.prior_precision**-0.5)
    request = settle_start(dataclasses.replace(request, plan=plan))
    problem = prepare(request)
    if problem.machines is None:
        posterior = _sample_here(request, problem)
    else:
        posterior = problem.machines.sampled(_sample_block, request)
    warn_of_trouble(posterior, problem.x)
    return posterior


def _check_training(training: Any) -> None:
    """Unlike other numbers of steps it may be 0."""
    if training is not None and (not isinstance(training, Integral) or int(training) < 0):
        raise InputError(f"training must be a whole number, at least 0, got {training!r}")


def _check_acceptance(share: float | None) -> None:
    if share is not None and not 0 < share < 1:
        raise InputError(f"target_accept must be in (0, 1), or None, got {share!r}")


def _sample_block(request: MclmcRequest) -> Posterior:
    """Some of the members; what is wrong with all of them is told of all of them."""
    return _sample_here(request, prepare(request))


def _sample_here(request: MclmcRequest, problem: Problem) -> Posterior:
    """All members of the problem, on this machine."""
    plan, resume = request.plan, request.resume
    options, checkpoint = request.run, request.run.checkpoint
    q = problem.coordinates.w(flatten(problem.start))  # [M, D]
    _refuse_one_parameter(q.shape[1])
    M = len(q)
    term = data_term_for(problem, None, plan.steps)
    settings = _settings(problem, plan)
    record = _empty(q, plan.samples)
    bars = progress_bar("mclmc", total=plan.steps * M, show=options.progress)
    own = problem.begun() if checkpoint is not None else {}
    keeping = kept_in(checkpoint, FORMAT, {**settings, **own}, every=options.every)
    whole_rounds: list[Posterior] = []
    known = plan.steps
    with matmul_precision(options), term.context, bars as bar, keeping as keep:
        refuse_both(resume, keep.found, checkpoint)
        slope = slope_of(problem, gradient_in_w(problem, told(term, bar)))
        key = keys_of(problem, q.device)
        if resume is not None:
            at = _go_on(resume, settings, record, problem)
        elif keep.found is not None:
            at = _found(keep.found, record)
        else:
            at = begin(q, key, problem.prior_precision, slope)
            refuse_bad_start(at.state.energy, problem.ids)
        way = choose_way(problem, key, slope)
        bar.advance(at.step * M)
        while True:
            plan = request.plan.at_round(at.round, at.begin, at.cuts)
            bar.extend((plan.steps - known) * M)
            known = plan.steps
            at = drive(plan, at, way, record, bar, keep)
            if at.step < plan.steps or request.until is None:
                break
            whole_rounds = [_result(problem, record, at, settings)]
            later = _later_round(request, whole_rounds[0], at, problem)
            if later is None:
                break
            at = later
    if at.made == 0 and whole_rounds:
        _warn_stopped("in the warm-up of a further round; the draws are those of the one before")
        return whole_rounds[0]
    if at.made == 0:
        raise KeyboardInterrupt("mclmc was stopped before its first draw")
    if at.made < plan.samples:
        _warn_stopped(f"after {at.made} of {plan.samples} draws of each member, which are kept")
    return _result(problem, record, at, settings)


def _later_round(
    request: MclmcRequest, found: Posterior, at: Progress, problem: Problem
) -> Progress | None:
    """Where a further round begins; None: members have arrived, or the budget does not allow it."""
    verdict = judge_members(found, problem.x)
    if verdict.arrived:
        return None
    later = at.next_round(smaller=verdict.too_long)
    needed = request.plan.at_round(later.round, later.begin, later.cuts).steps
    if needed <= request.budget:
        return later
    warnings.warn(
        f"members have not arrived after {at.step:,} steps, and a further round would end at "
        f"{needed:,}, above the budget of {request.budget:,}. The same call with "
        f"resume=posterior, or with its checkpoint, and budget={needed} goes on",
        SamplingWarning,
        stacklevel=outside(),
    )
    return None


def _warn_stopped(when: str) -> None:
    warnings.warn(
        f"stopped {when}; the same call with resume=posterior goes on, or with its checkpoint",
        stacklevel=outside(),
    )


def _refuse_one_parameter(count: int) -> None:
    if count < 2:
        raise InputError(
            "mclmc moves on a sphere of directions and needs at least 2 parameters, the network "
            f"has {count}; use nuts"
        )


def _settings(problem: Problem, plan: Schedule) -> dict[str, Any]:
    """What a run that goes on must share with the one before it."""
    own = plan._asdict()
    for name in ("samples", "begin"):
        own.pop(name)
    return {**own, **problem.settings()}


def _empty(q: Tensor, samples: int) -> Record:
    M, D = q.shape
    stats = torch.zeros(M, samples, len(STATS), dtype=torch.float64, device=q.device)
    return Record(q.new_zeros(M, samples, D), stats)


def _found(named: dict[str, Tensor], record: Record) -> Progress:
    """Fill the record with what a checkpoint holds, and tell how far the run was."""
    room, there = record.draws.shape[1], named["draws"].shape[1]
    if there > room:
        raise InputError(f"draws_per_member must be at least the {there} of the run there")
    record.draws[:, :there] = named["draws"].to(record.draws)
    record.stats[:, :there] = named["stats"].to(record.stats)
    return Progress.of(named, record.draws.device)


def _go_on(
    resume: Posterior, settings: dict[str, Any], record: Record, problem: Problem
) -> Progress:
    """Fill the record with the draws that are there, and tell how far the run was."""
    chains = resume.chains
    if chains is None or "stiff" not in chains.state:
        raise InputError("resume must be what mclmc returned; it holds no chains of its kind")
    refuse_other(settings, chains.settings, "resume")
    w = problem.coordinates.w(flatten(resume.params).to(record.draws))
    one = torch.ones_like(chains.stats["virial"])  # without trials, all is accepted
    stats = torch.stack([chains.stats.get(name, one) for name in STATS], dim=-1)
    draws = w.unflatten(0, (len(record.draws), -1))
    return _found({**chains.state, "draws": draws, "stats": stats}, record)


def _result(problem: Problem, record: Record, at: Progress, settings: dict[str, Any]) -> Posterior:
    draws, stats = record.draws[:, : at.made], record.stats[:, : at.made].cpu()
    told = STATS if at.trial is not None else STATS[:-1]  # without trials, all is accepted
    chains = Chains(
        sampler="mclmc",
        count=len(draws),
        stats={name: stats[..., k] for k, name in enumerate(told)},
        state={name: t.cpu() for name, t in at.named().items()},
        settings=settings,
    )
    theta = problem.coordinates.theta(draws.reshape(-1, draws.shape[2]))
    return problem.posterior(unflatten(theta, problem.shapes), chains=chains)
