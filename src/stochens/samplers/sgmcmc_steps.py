"""The steps of stochastic-gradient MCMC on flat positions q [M, D], and what each one is for.

    p <- beta p - s g + sqrt(2 (1 - beta) T - s^2 n) xi,   xi ~ N(0, 1)
    q <- q + s p,   s = sqrt(lr / (N m))

g estimates dU / dq, with a noise of variance n (batch_noise.py). SGLD is beta = 0. Written in the
momentum p, whose variance 2 T / (1 + beta) is the same for all small steps, so that their size may
change on the way. On a Gaussian of precision a, with the exact g, the chain is an AR(2) process,
and the variance of its draws is

    T / (a (1 - s^2 a / (2 (1 + beta)))):

right for small steps, and too wide by a share that is known.

m is 1, or what the chain learns of each parameter while it burns in (`step_scale`): by RMSprop the
size of gradients; by "fisher" the variance of one example's gradient, which where the network is
right about its data is the curvature, so that lr^(1/2) is a step in standard deviations of the
posterior.
"""

import time
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.program.data_term import DataTerm
from stochens.randomness.hashed import MOMENTUM, normal
from stochens.randomness.seeds import SAMPLER, derive
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar
from stochens.samplers import noisy_directions
from stochens.samplers.batch_noise import (
    Noise,
    cooled,
    kick_variance,
    noise_share,
    seen,
    step_share,
    unknown,
)
from stochens.samplers.chain_heat import Heat, measured
from stochens.samplers.gradients import Gradient, random_rows, refuse_bad_start
from stochens.samplers.noisy_directions import Noisy
from stochens.samplers.problem import Problem
from stochens.samplers.sgmcmc_plan import Cycle

AVERAGING = 0.99  # alpha of RMSprop; Li et al. 2016, and Izmailov et al. 2021
STREAM = 1  # of the numbers of (seed, SAMPLER, chain); those without it are of nuts and hmc


class State(NamedTuple):
    """All chains after a step."""

    q: Tensor  # [M, D]
    p: Tensor  # [M, D]
    square: Tensor  # [M, D], the running average of (g / N)^2, or of what is in `spread`
    centre: Tensor  # [M, D], where the burn-in ended
    spread: Tensor  # [M, D] or, without "fisher", [M, 0]: that of an example's gradient's variance
    noise: Noise
    noisy: Noisy  # of "fisher"
    weight: float  # of the gradients in the averages; the rest is the zero that they began with
    looks: int  # at the noise of mini-batches

    def named(self) -> dict[str, Tensor]:
        """Its tensors; those of the noise are told apart by a prefix."""
        own = {name: t for name, t in self._asdict().items() if isinstance(t, Tensor)}
        own |= {f"noise {name}": t for name, t in self.noise._asdict().items()}
        return own | {f"noisy {name}": t for name, t in self.noisy._asdict().items()}


def keys(problem: Problem) -> Tensor:
    """Of the random numbers of each chain, [M]."""
    each = [derive(problem.seed, SAMPLER, chain, STREAM) for chain in problem.ids]
    return torch.tensor(each, device=problem.x.device)


def initial(q: Tensor, key: Tensor, plan: Cycle) -> State:
    """At rest at q [M, D]."""
    v = normal(key, torch.full_like(key, -1), MOMENTUM, q.shape[1]).to(q)
    noisy = noisy_directions.none(q, 1 - plan.momentum, wanted=plan.fisher and plan.temperature > 0)
    return State(
        q=q,
        p=torch.zeros_like(q),
        square=torch.zeros_like(q),
        centre=q,
        spread=torch.zeros_like(q if plan.fisher else q[:, :0]),
        noise=unknown(v),
        noisy=noisy,
        weight=0.0,
        looks=0,
    )


def adapted(state: State, g: Tensor, data_size: int) -> State:
    """V <- alpha V + (1 - alpha) (g / N)^2"""
    square = AVERAGING * state.square + (1 - AVERAGING) * (g / data_size).square()
    return state._replace(square=square, weight=AVERAGING * state.weight + 1 - AVERAGING)


def with_spread(state: State, g: Tensor, data_size: int, batch_size: int) -> State:
    """The same with the variance of one example's gradient, B / N^2 E (g' - g)^2 / 2.

    Of the differences of neighbouring steps, and not of g: far from the posterior all gradients are
    large, and a chain that stepped by their size would stay there.
    """
    noise = state.noise._replace(last=g)
    if state.weight <= 1 - AVERAGING:  # the first gradient has none before it
        return state._replace(noise=noise)
    half = (g - state.noise.last).square() * (0.5 * batch_size / data_size**2)
    return state._replace(spread=AVERAGING * state.spread + (1 - AVERAGING) * half, noise=noise)


