"""Members as they are at a moment of their training: what callbacks see, and validation keeps."""

from collections.abc import Callable
from typing import Any

import torch

from stochens.likelihoods import Predicted
from stochens.members import Params
from stochens.posterior.low_rank import LowRankGaussian
from stochens.training.callbacks import View
from stochens.training.natural import NaturalGradient
from stochens.training.selection import Validator
from stochens.training.snapshot import Held
from stochens.training.task import Task, Watchers

STATE = ("params", "variance")  # what members are


def view_of(
    task: Task,
    members: tuple[int, ...],
    held: Held,
    validator: Validator | None,
    watchers: Watchers,
    **where: Any,
) -> View:
    """What callbacks see of the members as they are now."""
    params, rows = held.params, held.recorder.rows
    stopped = torch.zeros(len(members), dtype=torch.bool)

    def predict(x: Any, **options: Any) -> Predicted:
        optimizer = held.optimizer
        low_rank = optimizer.gaussian() if isinstance(optimizer, NaturalGradient) else None
        now = watchers.so_far({n: p.detach() for n, p in params.items()}, low_rank, members)
        try:
            found: Predicted = now.predict(x, **options)
            return found
        finally:
            task.net.train()  # which predictions put into its other mode

    return View(
        members=members,
        of=watchers.of,
        epoch=len(rows),
        **where,
        loss=rows[-1][2].cpu() if rows else None,
        nll=rows[-1][0].cpu() if rows else None,
        validation=validator.newest.cpu() if validator is not None and rows else None,
        stopped=stopped if validator is None else validator.stopped.cpu(),
        _params=lambda: params,
        _predict=predict,
        _stop=lambda: watchers.callbacks.ask_stop(len(rows)),
    )


def looked_at(
    params: Params, optimizer: torch.optim.Optimizer
) -> tuple[Callable[[], Params], Callable[[int], Params]]:
    """All that members are, by name, and their parameters in the draw with a number: those of
    Gaussian members differ."""
    if not isinstance(optimizer, NaturalGradient):
        return (lambda: {f"params/{n}": p for n, p in params.items()}), (lambda number: params)

    def state() -> Params:
        variance = optimizer.gaussian().variance
        both = zip(STATE, (params, variance), strict=True)
        return {f"{kind}/{name}": t for kind, named in both for name, t in named.items()}

    return state, optimizer.look


def chosen_state(
    state: Params, low_rank: LowRankGaussian | None
) -> tuple[Params, LowRankGaussian | None]:
    """Parameters, and the Gaussian around them where there is one, of a state by `looked_at`."""
    parts = {
        kind: {n.partition("/")[2]: t.detach() for n, t in state.items() if n.startswith(kind)}
        for kind in STATE
    }
    if low_rank is not None:
        low_rank = low_rank._replace(variance=parts["variance"])
    return parts["params"], low_rank
