"""`fit(callbacks=...)`: who is called when training begins, after each epoch and at its end."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.errors import Failed, InputError
from stochens.likelihoods import Predicted
from stochens.members import Params
from stochens.run.progress import Log, log_to

KEPT = ". All that was trained is kept in {}: the same call goes on"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class View:
    """What a callback sees of the members that train together: all of them, or a block of them.

    members: their numbers. Tensors have one entry for each of them, [M], and are copies on the CPU.
    epoch, step: how many are done, of `epochs` and `steps`.
    lr: the rate of the last step; 0 before the first.
    loss, nll: means over the last epoch, as in `posterior.history`; None before the first.
    validation: the NLL on validation data after it; None where there are none.
    stopped: whether validation has stopped a member; it computes in vain.

    >>> import stochens
    >>> shapes = []
    >>> def look(view):
    ...     shapes.append((view.epoch, view.loss.shape, view.params()["0.weight"].shape))
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> posterior = stochens.fit(net, data, members=3, epochs=2, callbacks=look)
    >>> shapes[1]
    (2, torch.Size([3]), torch.Size([3, 5, 2]))
    """

    members: tuple[int, ...]
    of: int  # how many members train in all, in this block and in others
    epoch: int
    epochs: int
    step: int
    steps: int
    lr: float
    loss: Tensor | None
    nll: Tensor | None
    validation: Tensor | None
    stopped: Tensor
    _params: Callable[[], Params]
    _predict: Callable[..., Predicted]
    _stop: Callable[[], None]

    def __repr__(self) -> str:
        return f"View(epoch {self.epoch} of {self.epochs}, {len(self.members)} members)"

    def params(self) -> Params:
        """Parameters by name as they are now, [M, ...]: copies, on the device that trains."""
        return {name: p.detach().clone() for name, p in self._params().items()}

    def predict(self, x: Any, **options: Any) -> Predicted:
        """The predictions of these members as they are now; options as of `Posterior.predict`."""
        return self._predict(x, **options)

    def stop(self) -> None:
        """End the training after this epoch, or after the first. Blocks of members that come later
        have as many epochs."""
        self._stop()

    def values(self) -> dict[str, float]:
        """Means over the members that learn, by name, for a logger."""
        learning = ~self.stopped if not bool(self.stopped.all()) else self.stopped
        found = {"loss": self.loss, "nll": self.nll, "validation": self.validation}
        values = {n: float(t[learning].nanmean()) for n, t in found.items() if t is not None}
        values |= {"lr": self.lr, "stopped": float(self.stopped.sum())}
        if len(self.members) == self.of:
            return values
        block = f"members {self.members[0]} to {self.members[-1]}"
        return {f"{block}/{name}": value for name, value in values.items()}


class Callback:
    """To be called by `fit`; a subclass says what is done, when it is called with a View.

    A function alone is called after each epoch. Members train in blocks where not all fit into
    memory: each block begins and ends by itself. An error in a callback ends the training, which
    can go on from its checkpoint.

    >>> import stochens
    >>> class Slope(Callback):
    ...     def begin(self, view):
    ...         self.losses = []
    ...
    ...     def epoch(self, view):
    ...         self.losses.append(float(view.loss.mean()))
    ...         if len(self.losses) == 3:
    ...             view.stop()
    >>> net, data, slope = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40), Slope()
    >>> posterior = stochens.fit(net, data, members=3, epochs=20, callbacks=[slope])
    >>> len(slope.losses)
    3
    """

    def begin(self, view: View) -> None:
        """Before the first step, or the first one after a checkpoint."""

    def epoch(self, view: View) -> None:
        """After each epoch."""

    def end(self, view: View) -> None:
        """After the last one."""


class _Logger(Callback):
    """Writes what `View.values` has."""

    _target: str

    def __init__(self) -> None:
        self._write: Log | None = None

    def open(self) -> None:
        """Or an InputError where the package is missing."""
        if self._write is None:
            self._write = log_to(self._target)

    def epoch(self, view: View) -> None:
        assert self._write is not None
        self._write(view.epoch - 1, view.values())


class TensorBoard(_Logger):
    """Loss, NLL, validation and rate of each epoch for TensorBoard, which must be installed.

    >>> TensorBoard("runs/mine")
    TensorBoard('tensorboard:runs/mine')
    """

    def __init__(self, folder: str = "runs/tensorboard") -> None:
        super().__init__()
        self._target = f"tensorboard:{folder}"

    def __repr__(self) -> str:
        return f"TensorBoard({self._target!r})"


class WandB(_Logger):
    """Likewise for Weights & Biases, which must be installed (`wandb`).

    >>> WandB("my-project")
    WandB('wandb:my-project')
    """

    def __init__(self, project: str = "stochens") -> None:
        super().__init__()
        self._target = f"wandb:{project}"

    def __repr__(self) -> str:
        return f"WandB({self._target!r})"


class MLflow(_Logger):
    """Likewise for MLflow, which must be installed: into the run that is active, or a new one.

    >>> MLflow("my-experiment")
    MLflow('mlflow:my-experiment')
    """

    def __init__(self, experiment: str = "stochens") -> None:
        super().__init__()
        self._target = f"mlflow:{experiment}"

    def __repr__(self) -> str:
        return f"MLflow({self._target!r})"


class _Function(Callback):
    """A function that is called after each epoch."""

    def __init__(self, function: Callable[[View], Any]) -> None:
        self._function = function

    def __repr__(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def epoch(self, view: View) -> None:
        self._function(view)


def as_callbacks(given: Any) -> tuple[Callback, ...]:
    """One, or several; functions too.

    >>> as_callbacks(None), as_callbacks(len)
    ((), (len,))
    """
    if given is None:
        return ()
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(_as_callback(one) for one in several)


def _as_callback(one: Any) -> Callback:
    if isinstance(one, type):
        raise InputError(
            f"callbacks must be objects, got the class {one.__name__}; write {one.__name__}()"
        )
    if isinstance(one, Callback):
        return one
    if callable(one):
        return _Function(one)
    raise InputError(
        f"callbacks must be functions of a View or of class stochens.Callback, got {one!r}"
    )


class Callbacks:
    """Those of one training, for all of its blocks, and whether they have asked for a stop."""

    def __init__(self, callbacks: tuple[Callback, ...], checkpoint: Any = None) -> None:
        self._all, self._checkpoint = callbacks, checkpoint
        self.limit: int | None = None  # epochs that there are, if fewer than planned
        for one in callbacks:
            if isinstance(one, _Logger):
                one.open()

    def __bool__(self) -> bool:
        return bool(self._all)

    def reached(self, epoch: int) -> bool:
        """Whether the epoch with that number, from 0 on, is none any more."""
        return self.limit is not None and epoch >= self.limit

    def ask_stop(self, done: int) -> None:
        """After so many epochs, or the first."""
        done = max(1, done)
        self.limit = done if self.limit is None else min(done, self.limit)

    def call(self, event: str, view: View, keep: Callable[[], None]) -> None:
        """`keep` writes a checkpoint, where there is a folder for it."""
        for one in self._all:
            try:
                getattr(one, event)(view)
            except Exception as error:
                keep()
                where = "" if self._checkpoint is None else KEPT.format(self._checkpoint)
                raise Failed(
                    f"the callback {one!r} failed at {event!r} after {view.epoch} of {view.epochs} "
                    f"epochs: {type(error).__name__}: {error}{where}"
                ) from error

    def state(self) -> dict[str, Tensor]:
        """To go on with later."""
        return {"limit": torch.tensor(-1 if self.limit is None else self.limit)}

    def restore(self, state: dict[str, Tensor]) -> None:
        if "limit" in state and int(state["limit"]) >= 0:
            self.ask_stop(int(state["limit"]))
