"""A progress bar for long work, and loggers that users may have."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stochens.errors import InputError

Log = Callable[[int, dict[str, float]], None]  # (epoch, values by name)


class Bar:
    """`advance(n)` after every step; `note(text)` now and then."""

    def __init__(self, progress: Progress | None, total: int, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total, note="") if progress else None
        self._pending = 0
        self._shown = time.monotonic()

    def advance(self, amount: int) -> None:
        self._pending += amount
        if self.watched and time.monotonic() - self._shown > 0.1:
            self.note(None)

    @property
    def watched(self) -> bool:
        """Whether anybody sees what is noted."""
        return self._progress is not None

    def note(self, text: str | None) -> None:
        if self._progress is None or self._task is None:
            return
        fields = {} if text is None else {"note": text}
        self._progress.update(self._task, advance=self._pending, **fields)  # type: ignore[arg-type]
        self._pending, self._shown = 0, time.monotonic()


@contextlib.contextmanager
def progress_bar(what: str, *, total: int, show: bool | None) -> Iterator[Bar]:
    """A bar on stderr: when asked for, or by itself where a person is looking."""
    if not (sys.stderr.isatty() if show is None else show):
        yield Bar(None, total, what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = Bar(progress, total, what)
        yield bar
        bar.note(None)


def log_to(target: str | Log | None) -> Log | None:
    """A function of one's own, "tensorboard[:DIR]" or "wandb[:PROJECT]" if installed."""
    if target is None or callable(target):
        return target
    kind, _, place = target.partition(":")
    if kind == "tensorboard":
        return _tensorboard(place or "runs/tensorboard")
    if kind == "wandb":
        return _wandb(place or "stochens")
    raise InputError(
        f"log must be a function, 'tensorboard[:DIR]' or 'wandb[:PROJECT]', got {target!r}"
    )


def _tensorboard(folder: str) -> Log:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("log='tensorboard' needs it installed: pip install tensorboard") from None
    writer: Any = SummaryWriter(folder)

    def log(epoch: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return log


def _wandb(project: str) -> Log:
    try:
        import wandb
    except ImportError:
        raise InputError("log='wandb' needs it installed: pip install wandb") from None
    run: Any = wandb.init(project=project)
    return lambda epoch, values: run.log(values, step=epoch)
