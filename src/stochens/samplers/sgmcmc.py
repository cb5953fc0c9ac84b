"""`sgmcmc`: stochastic-gradient MCMC, all chains at once. The equations are in sgmcmc_steps.py."""

import dataclasses
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from stochens.adapter import Output
from stochens.checks import not_negative, positive, whole
from stochens.errors import InputError, check_known, did_you_mean, outside
from stochens.likelihoods import Likelihood
from stochens.members import Builder, flatten
from stochens.moved import refuse_moved
from stochens.posterior.chains import Chains
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.run.checkpoints import kept_in, refuse_other
from stochens.run.options import Run, matmul_precision, merge_run
from stochens.run.progress import Show, progress_bar
from stochens.samplers.chain_heat import Heat
from stochens.samplers.diagnostics import SamplingWarning, warn_of_trouble
from stochens.samplers.gradients import data_term_for, told
from stochens.samplers.problem import Problem, SamplerRequest, prepare
from stochens.samplers.sgmcmc_plan import Cycle
from stochens.samplers.sgmcmc_steps import Progress, Record, initial, keys
from stochens.samplers.sgmcmc_steps import run as drive
from stochens.samplers.snapshot import refuse_both
from stochens.samplers.target import unflatten
from stochens.training.request import Place, Start
from stochens.training.starts import settle_start

FORMAT = "stochens sgmcmc 4"  # 3: no noisy directions
KINDS = ("sgld", "sghmc", "csghmc")
PRECONDITIONERS = ("rmsprop", "fisher")
DEFAULT_RATES = {None: 1e-2, "rmsprop": 1e-3, "fisher": 1e-2}
LEAST_BURN_IN = 400  # of "fisher": its averages reach over a hundred steps, and it has half of it
DEFAULT_MOMENTUM = 0.9
DEFAULT_CYCLES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SgmcmcRequest(SamplerRequest):
    """What `sgmcmc` is asked for."""

    kind: str
    plan: Cycle