def step_scale(
    state: State, lr: float, data_size: int, precision: float | Tensor, *, by_fisher: bool = False
) -> Tensor:
    """s = sqrt(lr / (N m)),   m = sqrt(V) + sqrt(lambda) / N  or, of "fisher",  V + lambda / N,
    [M, D]; m = 1 where there is no V, [M, 1]. lr is multiplied by the rate of each chain.

    What is added is what the first term would be for a parameter that the data leave alone, E g^2 =
    lambda. A gradient that is 0 by chance, or in a dead unit, then makes no enormous step.
    """
    rate = (state.noise.rate * (lr / data_size)).to(state.q).unsqueeze(1)  # [M, 1]
    if state.weight == 0:
        return rate.sqrt()
    V = (state.spread if by_fisher else state.square) / state.weight  # [M, D]
    m = V + precision / data_size if by_fisher else V.sqrt() + precision**0.5 / data_size
    return torch.rsqrt(m / rate)


def move_chains(state: State, g: Tensor, s: Tensor, kept: Tensor) -> State:
    """p <- kept - s g;   q <- q + s p.   kept: beta p and what is injected."""
    p = kept - s * g  # [M, D]
    return state._replace(q=state.q + s * p, p=p)


# The loop -----------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What is kept of the steps that draw."""

    draws: Tensor  # [M, samples, D]
    likelihood: Tensor  # [M, samples]
    heat: Heat  # [M, samples, K + 1]

    def upto(self, made: int) -> dict[str, Tensor]:
        """What there is of it, by name."""
        named = {"draws": self.draws, "likelihood": self.likelihood, **self.heat._asdict()}
        return {name: t[:, :made] for name, t in named.items()}


class Progress(NamedTuple):
    """How far a run is: enough to go on as if nothing had been."""

    state: State
    step: int  # the next
    made: int  # draws that every chain has

    def named(self) -> dict[str, Tensor]:
        counts = [self.state.weight, self.state.looks, self.step, self.made]
        return {**self.state.named(), "counts": torch.tensor(counts, dtype=torch.float64)}

    @classmethod
    def of(cls, named: dict[str, Tensor], device: torch.device) -> "Progress":
        weight, looks, step, made = named["counts"].tolist()
        noise = Noise(*(named[f"noise {name}"].to(device) for name in Noise._fields))
        q, p, square, centre = (named[name].to(device) for name in State._fields[:4])
        spread = named.get("spread", q[:, :0]).to(device)
        noisy = Noisy(*(named[f"noisy {name}"].to(device) for name in Noisy._fields))
        state = State(q, p, square, centre, spread, noise, noisy, weight, int(looks))
        return cls(state, int(step), int(made))


def run(
    problem: Problem,
    plan: Cycle,
    start: Progress,
    data_term: DataTerm,
    batch_size: int,
    record: Record,
    bar: Bar,
    keep: Keeper,
) -> Progress:
    """Take all the steps that are left; how far it came, which is less if Ctrl-C did."""
    at, chains, key = start, len(start.state.q), keys(problem)
    mini = batch_size < len(problem.x)
    gradient = Gradient(problem, data_term)
    sizes = [shape.numel() for shape in problem.shapes.values()]
    began = time.monotonic()
    try:
        for step in range(start.step, plan.steps):
            rows = random_rows(problem, key, batch_size, step) if mini else None
            energy, g = gradient(at.state.q, rows, step)
            if step == 0:
                refuse_bad_start(energy, problem.ids)
            before, s = _prepared(problem, plan, at.state, g, step, batch_size, mini=mini)
            state, made = _step(plan, before, g, s, key, step, mini=mini), at.made
            if plan.at(step).draws:
                record.draws[:, made] = state.q
                record.likelihood[:, made] = energy
                at_draw = before._replace(p=state.p)  # the momentum that q was left with
                for kept, value in zip(record.heat, _heat(plan, at_draw, g, s, sizes), strict=True):
                    kept[:, made] = value
                made += 1
                speed = chains * (made - start.made) / (time.monotonic() - began)
                bar.note(f"draw {made} of {plan.samples}, {speed:,.1f} draws/s")
            at = Progress(state, step + 1, made)  # at once, so that Ctrl-C finds all or nothing
            bar.advance(chains)
            keep(at.step, lambda: _kept(at, record))  # noqa: B023, called at once
        keep.now(at.step, lambda: _kept(at, record))
    except KeyboardInterrupt:
        return at
    return at


