"""Learning rates over a run, and the optimisers that follow them.

The schedules are three functions of the share of training done, and not torch's schedulers: those
count steps and keep state, which a checkpoint and a CUDA graph would have to carry.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from stochens.checks import not_negative, positive, whole
from stochens.errors import InputError, check_known
from stochens.members import Params

# The authors divide the rate by 10 at 1/2 and 3/4 of training, each time with a fresh optimiser.
STEP_FRACTIONS = (0.5, 0.75)
STEP_FACTOR = 0.1

Schedule = Callable[[float], float]  # the share of training done, in [0, 1) -> factor of the rate
# stacked parameters, each [M, ...] -> one of torch's optimisers, or of one's own
OptimizerOf = Callable[[list[Tensor]], torch.optim.Optimizer]
OWN = "own"  # what such a one is called
LOOKED_AT = 16  # points at which a schedule of one's own is known again

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "step": lambda done: STEP_FACTOR ** sum(done >= fraction for fraction in STEP_FRACTIONS),
}
DEFAULT_RATES = {"adam": 1e-3, "adamw": 1e-3, "sgd": 0.1}
NATURAL_RATE = 0.1  # of natural gradients: a tenth of a Newton step
MOMENTUM = 0.9  # Nesterov's, for sgd
# Adam moves every parameter by about the rate. A noise of 0.01 is 9 away from where log_variance
# begins, ten times as far as a weight has to go: at the weights' rate it would hardly leave.
NOISE_FACTOR = 10.0
NOISE_RATE = 0.1  # its largest, unless the weights' is larger: 5 % of the noise a step


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What moves the parameters in `fit`, where its name alone does not say it.

    name: "adam", "adamw" or "sgd" (Nesterov); or a function that makes an optimiser of torch's kind
        for parameters stacked over members, [M, ...]: lambda params: torch.optim.RMSprop(params).
        Its rates are its own, times the schedule, and so is its weight decay; the prior is part of
        the gradient. One whose step for a member depends on the other members is refused.
    schedule: of the learning rate: "cosine", "step" (divided by 10 at 1/2 and 3/4 of training,
        with a fresh optimiser) or "constant"; or a function of the share of training that is done,
        in [0, 1), that gives the factor of the rate: lambda done: 1 - done.
    weight_decay: on top of the prior's L2.
    repulsion: sigma of the repulsive force between members; None for none (its value at machine
        precision). It couples the members.
    warmup: the share of training in which the rate grows from 0.
    clip: the largest norm of a member's gradient; a longer one is made so long. Each member has its
        own norm, over all its parameters, of the gradient of mean NLL + kl_weight * KL / N.
    accumulate: batches whose gradients make one step, as if they were one batch of all their rows,
        in the memory of one. The NLL is the same, and noise another draw.

    >>> Optimizer("sgd", schedule="step", clip=1.0).schedule
    'step'
    >>> Optimizer(torch.optim.RMSprop, schedule=lambda done: 1 - done).kind
    'own'
    """

    name: str | OptimizerOf = "adam"
    schedule: str | Schedule = "cosine"
    weight_decay: float = 0.0
    repulsion: float | None = None
    warmup: float = 0.0
    clip: float | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        if not callable(self.name):
            check_known("optimizer", self.name, DEFAULT_RATES)
        elif self.weight_decay:
            raise InputError("an optimizer of your own has its own weight_decay; say it there")
        check_share(warmup=self.warmup)
        if self.clip is not None:
            positive(clip=self.clip)
        whole(accumulate=self.accumulate)
        schedule_named(self.schedule)
        not_negative(weight_decay=self.weight_decay)
        if self.repulsion is not None:
            positive(repulsion=self.repulsion)

    @property
    def kind(self) -> str:
        """Its name; "own" for one's own."""
        return self.name if isinstance(self.name, str) else OWN


def check_share(**shares: float) -> None:
    """In [0, 1)."""
    for name, value in shares.items():
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise InputError(f"{name} must be a share in [0, 1), got {value!r}")


CURVATURE = 0.1  # that sigma begins at, of the mean NLL, where no sigma is given
# The share of training over which curvatures are averaged. More, and sigma has not left its start
# by the end; less, and it is noisy: one step knows a curvature to some hundred per cent.
SHARE_REMEMBERED = 0.1
LONGEST = 1e5  # steps, as the authors have it: b2 = 1 - 1e-5


