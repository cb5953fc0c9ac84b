"""What `fit` and every sampler are asked for, as one object that does not change.

A trial of `method="auto"`, and a block of members on another machine, is asked for the same with
something replaced: `dataclasses.replace(request, members=...)`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn

from stochens.adapter import Output
from stochens.checks import member_ids, not_negative, whole, whole_or_none, whole_seed
from stochens.data import Data
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Builder, Params
from stochens.methods import MethodLike
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior, as_prior
from stochens.run.cluster.folder import refuse_url
from stochens.run.options import Run
from stochens.training.callbacks import as_callbacks
from stochens.training.schedules import Natural, Optimizer, rate_for
from stochens.training.task import Collector
from stochens.training.validation import as_validation

# A name, one network's weights for all, a list with one for each member, or stacked parameters
Place = str | nn.Module | Params | Sequence[nn.Module | Params] | Posterior


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Where members or chains begin, where a name or weights alone do not say it.

    at: what `start` takes in `fit` or a sampler: "reset", "module", "prior", a module, a state
        dict, a list of them, Params or a Posterior.
    jitter: a random step away from there, as a share of each parameter's size:
        p + jitter * rms(p) * n,  n ~ N(0, 1) by (seed, member). The prior's mean has none of it.

    >>> Start("module", jitter=0.01)  # starts that differ by 1 %
    Start(at='module', jitter=0.01)
    """

    at: Place
    jitter: float = 0.0

    def __post_init__(self) -> None:
        not_negative(jitter=self.jitter)
        if isinstance(self.at, Start):
            raise InputError("Start in Start: say the place and the jitter once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What all of them share."""

    which: ClassVar[str] = "members"  # what the members are called: a sampler may have chains

    net: nn.Module | Builder
    data: Any  # `given` is a Data in any case
    members: int | Sequence[int]  # how many, or which
    start: Place | Start  # a Start becomes its place and its jitter
    jitter: float = 0.0
    output: Output | None = None  # what of the network's outputs counts
    likelihood: str | Likelihood = "categorical"
    prior: float | Prior = 1.0  # `full_prior` and `prior_precision` say which
    seed: int = 0
    run: Run = Run()

    def __post_init__(self) -> None:
        """What is out of its range, or does not go together."""
        member_ids(self.members, self.which)
        whole_seed(self.seed)
        if isinstance(self.start, Start):
            object.__setattr__(self, "jitter", self.start.jitter)
            object.__setattr__(self, "start", self.start.at)
        if as_prior(self.prior).needs_start and self.start == "prior":
            raise InputError(
                "the prior's mean is where members begin, and start='prior' is a draw from it; "
                "begin elsewhere, such as start='module'"
            )
        if self.run.cluster is None:
            refuse_url(self.run.checkpoint)

    @property
    def ids(self) -> tuple[int, ...]:
        """Who they are."""
        return member_ids(self.members, self.which)

    @property
    def given(self) -> Data:
        """The data, with what is to be known of them."""
        return Data.of(self.data)

    @property
    def prior_precision(self) -> float:
        return as_prior(self.prior).precision

    @property
    def full_prior(self) -> Prior | None:
        """Where it is more than a precision; None: N(0, 1 / prior_precision)."""
        prior = as_prior(self.prior)
        return None if prior.plain else prior


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitRequest(Request):
    """The arguments of `fit`, which says what they mean."""

    method: MethodLike | None = None
    members: int | Sequence[int] = 50
    epochs: int = 100
    batch_size: int | None = 128
    optimizer: Optimizer | Natural = Optimizer()
    lr: float | None = None
    kl_weight: float = 1.0
    start: Place | Start = "reset"
    bootstrap: bool = False
    on_divergence: str = "retry"
    validation: Any = None  # a Validation, or None, once it is checked
    callbacks: Any = ()  # a tuple of Callbacks, once it is checked
    collect: Callable[[], Collector] | None = None  # for a block of members, who watches it

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(epochs=self.epochs)
        whole_or_none(batch_size=self.batch_size)
        not_negative(kl_weight=self.kl_weight)
        rate_for(self.optimizer.kind, self.lr)
        object.__setattr__(self, "validation", as_validation(self.validation))
        object.__setattr__(self, "callbacks", as_callbacks(self.callbacks))
        if self.validation is not None and self.collect is not None:
            raise InputError("averages of the tail are of whole trainings, and know no validation")
        if isinstance(self.optimizer, Natural):
            if self.kl_weight == 0:
                raise InputError("natural gradients need a KL; use kl_weight above 0")
            if self.collect is not None:
                raise InputError(
                    "averages of the tail are for plain members, and natural gradients make "
                    "Gaussian ones; use another optimizer, or fit"
                )
        if self.on_divergence not in ("retry", "drop", "keep"):
            raise InputError(
                f"on_divergence must be 'retry', 'drop' or 'keep', got {self.on_divergence!r}"
            )
        if self.run.cluster is None:
            return
        if self.optimizer.repulsion is not None:
            raise InputError("repulsion couples all members, and cannot go with engine='ray'")
        if self.callbacks:
            raise InputError("callbacks are for one machine, and cannot go with engine='ray'")
        if self.run.log is not None:
            raise InputError("log is for one machine, and cannot go with engine='ray'")