@refuse_moved
def sgmcmc(
    net: nn.Module | Builder,
    data: Any,
    *,
    kind: str = "sghmc",
    chains: int | Sequence[int] = 4,
    samples: int = 200,
    burn_in: int = 1000,
    thin: int = 10,
    batch_size: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    preconditioner: str | None = None,
    cycles: int | None = None,
    temperature: float = 1.0,
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
    """The posterior by stochastic-gradient MCMC, all chains at once.

    Samples  exp(-U / T),  U = N nll + lambda / 2 |theta|^2,  by the steps

        p     <- beta p - s g + sqrt(2 (1 - beta) T - s^2 n) xi,   xi ~ N(0, 1)
        theta <- theta + s p,                                      s = sqrt(lr / (N m))

    where g is dU / dtheta with the mean nll of a mini-batch in the place of that of all the data.
    So lr is that of SGD, or of RMSprop, on U / N, the loss of `fit`: without momentum and noise
    theta moves by  -lr / m * d(U / N) / dtheta.

    n is the variance that the mini-batch gives to g. It is measured in the third quarter of the
    burn-in, for each parameter, and taken off what is injected, so that batches do not heat the
    chain. No step is rejected: draws are too wide by a share  lr a / (2 (1 + beta) N m)  of the
    variance where U has the curvature a.

    Every draw of every chain is a member of the Posterior that is returned, chain after chain. In
    `posterior.chains.stats`, likelihood is N nll of the mini-batch of the step that led to the
    draw, where that step began; prior is lambda / 2 |theta|^2 of the draw; step is its lr. At its
    end it warns of a high R-hat and of few effective draws, as `nuts` does, and where the
    temperature of the momenta or the virial of the draws, of any parameter or along the stiffest
    direction, is not what it is for draws of the posterior.

    net, data, likelihood, output: as in `fit`, but no DataLoader, and no weights. The network must
        not be stochastic.
    kind: "sgld" (beta = 0), "sghmc", or "csghmc": cycles of a falling step size,
        lr / 2 (1 + cos(pi k / K)) in the k-th of K steps. A cycle first explores without noise.
    chains: how many, or which.
    samples: draws of each chain, one in `thin` steps.
    burn_in: steps, not epochs, before the draws; for "csghmc", the exploration of every cycle.
    batch_size: None for the whole data set. Each chain draws its own rows, anew in every step.
    lr: When None, 0.01, or 0.001 with "rmsprop", and less for the draws of a chain where the
        noise of its batches would be more than a quarter of what is injected, or where full-batch
        steps would make a variance 5 % too large. That of "csghmc" is the largest of a cycle.
    momentum: beta, which is 1 - friction; 0.9 when None.
    preconditioner: None for m = 1; "rmsprop" for m = sqrt(V) + sqrt(lambda) / N, with V the running
        average of (g / N)^2. V is learned in the burn-in and then held, since a step size that
        follows the draws would change what they are drawn from (for "csghmc" the last 100 steps of
        exploration are noisy, so that V sees it). "fisher" for m = V + lambda / N, with V the
        variance of the gradient of one example, from the differences of mini-batches: lr^(1/2) is
        then a step in standard deviations of the posterior, as far as V is the curvature. A chain
        goes by RMSprop for a quarter of the burn-in, and V is held after half of it.
    cycles: of "csghmc"; 4 when None. They share the samples evenly.
    temperature: T of exp(-U / T). 0 descends to the mode.
    prior: as in `nuts`; lambda / 2 |theta|^2 becomes sum_d lambda_d / 2 (theta_d - mean_d)^2.
    start: as in `nuts`.
    resume: what an interrupted call returned, or, without cycles, a finished one when more samples
        are wanted. The draws are those that one long run would have made. Refused where
        run.checkpoint holds a run.
    device, progress, run: how it runs, as in `fit`; Ray is for blocks of chains.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> data = (x, (x[:, 0] > 0).long())
    >>> with warnings.catch_warnings(action="ignore"):  # so few draws are warned of
    ...     posterior = sgmcmc(nn.Linear(2, 2), data, samples=20, burn_in=100, batch_size=10)
    >>> posterior.predict(x).probs.shape
    torch.Size([80, 40, 2])
    """
    whole(samples=samples, thin=thin)
    plan = _plan(kind, samples, burn_in, thin, lr, momentum, preconditioner, cycles, temperature)
    request = SgmcmcRequest(
        kind=kind,
        plan=plan,
        net=net,
        data=data,
        members=chains,
        batch_size=batch_size,
        prior=prior,
        likelihood=likelihood,
        output=output,
        start=start,
        seed=seed,
        resume=resume,
        run=merge_run(run, device=device, progress=progress),
    )
    request = settle_start(request)
    problem = prepare(request)
    if problem.machines is None:
        return _sample_here(request, problem)
    posterior = problem.machines.sampled(_sample_block, request)
    _warn_unless_cold(posterior, problem, plan)
    return posterior


def _sample_here(request: SgmcmcRequest, problem: Problem) -> Posterior:
    """All chains of the problem, on this machine."""
    kind, plan, resume = request.kind, request.plan, request.resume
    options, checkpoint = request.run, request.run.checkpoint
    chains = len(problem.ids)
    term = data_term_for(problem, request.batch_size, plan.steps)
    settings = _settings(kind, problem, plan, request.batch_size)
    _refuse_full_batches(plan, request.batch_size, len(problem.x))
    at = Progress(initial(flatten(problem.start), keys(problem), plan), 0, 0)
    record = _empty(at.state.q, plan.samples, len(problem.shapes))
    if resume is not None:
        at = _go_on(resume, settings, record)
    bars = progress_bar(kind, total=plan.steps * chains, show=options.progress)
    own = problem.begun(bf16=options.bf16) if checkpoint is not None else {}
    keeping = kept_in(checkpoint, FORMAT, {**settings, **own}, every=options.every)
    with matmul_precision(options), term.context, bars as bar, keeping as keep:
        refuse_both(resume, keep.found, checkpoint)
        if keep.found is not None:
            at = _found(keep.found, record)
        bar.advance(at.step * chains)
        batch = request.batch_size or len(problem.x)
        at = drive(problem, plan, at, told(term, bar), batch, record, bar, keep)
    if at.made == 0:
        raise KeyboardInterrupt(f"{kind} was stopped before its first draw")
    if at.made < plan.samples:
        warnings.warn(
            f"stopped after {at.made} of {plan.samples} draws of each chain, which are kept; the "
            "same call with resume=posterior goes on, or with its checkpoint",
            stacklevel=outside(),
        )
    _report_divergence(record.draws[:, : at.made], plan, problem.ids)
    posterior = _result(kind, problem, plan, record, at, settings)
    _warn_unless_cold(posterior, problem, plan)
    return posterior


def _sample_block(request: SgmcmcRequest) -> Posterior:
    """Some of the chains; what is wrong with all of them is told of all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return _sample_here(request, prepare(request))


def _refuse_full_batches(plan: Cycle, batch_size: int | None, data_size: int) -> None:
    if plan.fisher and (batch_size is None or batch_size >= data_size):
        raise InputError(
            "'fisher' is measured from the noise of mini-batches, and full batches have none: give "
            f"a batch_size below {data_size}, or use mclmc, which tunes a preconditioner of its own"
        )


def _warn_unless_cold(posterior: Posterior, problem: Problem, plan: Cycle) -> None:
    """At temperature 0 chains descend to modes, and are not meant to mix."""
    if plan.temperature > 0:
        warn_of_trouble(posterior, problem.x)


def _settings(kind: str, problem: Problem, plan: Cycle, batch_size: int | None) -> dict[str, Any]:
    """What a run that goes on must share with the one before it."""
    own = plan._asdict()
    if plan.cycles is None:
        own.pop("samples")  # more may be asked for; a cycle's length depends on them
    return {"kind": kind, "batch_size": batch_size and int(batch_size), **own, **problem.settings()}


def _empty(q: Tensor, samples: int, parameters: int) -> Record:
    M, D = q.shape
    likelihood = torch.zeros(M, samples, dtype=torch.float64, device=q.device)
    heat = Heat(*(likelihood.new_zeros(M, samples, parameters + 1) for _ in Heat._fields))
    return Record(q.new_zeros(M, samples, D), likelihood, heat)


def _found(named: dict[str, Tensor], record: Record) -> Progress:
    """Fill the record with what a checkpoint holds, and tell how far the run was."""
    at = Progress.of(named, record.draws.device)
    room = record.draws.shape[1]
    if named["draws"].shape[1] > room:
        raise InputError(f"samples must be at least the {named['draws'].shape[1]} of the run there")
    for name, place in record.upto(at.made).items():
        place.copy_(named[name])
    return at


def _go_on(resume: Posterior, settings: dict[str, Any], record: Record) -> Progress:
    """Fill the record with the draws that are there, and tell how far the run was."""
    if resume.chains is None or not {"counts", "noisy v"} <= set(resume.chains.state):
        raise InputError("resume must be what sgmcmc returned; it holds no chains of its kind")
    refuse_other(settings, resume.chains.settings, "resume")
    at = Progress.of(resume.chains.state, record.draws.device)
    if at.made > record.draws.shape[1]:
        raise InputError(f"samples must be at least the {at.made} that resume has")
    draws = flatten(resume.params).unflatten(0, (len(record.draws), at.made))
    made = {"draws": draws, **resume.chains.stats, **resume.chains.state}
    for name, place in record.upto(at.made).items():
        place.copy_(made[name])
    return at


def _plan(
    kind: str,
    samples: int,
    burn_in: Any,
    thin: int,
    lr: float | None,
    momentum: float | None,
    preconditioner: str | None,
    cycles: int | None,
    temperature: float,
) -> Cycle:
    """The options, checked against each other."""
    check_known("kind", kind, KINDS)
    if preconditioner not in (None, *PRECONDITIONERS):
        hint = did_you_mean(str(preconditioner), PRECONDITIONERS)
        known = ", ".join(map(repr, PRECONDITIONERS))
        raise InputError(f"preconditioner must be {known} or None, got {preconditioner!r}{hint}")
    if not isinstance(burn_in, Integral) or burn_in < 0:
        raise InputError(f"burn_in must be a whole number, at least 0, got {burn_in!r}")
    if burn_in == 0 and preconditioner is not None:
        raise InputError("a preconditioner is learned in the burn-in, got burn_in = 0")
    if preconditioner == "fisher":
        if burn_in < LEAST_BURN_IN:
            raise InputError(
                f"'fisher' needs a burn_in of at least {LEAST_BURN_IN} steps, got {burn_in}: it is "
                "measured in the first half of it"
            )
        if kind == "csghmc":
            raise InputError("'fisher' is for chains of a constant lr; use kind='sghmc'")
    not_negative(temperature=temperature)
    rate = DEFAULT_RATES[preconditioner] if lr is None else lr
    positive(lr=rate)
    if kind == "sgld" and momentum:
        raise InputError(f"'sgld' has no momentum, got {momentum!r}; use kind='sghmc'")
    beta = (0.0 if kind == "sgld" else DEFAULT_MOMENTUM) if momentum is None else momentum
    if not 0 <= beta < 1:
        raise InputError(f"momentum must be in [0, 1), got {momentum!r}")
    if kind == "csghmc":
        cycles = DEFAULT_CYCLES if cycles is None else cycles
        whole(cycles=cycles)
        if samples % cycles:
            raise InputError(
                f"samples = {samples} cannot be shared evenly by cycles = {cycles}; the nearest "
                f"that can is {max(1, round(samples / cycles)) * cycles}"
            )
    elif cycles is not None:
        raise InputError(f"cycles are for kind='csghmc', got cycles = {cycles!r} with {kind!r}")
    return Cycle(
        lr=float(rate),
        momentum=float(beta),
        temperature=float(temperature),
        preconditioner=preconditioner,
        burn_in=int(burn_in),
        thin=int(thin),
        samples=int(samples),
        cycles=None if cycles is None else int(cycles),
        cools=lr is None and temperature > 0 and kind != "csghmc",  # its lr falls by itself
    )


# What comes of it ---------------------------------------------------------------------------------


def _report_divergence(draws: Tensor, plan: Cycle, ids: tuple[int, ...]) -> None:
    """draws [M, made, D]; a chain that is NaN once stays so."""
    finite = draws.isfinite().all(2)  # [M, made]
    lost = (~finite[:, -1]).nonzero().flatten().tolist()
    if lost:
        left = int(finite[lost].sum(1).min())
        named = [ids[row] for row in lost[:10]]
        warnings.warn(
            f"{len(lost)} of {len(draws)} chains diverged (chains {named}), the first before draw "
            f"{left}; the others are unharmed. A lr below {plan.lr:g} usually mends it",
            SamplingWarning,
            stacklevel=outside(),
        )


def _result(
    kind: str,
    problem: Problem,
    plan: Cycle,
    record: Record,
    at: Progress,
    settings: dict[str, Any],
) -> Posterior:
    made = at.made
    draws = record.draws[:, :made]  # [M, made, D]
    rates = [m.lr for m in map(plan.at, range(plan.steps)) if m.draws][:made]
    stats = {
        "likelihood": record.likelihood[:, :made].cpu(),
        "prior": problem.coordinates.energy(draws, problem.prior_precision).cpu(),
        "step": torch.tensor(rates, dtype=torch.float64) * at.state.noise.rate.cpu().unsqueeze(1),
    }  # each [M, made]
    heat = Heat(*(t[:, :made] for t in record.heat))
    state = {name: t.cpu() for name, t in {**at.named(), **heat._asdict()}.items()}
    chains = Chains(sampler=kind, count=len(draws), stats=stats, state=state, settings=settings)
    params = unflatten(draws.reshape(-1, draws.shape[2]), problem.shapes)
    return problem.posterior(params, chains=chains)
