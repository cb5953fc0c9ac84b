"""Runs the samplers' reference engine on any density, without a network, and beside its twin."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats as scipy_stats
from tests.tolerance import close
from torch import Tensor, nn

from stochens.members import flatten
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.options import Run
from stochens.samplers import nuts as tree
from stochens.samplers import trajectory
from stochens.samplers.adaptation import windows
from stochens.samplers.driver import reasonable_step
from stochens.samplers.engines import PlainRunner, choose, names, restored, tensors
from stochens.samplers.problem import SamplerRequest, prepare
from stochens.samplers.target import NetworkTarget, Target
from stochens.samplers.trajectory import STATS, Record, Rules, State, initial

MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Density:
    """Any function of one's own: energy(q [M, D]) -> [M], differentiable."""

    energy: Callable[[Tensor], Tensor]
    precision: float = 0.0

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            energy = self.energy(q)  # [M]
            (grad,) = torch.autograd.grad(energy.sum(), q)
        return energy.detach().double(), grad + self.precision * q.detach()


def mix(z: int) -> int:
    """The finaliser of splitmix64 in Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def bits(key: int, transition: int, purpose: int, index: int) -> int:
    """The 64 bits behind hashed.uniform."""
    golden = 0x9E3779B97F4A7C15
    stream = mix((key + (8 * transition + purpose + 1) * golden) & MASK)
    return mix(((stream + index + 1) * golden) & MASK)


def uniform(key: int, transition: int, purpose: int, index: int) -> float:
    return ((bits(key, transition, purpose, index) >> 12) + 0.5) * 2.0**-52


def normal(key: int, transition: int, purpose: int, count: int) -> list[float]:
    u = [uniform(key, transition, purpose, i) for i in range(2 * count)]
    pairs = zip(u[:count], u[count:], strict=True)
    return [math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b) for a, b in pairs]


def rules_for(warmup: int, *, mass: bool = True, target_accept: float = 0.8, **options) -> Rules:
    return Rules(warmup, windows(warmup, mass=mass), target_accept, **options)


def keys(chains: int, seed: int = 0) -> Tensor:
    """Those that `nuts` and `hmc` give their chains, [M]."""
    return torch.tensor([derive(seed, SAMPLER, chain) for chain in range(chains)])


def begin(
    target: Target,
    start: Tensor,
    rules: Rules,
    *,
    step: float | None = None,
    key: Tensor | None = None,
) -> State:
    """Every chain at the beginning of its first transition, from start [M, D]."""
    key = keys(len(start)) if key is None else key
    energy, g = target(start)
    if step is None:
        log_step = reasonable_step(start, energy, g, target, key)
    else:
        log_step = torch.full_like(energy, math.log(step))
    K = tree.checkpoints(rules.max_depth)
    return initial(start, energy, g, target, log_step, key, rules, K)


def empty(start: Tensor, rules: Rules, samples: int) -> Record:
    M, D = start.shape
    stats = torch.zeros(M, rules.warmup + samples, len(STATS), dtype=torch.float64)
    return Record(start.new_zeros(M, samples, D), stats)


def sample(
    target: Target,
    start: Tensor,
    *,
    samples: int,
    warmup: int,
    step: float | None = None,
    key: Tensor | None = None,
    inverse_mass: Tensor | None = None,
    **options,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draws [M, samples, D] and statistics by name, [M, warmup + samples], of chains that begin at
    start [M, D] and with inverse_mass [M, D], or unit mass. `options` are those of `Rules`;
    `mass=False` leaves the mass as it is."""
    rules = rules_for(warmup, **options)
    record = empty(start, rules, samples)
    state = begin(target, start, rules, step=step, key=key)
    if inverse_mass is not None:
        state = state._replace(adaptation=state.adaptation._replace(inverse_mass=inverse_mass))
        state = trajectory.begin(state, torch.ones(len(start), dtype=torch.bool), rules)
    runner = PlainRunner(state, target, rules, record)
    while bool((runner.state().transition < warmup + samples).any()):
        runner.advance(10)
    return record.draws, {name: record.stats[..., i] for i, name in enumerate(STATS)}


class Visits(NamedTuple):
    """Where every chain was at the beginning of each transition, and after the last."""

    q: Tensor  # [M, T + 1, D]
    step: Tensor  # [M, T + 1]
    inverse_mass: Tensor  # [M, T + 1, D]


