"""MultiSWA and MultiSWAG: each member's average over the tail of its training, and a Gaussian
around it (Izmailov et al., 2018; Maddox et al., 2019; Wilson and Izmailov, 2020)."""

from typing import Any

import torch
from torch import nn

from stochens.errors import InputError
from stochens.members import Builder, Params
from stochens.methods import MethodLike
from stochens.moved import refuse_moved
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.posterior import Posterior
from stochens.run.options import Run, merge_run
from stochens.run.progress import Show
from stochens.training.auto import Auto
from stochens.training.fit import fit_by
from stochens.training.request import FitRequest
from stochens.training.schedules import Optimizer, as_optimizer


@refuse_moved
def multiswa(
    net: nn.Module | Builder,
    data: Any,
    *,
    average_from: float = 0.5,
    snapshots: int = 20,
    optimizer: str | Optimizer = "adam",
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
    **options: Any,
) -> Posterior:
    """Members that are the running average of their own tail; one inference each.

    The tail is the part of training after the share `average_from`; `snapshots` of it are averaged,
    evenly spaced, or all of its steps where it has fewer. Other options are those of `fit`; the
    learning rate is constant unless `optimizer` is an Optimizer with another schedule.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = multiswa(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), members=3, epochs=4)
    >>> posterior.low_rank is None, posterior.predict(x).probs.shape
    (True, torch.Size([3, 40, 2]))
    """
    tail = Tail(average_from, snapshots, None)
    run = merge_run(run, device=device, progress=progress)
    return _fit_tail(tail, net=net, data=data, optimizer=optimizer, run=run, **options)


@refuse_moved
def multiswag(
    net: nn.Module | Builder,
    data: Any,
    *,
    average_from: float = 0.5,
    snapshots: int = 40,
    rank: int = 20,
    optimizer: str | Optimizer = "adam",
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
    **options: Any,
) -> Posterior:
    """MultiSWA with SWAG's Gaussian around each average: diagonal plus `rank` last deviations.

    `predict(x, draws=S)` draws every member's whole parameter vector S times.

    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> data = (x, (x[:, 0] > 0).long())
    >>> posterior = multiswag(nn.Linear(2, 2), data, members=3, epochs=40, rank=5)
    >>> posterior.predict(x, draws=4).probs.shape
    torch.Size([12, 40, 2])
    """
    if not 2 <= rank <= snapshots:
        raise InputError(f"rank must be between 2 and snapshots = {snapshots}, got {rank}")
    tail = Tail(average_from, snapshots, rank)
    run = merge_run(run, device=device, progress=progress)
    return _fit_tail(tail, net=net, data=data, optimizer=optimizer, run=run, **options)


def _fit_tail(
    tail: "Tail",
    *,
    optimizer: str | Optimizer,
    method: MethodLike | Auto | None = "regular",
    **options: Any,
) -> Posterior:
    """`fit` with such a tail for every block of members; `options` are those of a FitRequest."""
    steady = as_optimizer(optimizer, schedule="constant")
    return fit_by(method, FitRequest(optimizer=steady, collect=tail.anew, **options))


class Tail:
    """Running mean and variance of the parameters over the tail, and the last `rank` deviations.

    Only snapshots of the tail count; the parameters at its start are not one.
    """

    def __init__(self, average_from: float, snapshots: int, rank: int | None) -> None:
        if not 0 <= average_from < 1:
            raise InputError(f"average_from must be a share in [0, 1), got {average_from!r}")
        if snapshots < 1:
            raise InputError(f"snapshots must be at least 1, got {snapshots}")
        self.average_from = average_from
        self.snapshots = snapshots
        self.rank = rank
        self.count = 0
        self.mean: Params = {}
        self.scatter: Params = {}  # sum of squared deviations from the mean, by Welford's update
        self.deviations: list[Params] = []

    def anew(self) -> "Tail":
        """Another with the same options, which has seen nothing."""
        return Tail(self.average_from, self.snapshots, self.rank)

    def update(self, params: Params, *, step: int, steps: int) -> None:
        length = steps - int(self.average_from * steps)
        count = min(self.snapshots, length)
        if self.rank is not None and count < self.rank:  # known at the first step
            raise InputError(
                f"the tail has {count} steps to take snapshots of, fewer than rank = {self.rank}; "
                "train longer, or ask for a smaller rank"
            )
        at = step - (steps - length)
        # `count` of the steps 1 to `length` of the tail, and the last is always one of them
        if at > 0 and at * count // length > (at - 1) * count // length:
            self.snapshot({name: p.detach() for name, p in params.items()})

    def snapshot(self, params: Params) -> None:
        """mean_n = mean + (theta - mean) / n;  the deviation kept is theta - mean_n."""
        if self.count == 0:
            self.mean = {name: torch.zeros_like(p) for name, p in params.items()}
            self.scatter = {name: torch.zeros_like(p) for name, p in params.items()}
        self.count += 1
        kept: Params = {}
        for name, p in params.items():
            before = p - self.mean[name]
            self.mean[name] = self.mean[name] + before / self.count
            kept[name] = p - self.mean[name]
            if self.rank is not None:
                self.scatter[name] = self.scatter[name] + before * kept[name]
        if self.rank is not None:
            self.deviations = [*self.deviations[1 - self.rank :], kept]

    def settings(self) -> dict[str, Any]:
        own = {"snapshots": self.snapshots, "rank": self.rank}
        return {"average_from": self.average_from, **own}

    def state(self) -> Params:
        """To go on with later."""
        parts = {"mean": self.mean, "scatter": self.scatter}
        parts |= {f"deviations/{k}": d for k, d in enumerate(self.deviations)}
        named = {f"{part}/{name}": t for part, named in parts.items() for name, t in named.items()}
        return {"count": torch.tensor(self.count), **named}

    def restore(self, state: Params) -> None:
        def part(prefix: str) -> Params:
            return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}

        self.count = int(state["count"])
        self.mean, self.scatter = part("mean/"), part("scatter/")
        found = (part(f"deviations/{k}/") for k in range(self.rank or 0))
        self.deviations = [deviation for deviation in found if deviation]

    def finish(self, params: Params) -> tuple[Params, LowRankGaussian | None]:
        mean = {name: self.mean[name] for name in params}  # in their order, not a file's
        if self.rank is None:
            return mean, None
        variance = {name: self.scatter[name] / self.count for name in params}
        columns = {
            name: torch.stack([d[name] for d in self.deviations], dim=1) for name in params
        }  # [M, rank, ...]
        return mean, LowRankGaussian(variance, columns)
