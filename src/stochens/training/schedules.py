"""Learning rates over a run, and the optimisers that follow them.

The schedules are three functions of the share of training done, and not torch's schedulers: those
count steps and keep state, which a checkpoint and a CUDA graph would have to carry.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from stochens.checks import not_negative, positive
from stochens.errors import check_known
from stochens.members import Params

# The authors divide the rate by 10 at 1/2 and 3/4 of training, each time with a fresh optimiser.
STEP_FRACTIONS = (0.5, 0.75)
STEP_FACTOR = 0.1

Schedule = Callable[[float], float]  # the share of training done, in [0, 1) -> factor of the rate

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "step": lambda done: STEP_FACTOR ** sum(done >= fraction for fraction in STEP_FRACTIONS),
}
DEFAULT_RATES = {"adam": 1e-3, "adamw": 1e-3, "sgd": 0.1}
MOMENTUM = 0.9  # Nesterov's, for sgd
# Adam moves every parameter by about the rate. A noise of 0.01 is 9 away from where log_variance
# begins, ten times as far as a weight has to go: at the weights' rate it would hardly leave.
NOISE_FACTOR = 10.0
NOISE_RATE = 0.1  # its largest, unless the weights' is larger: 5 % of the noise a step


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What moves the parameters in `fit`, where its name alone does not say it.

    name: "adam", "adamw" or "sgd" (Nesterov).
    schedule: of the learning rate: "cosine", "step" (divided by 10 at 1/2 and 3/4 of training,
        with a fresh optimiser) or "constant".
    weight_decay: on top of the prior's L2.

    >>> Optimizer("sgd", schedule="step")
    Optimizer(name='sgd', schedule='step', weight_decay=0.0)
    """

    name: str = "adam"
    schedule: str = "cosine"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_known("optimizer", self.name, DEFAULT_RATES)
        check_known("schedule", self.schedule, SCHEDULES)
        not_negative(weight_decay=self.weight_decay)


def as_optimizer(optimizer: str | Optimizer, *, schedule: str = "cosine") -> Optimizer:
    """The optimiser of that name with this schedule, or the one that is given.

    >>> as_optimizer("sgd").schedule, as_optimizer(Optimizer(schedule="step")).schedule
    ('cosine', 'step')
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    return Optimizer(optimizer, schedule=schedule)


def schedule_named(name: str) -> Schedule:
    check_known("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def restarts(name: str, steps: int) -> set[int]:
    """Steps at which the optimiser starts afresh: those where the rate falls."""
    return {math.ceil(f * steps) for f in STEP_FRACTIONS} if name == "step" else set()


def rate_for(optimizer: str, lr: float | None) -> float:
    check_known("optimizer", optimizer, DEFAULT_RATES)
    if lr is not None:
        positive(lr=lr)
    return DEFAULT_RATES[optimizer] if lr is None else lr


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