def _kept(at: Progress, record: Record) -> dict[str, Tensor]:
    return {**at.named(), **record.upto(at.made)}


def _heat(plan: Cycle, state: State, g: Tensor, s: Tensor, sizes: list[int]) -> Heat:
    away = (state.q - state.centre) / s  # in the coordinates of the steps
    p = noisy_directions.as_if_free(state.noisy, state.p, plan.momentum)
    return measured(away, s * g, p, state.noise.v, plan.momentum, sizes)


def _prepared(
    problem: Problem, plan: Cycle, state: State, g: Tensor, step: int, batch: int, *, mini: bool
) -> tuple[State, Tensor]:
    """What is learned from the gradient before the chains move, and s [M, 1] or [M, D]."""
    now, N, last = plan.at(step), len(problem.x), state.noise.last
    if now.adapts:
        state = adapted(state, g, N)
        if plan.fisher:
            state = with_spread(state, g, N, batch)
    if plan.ends_burn_in(step):
        state = state._replace(centre=state.q)
    if plan.ends_looking(step):
        state = _with_lr(plan, state, step, mini=mini)
    precision = problem.coordinates.precision(problem.prior_precision)
    s = step_scale(state, now.lr, N, precision, by_fisher=now.by_fisher)
    if now.looks:
        looks = 0 if plan.begins_to_look(step) else state.looks + 1
        as_drawn = step_scale(state, plan.lr, N, precision, by_fisher=True) if plan.fisher else s
        half = as_drawn * (g - last) * 0.5**0.5
        noisy, left = _noisy_after(plan, state.noisy, half, looks, step)
        noise = seen(state.noise._replace(last=last), g, left, looks)
        state = state._replace(noise=noise, noisy=noisy, looks=looks)
    return state, s


def _noisy_after(
    plan: Cycle, noisy: Noisy, half: Tensor, looks: int, step: int
) -> tuple[Noisy, Tensor]:
    """What is known of the noisiest directions after one more difference, and what of that lies
    beside them."""
    if looks == 0 or noisy.v.shape[1] == 0:
        return noisy, half
    if not plan.half_way(step):
        return noisy_directions.sketched(noisy, half, looks), half
    if not plan.half_way(step - 1):
        noisy = noisy_directions.found(noisy)
    return noisy_directions.measured(noisy, half)


def _with_lr(plan: Cycle, state: State, step: int, *, mini: bool) -> State:
    """With the lr, and the friction, that are made to the noise that was seen."""
    noise, noisy, before = state.noise, state.noisy, state.noise.rate
    share = (
        noise_share(noise, plan.kick)
        if mini
        else step_share(noise, plan.momentum, plan.temperature)
    )
    if noisy.v.shape[1] > 0:
        noisy = noisy_directions.averaged(noisy, plan.measured(step))
        share = torch.maximum(share, noisy_directions.share_of(noisy, plan.temperature))
    if plan.cools:
        noise = cooled(noise, share)
    if noisy.v.shape[1] > 0:
        noisy = noisy_directions.rubbed(
            noisy, noise.rate / before, plan.momentum, plan.temperature, last=plan.corrects(step)
        )
        # with a given lr there may be more noise than any friction takes: the draws are to tell
        above = noisy_directions.share_of(noisy, plan.temperature) > 1
        noise = noise._replace(v=torch.where(above.unsqueeze(1), noisy.v[:, 0], noise.v))
    return state._replace(noise=noise, noisy=noisy)


def _step(
    plan: Cycle, state: State, g: Tensor, s: Tensor, key: Tensor, step: int, *, mini: bool
) -> State:
    now, noisy = plan.at(step), state.noisy
    if now.temperature == 0:
        return move_chains(state, g, s, plan.momentum * state.p)
    variance: Tensor | float = plan.kick
    if mini and now.corrects:
        held = noisy.held if now.by_fisher else 0.0
        variance = kick_variance(state.noise, state.looks, s, plan.kick, held)
    # xi is a function of (seed, chain, step): a chain is the same in any company, on any device
    xi = normal(key, torch.full_like(key, step), MOMENTUM, g.shape[1]).to(g)  # [M, D]
    kick = variance**0.5 * xi
    if not now.by_fisher:
        return move_chains(state, g, s, plan.momentum * state.p + kick)
    how = {"momentum": plan.momentum, "T": plan.temperature}
    return move_chains(state, g, s, noisy_directions.turned(noisy, state.p, kick, key, step, **how))
