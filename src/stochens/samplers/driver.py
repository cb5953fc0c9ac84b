"""The loop round an engine: progress, interruptions, and what to keep of both."""

import time

import torch
from torch import Tensor

from stochens.randomness.hashed import MOMENTUM, normal
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar
from stochens.samplers.engines import Runner
from stochens.samplers.snapshot import Snapshot
from stochens.samplers.target import Target, prior_energy
from stochens.samplers.trajectory import STATS, Record, Rules, State, kinetic

BLOCK_SECONDS = 0.2  # between two looks at the progress
FIRST_STEP, ENOUGH = 0.1, 0.8  # where the search for a step size begins and what it looks for
LEAST, MOST = 1e-8, 1e3  # step sizes that the search may end at


def run(runner: Runner, record: Record, rules: Rules, bar: Bar, keep: Keeper) -> bool:
    """Advance until every chain has its draws; False if Ctrl-C came first."""

    def named() -> dict[str, Tensor]:
        return Snapshot(runner.state(), record).named()

    end, block = record.stats.shape[1], 1
    done = int(runner.state().transition.sum())
    total, began, first = end * len(record.stats), time.monotonic(), done
    try:
        while done < total:
            tick = time.monotonic()
            runner.advance(block)
            now = int(runner.state().transition.sum())  # waits for the device
            seconds = max(time.monotonic() - tick, 1e-6)
            block = max(1, min(2 * block, int(block * BLOCK_SECONDS / seconds)))
            bar.advance(now - done)
            done = now
            bar.note(
                _note(runner.state(), record, rules, (done - first) / (time.monotonic() - began))
            )
            keep(done, named)
    except KeyboardInterrupt:
        keep.now(int(runner.state().transition.sum()), named)
        return False
    keep.now(done, named)
    return True


def _note(state: State, record: Record, rules: Rules, speed: float) -> str:
    stats = record.stats
    made = torch.arange(stats.shape[1], device=stats.device) < state.transition.unsqueeze(1)
    leapfrogs = stats[..., STATS.index("leapfrogs")][made]
    after = made & (torch.arange(stats.shape[1], device=stats.device) >= rules.warmup)
    diverged = int(stats[..., STATS.index("diverged")][after].sum())
    mean = float(leapfrogs[-len(leapfrogs) // 2 :].mean()) if len(leapfrogs) else 0.0
    phase = "warm-up" if int(state.transition.min()) < rules.warmup else "sampling"
    return f"{phase}, {speed:,.1f} draws/s, {mean:,.0f} leapfrogs/draw, {diverged} diverged"


def reasonable_step(
    q: Tensor, likelihood: Tensor, g: Tensor, target: Target, key: Tensor
) -> Tensor:
    """log of a step size, [M], at which one leapfrog step is accepted about 8 times in 10: doubled
    or halved until it crosses that (Hoffman and Gelman, 2014, algorithm 4)."""
    M, D = q.shape
    unit = torch.ones_like(q)
    p = normal(key, torch.full_like(key, -1), MOMENTUM, D).to(q)
    start = (likelihood, prior_energy(q, target.precision), kinetic(p, unit))
    step = torch.full((M,), FIRST_STEP, dtype=torch.float64, device=q.device)
    way = torch.zeros_like(step)
    while True:
        eps = step.to(q).unsqueeze(1)
        half = p - 0.5 * eps * g
        there = q + eps * half
        energy, slope = target(there)
        end = (
            energy,
            prior_energy(there, target.precision),
            kinetic(half - 0.5 * eps * slope, unit),
        )
        error = sum((b - a for a, b in zip(start, end, strict=True)), torch.zeros_like(step))
        good = -error > torch.tensor(ENOUGH, dtype=torch.float64).log().to(error)  # NaN: no
        wanted = torch.where(good, 1.0, -1.0).to(step)
        way = torch.where(way == 0, wanted, way)
        going = (way == wanted) & (step > LEAST) & (step < MOST)
        if not bool(going.any()):
            return step.log()
        step = torch.where(going, step * 2.0**way, step)