def visits(
    target: Target,
    start: Tensor,
    rules: Rules,
    *,
    transitions: int,
    step: float,
    inverse_mass: Tensor | None = None,
) -> tuple[Visits, dict[str, Tensor]]:
    """What `sample` runs, watched. A plain loop that is held against it begins every transition
    where these chains did, so that a difference of rounding has one transition to grow in."""
    record = empty(start, rules, transitions - rules.warmup)
    state = begin(target, start, rules, step=step)
    if inverse_mass is not None:
        state = state._replace(adaptation=state.adaptation._replace(inverse_mass=inverse_mass))
        state = trajectory.begin(state, torch.ones(len(start), dtype=torch.bool), rules)
    M, D = start.shape
    seen = Visits(*(start.new_full((M, transitions + 1, *k), math.nan) for k in ((D,), (), (D,))))
    runner = PlainRunner(state, target, rules, record)
    rows = torch.arange(M)
    while True:
        state = runner.state()
        fresh = rows[state.leapfrogs == 0]  # at the beginning of a transition, and at the end
        at, a = state.transition[fresh], state.adaptation
        seen.q[fresh, at] = state.tree_q[fresh]
        seen.step[fresh, at] = a.log_step[fresh].exp()
        seen.inverse_mass[fresh, at] = a.inverse_mass[fresh]
        if bool((state.transition == transitions).all()):
            return seen, {name: record.stats[..., i] for i, name in enumerate(STATS)}
        runner.advance(1)


def false_alarm(values: Tensor, truth: Tensor | float) -> float:
    """The chance that K averages over draws would be as far from the truth as the farthest is:
    values [M, S, K] of functions of the draws. Chains are independent, so the averages of each are
    M numbers for a t-test, whatever the autocorrelation; times K (Bonferroni)."""
    means = values.mean(1)  # [M, K]
    M, K = means.shape
    t = (means.mean(0) - truth) / (means.std(0) / math.sqrt(M))
    return float(K * 2 * scipy_stats.t.sf(float(t.abs().max()), M - 1))


def efficiency(values: Tensor) -> float:
    """The least effective sample size of values [M, S, K], as a share of the draws. A sampler that
    stayed where it was would keep every average and fail this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz
    M, S, K = values.shape
    return min(float(arviz.ess(np.asarray(values[..., k]))) for k in range(K)) / (M * S)


def lockstep(
    net: nn.Module,
    data: tuple[Tensor, Tensor],
    rules: Rules,
    *,
    chains: int,
    samples: int,
    block: int,
    likelihood: object = "categorical",
    dtype: torch.dtype = torch.float64,
    step: float | None = None,
    blocks: int | None = None,
) -> dict[str, Tensor]:
    """The compiled engine and torch, both from the same state, `block` iterations at a time, held
    to each other in every tensor of the state and of the record; then both from torch's. So a
    difference of rounding has `block` iterations to grow in, and no more. The statistics.

    An iteration goes forth and back through three layers, whose gradients are sums over the data.
    In float64 a difference may grow by GROWTH beyond that, which a large step in the warm-up does.
    """
    GROWTH = 1e3 if dtype == torch.float64 else 1.0
    within = close(dtype, terms=len(data[0]), depth=6 * block, condition=GROWTH)
    run = Run(device="cpu", precision=str(dtype).removeprefix("torch."))
    problem = prepare(
        SamplerRequest(net=net, data=data, members=chains, likelihood=likelihood, seed=3, run=run)
    )
    like, x, y = problem.likelihood, problem.x, problem.y
    rows = 20  # so that torch's gradient is a sum over parts
    target = NetworkTarget(problem.net, like, x, y, problem.shapes, 1.0, rows)
    q = flatten(problem.start)
    state, record = begin(target, q, rules, step=step), empty(q, rules, samples)
    end = rules.warmup + samples
    done = 0
    while bool((state.transition < end).any()) and done != blocks:
        copy = Record(record.draws.clone(), record.stats.clone())
        twin_state = restored([t.clone() for t in tensors(state)])
        plain = PlainRunner(state, target, rules, record)
        twin = choose("fused", problem, target, twin_state, rules, copy)
        assert not isinstance(twin, PlainRunner)
        plain.advance(block)
        twin.advance(block)
        state = plain.state()
        named = [*zip(names(), tensors(state), tensors(twin.state()), strict=True)]
        for name, a, b in [*named, *zip(record._fields, record, copy, strict=True)]:
            where = f"{name} at transitions {state.transition.tolist()}"
            torch.testing.assert_close(
                _tamed(b),
                _tamed(a),
                **within,
                msg=functools.partial("{}: {}".format, where),
            )
        done += 1
    return {name: record.stats[..., i] for i, name in enumerate(STATS)}


def _tamed(t: Tensor) -> Tensor:
    """What a diverged leaf leaves behind may have overflowed here and not quite there, and nobody
    reads it again."""
    return torch.where(t.abs() < 1e30, t, 0)


def small_net(activation: type[nn.Module], outputs: int, *, bias: bool = True) -> nn.Sequential:
    """3 -> 5 -> 4 -> outputs."""
    return nn.Sequential(
        nn.Linear(3, 5, bias=bias),
        activation(),
        nn.Linear(5, 4, bias=bias),
        activation(),
        nn.Linear(4, outputs, bias=bias),
    )


def classes(n: int = 37) -> tuple[Tensor, Tensor]:
    """x [n, 3] and two classes [n]."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def curve(n: int = 37) -> tuple[Tensor, Tensor]:
    """x [n, 3] and a real number for each, [n, 1]."""
    x, _ = classes(n)
    return x, x[:, :1].sin() + 0.1 * x[:, 1:2]
