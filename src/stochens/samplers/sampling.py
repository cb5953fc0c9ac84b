"""`nuts` and `hmc`: reference posteriors, on the same stacked parameters as everything else."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stochens.adapter import Output
from stochens.checks import positive, whole
from stochens.errors import InputError, outside
from stochens.likelihoods import Likelihood
from stochens.members import Builder, Params, flatten, size
from stochens.moved import refuse_moved
from stochens.posterior.chains import Chains
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior, as_prior
from stochens.program.choice import TRIED, Workload
from stochens.program.choice import choose as choose_program
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import kept_in
from stochens.run.memory import activation_bytes, free_bytes
from stochens.run.options import Run, matmul_precision, merge_run
from stochens.run.progress import Show, progress_bar
from stochens.samplers import adaptation
from stochens.samplers import nuts as tree
from stochens.samplers.adaptation import Windows
from stochens.samplers.diagnostics import SamplingWarning, warn_of_trouble
from stochens.samplers.driver import reasonable_step
from stochens.samplers.driver import run as drive
from stochens.samplers.engines import choose
from stochens.samplers.problem import Problem, SamplerRequest, prepare
from stochens.samplers.rounding import rounding_trouble
from stochens.samplers.snapshot import Snapshot, check_continues, empty, find_snapshot, refuse_both
from stochens.samplers.target import NetworkTarget, Target, unflatten
from stochens.samplers.trajectory import STATS, Record, Rules, State, initial
from stochens.training.request import Place, Start
from stochens.training.starts import settle_start

ENGINES = ("auto", "fused", "vmap", "loop")
MEMORY_SHARE = 0.25  # of what is free, for the activations of one gradient
MAX_DEPTH = 16  # 65,535 leapfrog steps
FORMAT = "stochens sampler 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HamiltonianRequest(SamplerRequest):
    """What `nuts` and `hmc` are asked for."""

    sampler: str
    rules: Rules
    samples: int
    step_size: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(samples=self.samples)
        if not 0 < self.rules.target_accept < 1:
            raise InputError(f"target_accept must be in (0, 1), got {self.rules.target_accept!r}")
        if self.step_size is not None:
            positive(step_size=self.step_size)
        if self.run.precision == "bf16":
            raise InputError(
                f"{self.sampler} compares energies, which bfloat16 cannot hold; use "
                "precision='float32' or 'float64'"
            )


@refuse_moved
def nuts(
    net: nn.Module | Builder,
    data: Any,
    *,
    chains: int | Sequence[int] = 4,
    samples: int = 2000,
    warmup: int = 2000,
    prior: float | Prior = 1.0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    start: Place | Start = "prior",
    target_accept: float = 0.8,
    max_depth: int = 10,
    step_size: float | None = None,
    seed: int = 0,
    resume: Posterior | None = None,
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
) -> Posterior:
    """The posterior by the no-U-turn sampler, all chains at once: the reference to measure against.

    Every draw of every chain is a member of the Posterior that is returned, chain after chain;
    `posterior.chains` has how each transition went. Samples  exp(-N nll - lambda / 2 |theta|^2)  on
    all of the data; the cost of a gradient is that of a full batch.

    At its end it warns (SamplingWarning) where draws are not enough or not right: R-hat above 1.01
    or a bulk ESS below 100 for each chain (Vehtari et al. 2021), of the predictions at 20 training
    inputs and of the log density; divergences; energies that rounding to float32 has eaten.

    net, data, likelihood, output: as in `fit`, but no DataLoader, and no weights. The network must
        not be stochastic.
    chains: how many, or which.
    samples, warmup: of each chain. Step size and diagonal mass are learned in the warm-up.
    prior: as in `fit`; chains have one prior, so where its mean is "start" they have one start.
    start: "prior", "reset" (the layers' own initialisation), or weights as in `fit`: "module", a
        module, a state dict, a list of them, Params [chains, ...] or a Posterior (its first
        members, one for each chain); Start(those, jitter=0.01) for chains that begin a little
        apart.
    target_accept: nearer to 1 makes smaller steps and fewer divergences.
    max_depth: a trajectory has at most 2^max_depth - 1 leapfrog steps.
    step_size: where the warm-up begins; searched for when None.
    resume: what an interrupted call returned, or a finished one when more samples are wanted. The
        draws are those that one long run would have made. Refused where run.checkpoint holds a run.
    device, progress, run: how it runs, as in `fit`. Precisions are "auto", "float64", "float32" and
        "tf32"; engines "auto", "fused" (a compiled kernel, for small MLPs), "vmap" (a CUDA graph on
        a GPU), "loop" and Ray, for blocks of chains on many machines.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = nuts(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), samples=1000, warmup=500)
    >>> posterior.predict(x).probs.shape
    torch.Size([4000, 40, 2])
    """
    whole(warmup=warmup, max_depth=max_depth)
    if max_depth > MAX_DEPTH:
        raise InputError(f"max_depth must be at most {MAX_DEPTH}, got {max_depth!r}")
    rules = Rules(warmup, adaptation.windows(warmup), target_accept, max_depth=max_depth)
    return _sample(
        HamiltonianRequest(
            sampler="nuts",
            rules=rules,
            net=net,
            data=data,
            members=chains,
            samples=samples,
            prior=prior,
            likelihood=likelihood,
            output=output,
            start=start,
            step_size=step_size,
            seed=seed,
            resume=resume,
            run=merge_run(run, device=device, progress=progress),
        )
    )


@refuse_moved
def hmc(
    net: nn.Module | Builder,
    data: Any,
    *,
    chains: int | Sequence[int] = 4,
    samples: int = 1000,
    warmup: int = 500,
    prior: float | Prior = 1.0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    start: Place | Start = "prior",
    trajectory: float | None = None,
    jitter: float = 0.2,
    target_accept: float = 0.8,
    adapt_mass: bool = False,
    max_leapfrogs: int = 10_000,
    step_size: float | None = None,
    seed: int = 0,
    resume: Posterior | None = None,
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
) -> Posterior:
    """The posterior by Hamiltonian Monte Carlo on the full batch, trajectories of a fixed length.

    For networks too large for NUTS, whose trajectories double until they turn. The length is
    `trajectory`, by default pi / 2 standard deviations of the prior (Izmailov et al., 2021), varied
    by the share `jitter` both ways, so that no direction can resonate with it; it is cut into
    steps of the size that the warm-up finds, at most `max_leapfrogs`. Other options are those of
    `nuts`. Of plain problems the default draws are enough for no warning; for large networks ask
    for as many as there is time for, and look at what is said of them.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = hmc(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()))
    >>> posterior.predict(x).probs.shape
    torch.Size([4000, 40, 2])
    """
    length = math.pi / 2 * as_prior(prior).precision ** -0.5 if trajectory is None else trajectory
    positive(trajectory=length)
    whole(warmup=warmup, max_leapfrogs=max_leapfrogs)
    if not 0 <= jitter < 1:
        raise InputError(f"jitter must be a share in [0, 1), got {jitter!r}")
    rules = Rules(
        warmup,
        adaptation.windows(warmup, mass=adapt_mass),
        target_accept,
        max_depth=1,
        length=length,
        jitter=jitter,
        max_leapfrogs=max_leapfrogs,
    )
    return _sample(
        HamiltonianRequest(
            sampler="hmc",
            rules=rules,
            net=net,
            data=data,
            members=chains,
            samples=samples,
            prior=prior,
            likelihood=likelihood,
            output=output,
            start=start,
            step_size=step_size,
            seed=seed,
            resume=resume,
            run=merge_run(run, device=device, progress=progress),
        )
    )


def _sample(request: HamiltonianRequest) -> Posterior:
    request = settle_start(request)
    problem = prepare(request, engines=ENGINES)
    if problem.machines is None:
        return _sample_here(request, problem)
    posterior = problem.machines.sampled(_sample_block, request)
    lost = rounding_trouble(posterior, _target(problem, 1))
    warn_of_trouble(posterior, problem.x, lost)
    return posterior


def _sample_block(request: HamiltonianRequest) -> Posterior:
    """Some of the chains; what is wrong with all of them is told of all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return _sample_here(request, prepare(request, engines=ENGINES))