@dataclasses.dataclass(frozen=True)
class Natural:
    """Gaussian members trained by natural gradients: `fit(..., optimizer=Natural())`.

    Every parameter of every member becomes N(m, sigma^2) with a sigma of its own, learned from the
    curvature of its loss (IVON). It goes with every method but "gaussian": with "dropout" each
    member is a dropout network whose weights are Gaussian. `predict(x, draws=16)` draws the weights
    as often. A posterior at a temperature T, (likelihood * prior)^(1 / T), is kl_weight=T with a
    prior of precision lambda / T.

    sigma: where all of them begin; None: where the mean NLL has a curvature of 0.1.
    momentum: b1.
    memory: steps over which curvatures are averaged, 1 / (1 - b2); None: a tenth of the training,
        and 100,000 at most.
    schedule: of the rate: "cosine" or "constant". The rate itself (`lr`, 0.1 unless told) is in
        units of the natural gradient: 1 is a Newton step.
    warmup: the share of training in which the rate grows from 0.

    >>> Natural(sigma=0.02).memory is None
    True
    """

    sigma: float | None = None
    momentum: float = 0.9
    memory: float | None = None
    schedule: str = "cosine"
    warmup: float = 0.05

    name: ClassVar[str] = "natural"
    kind: ClassVar[str] = "natural"
    weight_decay: ClassVar[float] = 0.0
    repulsion: ClassVar[float | None] = None
    clip: ClassVar[float | None] = None
    accumulate: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.sigma is not None:
            positive(sigma=self.sigma)
        check_share(momentum=self.momentum, warmup=self.warmup)
        check_known("schedule", self.schedule, [name for name in SCHEDULES if name != "step"])
        if self.memory is not None and self.memory < 1:
            raise InputError(f"memory must be at least 1 step, got {self.memory!r}")

    def forgets(self, steps: int) -> float:
        """1 - b2 in a training of so many steps.

        >>> Natural().forgets(100), Natural(memory=50).forgets(100), Natural().forgets(10**7)
        (0.1, 0.02, 1e-05)
        """
        if self.memory is not None:
            return 1 / self.memory
        return 1 / max(1.0, min(LONGEST, SHARE_REMEMBERED * steps))


def as_optimizer(
    optimizer: str | Optimizer | Natural | OptimizerOf, *, schedule: str = "cosine"
) -> Optimizer | Natural:
    """The optimiser of that name with this schedule, or the one that is given.

    >>> as_optimizer("sgd").schedule, as_optimizer(Optimizer(schedule="step")).schedule
    ('cosine', 'step')
    """
    if isinstance(optimizer, (Optimizer, Natural)):
        return optimizer
    if optimizer == Natural.name:
        return Natural(schedule=schedule)
    return Optimizer(optimizer, schedule=schedule)


def schedule_named(given: str | Schedule) -> Schedule:
    """The one of that name, or one's own, which is tried here.

    >>> schedule_named("constant")(0.3), schedule_named(lambda done: 1 - done)(0.25)
    (1.0, 0.75)
    """
    if not callable(given):
        check_known("schedule", given, SCHEDULES)
        return SCHEDULES[given]
    for k, factor in enumerate(map(given, _points())):
        if not isinstance(factor, (int, float)) or not 0 <= factor < math.inf:
            raise InputError(
                "schedule must give a factor of the rate that is a number and not negative; at "
                f"{_points()[k]:g} of training it gives {factor!r}"
            )
    return given


def describe_schedule(given: str | Schedule) -> str | list[float]:
    """Its name, or some of its values: what a training that goes on must share."""
    return [float(given(done)) for done in _points()] if callable(given) else given


def _points() -> list[float]:
    return [k / LOOKED_AT for k in range(LOOKED_AT)]


def warmed_up(schedule: Schedule, share: float) -> Schedule:
    """The same, growing from 0 over the first share of training.

    >>> factor = warmed_up(SCHEDULES["constant"], 0.1)
    >>> [round(factor(done), 2) for done in (0.0, 0.05, 0.1, 0.9)]
    [0.0, 0.5, 1.0, 1.0]
    """
    return lambda done: schedule(done) * (done / share if done < share else 1.0)


def restarts(name: str | Schedule, steps: int) -> set[int]:
    """Steps at which the optimiser starts afresh: those where the rate falls."""
    return {math.ceil(f * steps) for f in STEP_FRACTIONS} if name == "step" else set()


def rate_for(optimizer: str, lr: float | None) -> float:
    rates = {**DEFAULT_RATES, Natural.name: NATURAL_RATE, OWN: 1.0}
    check_known("optimizer", optimizer, rates)
    if lr is not None:
        positive(lr=lr)
        if optimizer == OWN:
            raise InputError("an optimizer of your own has its own rate; leave lr out")
    return rates[optimizer] if lr is None else lr


def optimizer_named(
    name: str,
    params: Params,
    *,
    lr: float,
    weight_decay: float,
    l2: dict[str, float] | None = None,
    noise: str | None = None,
    capturable: bool = False,
) -> torch.optim.Optimizer:
    """All of them work element by element, so that stacked members stay independent.

    A group of parameters has the rate times its "factor", and its "l2": what of the parameter
    itself a step adds to its gradient (`l2`, by name). `noise`: the parameter with the log of a
    likelihood's noise. `capturable`: for a CUDA graph.
    """
    noise = None if name == "sgd" else noise
    noise_factor = max(1.0, min(NOISE_FACTOR, NOISE_RATE / lr))
    together: dict[tuple[float, float], list[Tensor]] = {}
    for path, p in params.items():
        key = (noise_factor if path == noise else 1.0, 0.0 if l2 is None else l2[path])
        together.setdefault(key, []).append(p)
    groups = [{"params": own, "factor": f, "l2": slope} for (f, slope), own in together.items()]
    if name == "sgd":  # it counts no steps, so that a graph can always hold it
        return torch.optim.SGD(
            groups,
            lr=lr,
            momentum=MOMENTUM,
            nesterov=True,
            weight_decay=weight_decay,
            fused=True,
        )
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(
        groups,
        lr=lr,
        weight_decay=weight_decay,
        fused=True,
        capturable=capturable,
    )
