"""What a training is given and what comes of it: the words that its files share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stochens.data import Source
from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params
from stochens.posterior.history import History
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.posterior import Posterior
from stochens.prior import Centred
from stochens.program.features import Kept, OnHost
from stochens.run.checkpoints import Keeper
from stochens.run.progress import Bar, Log
from stochens.training.callbacks import Callbacks
from stochens.training.schedules import Natural, OptimizerOf, Schedule
from stochens.training.validation import Validation
from stochens.trees import Input


class Collector(Protocol):
    """Watches the parameters of a block of members while they train (SWA, SWAG)."""

    def update(self, params: Params, *, step: int, steps: int) -> None: ...

    def finish(self, params: Params) -> tuple[Params, LowRankGaussian | None]: ...

    def state(self) -> Params:
        """To go on with later; `restore` takes it back."""

    def restore(self, state: Params) -> None: ...

    def settings(self) -> dict[str, Any]:
        """What one that goes on must share with the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the loop needs to know; `fit` checks it."""

    epochs: int
    batch_size: int  # rows of a pass over the network
    optimizer: str
    lr: float
    weight_decay: float
    own: OptimizerOf | None  # where that is one of the user's
    schedule: str | Schedule
    warmup: float  # the share of training in which the rate grows
    clip: float | None  # the norm of a member's gradient, at most
    accumulate: int  # batches of a step
    natural: Natural | None  # None: the optimiser is the one of that name
    prior_precision: float
    kl_weight: float
    repulsion: float | None
    seed: int
    device: torch.device
    bf16: bool | None  # None: by kernels alone
    tf32: bool
    engine: Engine
    fast: bool  # whether kernels and CUDA graphs may do the work
    compile: bool  # whether torch.compile does


class HeldOut(NamedTuple):
    """What members are validated on, on the device that computes."""

    net: nn.Module  # the network, or what comes after its frozen part
    x: Input | OnHost  # [V, ...]
    y: Tensor  # [V, ...]
    weights: Tensor | None  # [V], of mean 1
    rows: int  # at a time
    options: Validation


class Task(NamedTuple):
    """What is trained, on what and how: all but the members and where they begin."""

    net: nn.Module
    data: Source
    likelihood: Likelihood
    settings: Settings
    # of these members by this seed; None: N(0, 1 / prior_precision)
    prior: Callable[[tuple[int, ...], int], Centred] | None = None
    kept: Kept | None = None  # features, where a part of the network is the same for all members
    held: HeldOut | None = None


class SoFar(Protocol):
    """These members as they are now, as a posterior."""

    def __call__(
        self, params: Params, low_rank: LowRankGaussian | None, own: tuple[int, ...]
    ) -> Posterior: ...


class Watchers(NamedTuple):
    """Who looks on while a block of members trains."""

    collector: Collector | None
    bar: Bar
    log: Log | None
    keep: Keeper
    callbacks: Callbacks
    so_far: SoFar
    of: int  # members in all blocks


class Lost(NamedTuple):
    """When a member's loss was no number for the first time, and what it was."""

    step: int  # -1: never, but its parameters are none
    loss: float


class Trained(NamedTuple):
    params: Params
    low_rank: LowRankGaussian | None
    history: History
    lost: dict[int, Lost]  # by member