def _sample_here(request: HamiltonianRequest, problem: Problem) -> Posterior:
    """All chains of the problem, on this machine."""
    sampler, rules, resume = request.sampler, request.rules, request.resume
    run, checkpoint = request.run, request.run.checkpoint
    rules = rules._replace(windows=Windows(*(t.to(problem.x.device) for t in rules.windows)))
    least = rules.warmup + request.samples  # leapfrog steps of a chain
    target = _target(problem, least)
    settings = _settings(sampler, rules, problem)
    own = problem.begun(step_size=request.step_size) if checkpoint is not None else {}
    keeping = kept_in(checkpoint, FORMAT, {**settings, **own}, every=run.every)
    with matmul_precision(run), keeping as keep:
        refuse_both(resume, keep.found, checkpoint)
        snapshot = find_snapshot(resume, keep.found, settings, problem.coordinates)
        if snapshot is None:
            state = _beginning(problem, target, rules, request.step_size)
            record = empty(state, rules, request.samples)
        else:
            state, record = check_continues(snapshot, rules, request.samples, problem.x.device)
        runner = choose(run.way, problem, target, state, rules, record)
        total = record.stats.shape[1] * len(problem.ids)
        with progress_bar(sampler, total=total, show=run.progress) as bar:
            bar.advance(int(state.transition.sum()))
            whole_run = drive(runner, record, rules, bar, keep)
    return _result(sampler, problem, target, runner.state(), record, rules, settings, whole_run)


