"""What `fit` and every sampler are asked for, as one object that does not change.

A trial of `method="auto"`, and a block of members on another machine, is asked for the same with
something replaced: `dataclasses.replace(request, members=...)`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn

from stochens.adapter import Output
from stochens.checks import member_ids, not_negative, positive, whole, whole_or_none, whole_seed
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Builder, Params
from stochens.methods import MethodLike
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior, as_prior
from stochens.run.cluster.folder import refuse_url
from stochens.run.options import Run
from stochens.training.loop import Collector
from stochens.training.schedules import Optimizer, rate_for

# A name, one network's weights for all, a list with one for each member, or stacked parameters
Start = str | nn.Module | Params | Sequence[nn.Module | Params] | Posterior


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What all of them share."""

    which: ClassVar[str] = "members"  # what the members are called: a sampler may have chains

    net: nn.Module | Builder
    data: Any
    members: int | Sequence[int]  # how many, or which
    start: Start
    target: str | None = None  # what y is called, where the data is dictionaries
    output: Output | None = None  # what of the network's outputs counts
    likelihood: str | Likelihood = "categorical"
    prior_precision: float = 1.0
    prior: Prior | None = None  # None: N(0, 1 / prior_precision)
    seed: int = 0
    run: Run = Run()

    def __post_init__(self) -> None:
        """What is out of its range, or does not go together."""
        member_ids(self.members, self.which)
        whole_seed(self.seed)
        positive(prior_precision=self.prior_precision)
        if self.prior is not None:
            kept = as_prior(self.prior, self.prior_precision)
            object.__setattr__(self, "prior_precision", self.prior.precision)
            object.__setattr__(self, "prior", kept)
        if self.prior is not None and self.prior.needs_start and self.start == "prior":
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitRequest(Request):
    """The arguments of `fit`, which says what they mean."""

    method: MethodLike | None = None
    members: int | Sequence[int] = 50
    epochs: int = 100
    batch_size: int | None = 128
    optimizer: Optimizer = Optimizer()
    lr: float | None = None
    kl_weight: float = 1.0
    sample_weight: Any = None
    skip: str | Sequence[str] = ()
    start: Start = "reset"
    bootstrap: bool = False
    jitter: float = 0.0
    repulsion: float | None = None
    on_divergence: str = "retry"
    collect: Callable[[], Collector] | None = None  # for a block of members, who watches it

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(epochs=self.epochs)
        whole_or_none(batch_size=self.batch_size)
        not_negative(kl_weight=self.kl_weight)
        not_negative(jitter=self.jitter)
        rate_for(self.optimizer.name, self.lr)
        if self.repulsion is not None:
            positive(repulsion=self.repulsion)
        if self.on_divergence not in ("retry", "drop", "keep"):
            raise InputError(
                f"on_divergence must be 'retry', 'drop' or 'keep', got {self.on_divergence!r}"
            )
        if self.run.cluster is None:
            return
        if self.repulsion is not None:
            raise InputError("repulsion couples all members, and cannot go with engine='ray'")
        if self.run.log is not None:
            raise InputError("log is for one machine, and cannot go with engine='ray'")
