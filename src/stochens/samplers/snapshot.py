"""A run of NUTS or HMC at some moment, and how it goes on from there."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.members import flatten
from stochens.posterior.posterior import Posterior
from stochens.run.checkpoints import refuse_other
from stochens.samplers.coordinates import THETA, Coordinates
from stochens.samplers.engines import names, restored, tensors
from stochens.samplers.trajectory import STATS, Record, Rules, State


class Snapshot(NamedTuple):
    """A run at some moment, on the CPU: enough to go on as if nothing had been."""

    state: State
    record: Record

    def named(self) -> dict[str, Tensor]:
        flat = dict(zip(names(), tensors(self.state), strict=True))
        return {**flat, "draws": self.record.draws, "stats": self.record.stats}

    @classmethod
    def of(cls, named: dict[str, Tensor]) -> "Snapshot":
        state = restored([named[name] for name in names()])
        return cls(state, Record(named["draws"], named["stats"]))


def refuse_both(resume: object, found: object, folder: object) -> None:
    """Two runs to go on with: one of them would be left out without a word."""
    if resume is not None and found is not None:
        raise InputError(
            f"{folder} holds a run, and resume is a run too: to go on with the folder's leave "
            "resume out, else choose another folder"
        )


def find_snapshot(
    resume: Posterior | None,
    kept: dict[str, Tensor] | None,
    settings: dict[str, Any],
    coordinates: Coordinates = THETA,
) -> Snapshot | None:
    """The run to go on with, if there is one: that of a posterior, or one from a checkpoint."""
    if resume is not None:
        if resume.chains is None or not resume.chains.state:
            raise InputError("resume must be what nuts or hmc returned; it holds no chains")
        refuse_other(settings, resume.chains.settings, "resume")
        return Snapshot.of(_with_draws(resume, settings["warmup"], coordinates))
    return None if kept is None else Snapshot.of(kept)


def _with_draws(posterior: Posterior, warmup: int, coordinates: Coordinates) -> dict[str, Tensor]:
    """The state of a run. A whole one has its draws in the posterior alone, not twice; through
    coordinates they come back to rounding, while the chains go on from where they are exactly."""
    chains = posterior.chains
    assert chains is not None
    if "draws" in chains.state:
        return chains.state
    q = coordinates.w(flatten(posterior.params))
    draws = q.unflatten(0, (chains.count, -1)).cpu()
    after = torch.stack([chains.stats[name] for name in STATS], dim=-1)
    before = after.new_zeros(chains.count, warmup, len(STATS))  # nobody asks for it any more
    return {**chains.state, "draws": draws, "stats": torch.cat([before, after], dim=1)}


def check_continues(
    snapshot: Snapshot, rules: Rules, samples: int, device: torch.device
) -> tuple[State, Record]:
    """The run where it was, with room for so many samples."""
    # cloned, since engines work in place, and the posterior given stays as it is
    named = {name: t.to(device).clone() for name, t in snapshot.named().items()}
    state, old = Snapshot.of(named)
    if samples < old.draws.shape[1]:
        raise InputError(
            f"samples = {samples}, but the run to go on with has room for {old.draws.shape[1]}"
        )
    record = empty(state, rules, samples)
    record.draws[:, : old.draws.shape[1]] = old.draws
    record.stats[:, : old.stats.shape[1]] = old.stats
    return state, record


def empty(state: State, rules: Rules, samples: int) -> Record:
    """Room for the draws of a run, and for how each transition went."""
    M, D = state.tree_q.shape
    stats = torch.zeros(M, rules.warmup + samples, len(STATS), dtype=torch.float64)
    return Record(state.tree_q.new_zeros(M, samples, D), stats.to(state.tree_q.device))