def _target(problem: Problem, gradients: int) -> NetworkTarget:
    """Whose gradients each chain asks for at least so many times."""
    one = activation_bytes(problem.net, problem.x[:1])
    room = MEMORY_SHARE * free_bytes(problem.x.device)
    rows = max(1, min(len(problem.x), int(room / (4 * size(problem.start) * max(one, 1)))))
    net, x = problem.computed
    return NetworkTarget(
        net,
        problem.likelihood,
        x,
        problem.y,
        problem.shapes,
        problem.prior_precision,
        rows,
        problem.engine,
        _program(problem, rows, gradients),
        problem.coordinates,
    )


def _settings(sampler: str, rules: Rules, problem: Problem) -> dict[str, Any]:
    """What a run that goes on must share with the one before it."""
    plain = {k: v for k, v in rules._asdict().items() if k != "windows"}
    return {
        "sampler": sampler,
        "slow": int(rules.windows.slow.sum()),
        **plain,
        **problem.settings(),
    }


def _beginning(problem: Problem, target: Target, rules: Rules, step_size: float | None) -> State:
    q = problem.coordinates.w(flatten(problem.start))
    energy, g = target(q)
    _refuse_bad_start(problem, q, energy, g)
    keys = [derive(problem.seed, SAMPLER, chain) for chain in problem.ids]
    key = torch.tensor(keys, device=q.device)
    if step_size is None:
        log_step = reasonable_step(q, energy, g, target, key)
    else:
        log_step = torch.full_like(energy, math.log(step_size))
    return initial(q, energy, g, target, log_step, key, rules, tree.checkpoints(rules.max_depth))


def _refuse_bad_start(problem: Problem, q: Tensor, energy: Tensor, g: Tensor) -> None:
    fine = energy.isfinite() & g.isfinite().all(1)
    if bool(fine.all()):
        return
    row = int((~fine).nonzero()[0])
    chain, density = problem.ids[row], -float(energy[row])
    q = problem.coordinates.theta(q)
    here, slopes = (unflatten(t[row : row + 1], problem.shapes) for t in (q, g))
    for values, what in ((here, "is not finite there"), (slopes, "has no finite gradient there")):
        for name, value in values.items():
            if not bool(value.isfinite().all()):
                raise InputError(
                    f"chain {chain} cannot start: its log density is {density}, and "
                    f"parameter {name!r} {what}. Check the data for NaN, or give another start"
                )
    name = max(here, key=lambda n: float(here[n].abs().max()))
    raise InputError(
        f"chain {chain} cannot start: its log density is {density}; its largest "
        f"parameter is {name!r}, up to {float(here[name].abs().max()):.3g}. Check the data for "
        "NaN, or give another start"
    )


# What comes of it ---------------------------------------------------------------------------------


def _result(
    sampler: str,
    problem: Problem,
    target: NetworkTarget,
    state: State,
    record: Record,
    rules: Rules,
    settings: dict[str, Any],
    whole_run: bool,
) -> Posterior:
    made = int(state.transition.min()) - rules.warmup  # draws that every chain has
    if made < 1:
        raise KeyboardInterrupt(
            f"{sampler} was stopped in its warm-up, at transition {made + rules.warmup} of "
            f"{rules.warmup}: there are no draws yet. checkpoint=FOLDER would have kept it"
        )
    draws = record.draws[:, :made]  # [chains, made, D]
    stats = record.stats[:, rules.warmup : rules.warmup + made].cpu()
    kept = Snapshot(state, record).named()
    if whole_run:
        del kept["draws"], kept["stats"]
    chains = Chains(
        sampler=sampler,
        count=len(draws),
        stats={name: stats[..., i] for i, name in enumerate(STATS)},
        state={name: t.cpu() for name, t in kept.items()},
        settings=settings,
    )
    theta = problem.coordinates.theta(draws.reshape(-1, draws.shape[2]))
    posterior = problem.posterior(unflatten(theta, problem.shapes), chains=chains)
    if not whole_run:
        warnings.warn(
            f"stopped after {made} of {record.draws.shape[1]} draws of each chain, which are kept; "
            "the same call with resume=posterior goes on, or with its checkpoint",
            stacklevel=outside(),
        )
    lost = rounding_trouble(posterior, target)
    warn_of_trouble(posterior, problem.x, lost)
    return posterior


def _program(problem: Problem, rows: int, gradients: int) -> Callable[[Params, Any], Tensor] | None:
    """The network's program where it pays, in the precision of its parameters."""
    if problem.run.way != "auto":
        return None
    examples = float(gradients * size(problem.start) * len(problem.x))
    work = Workload(rows, examples, own_rows=False, compile=False, engine=problem.engine)
    net, given = problem.computed
    chosen = choose_program(net, given[:TRIED], work)
    return None if chosen is None else chosen.outputs
