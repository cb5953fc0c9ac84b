"""A progress bar for long work, and loggers that users may have."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from stochens.errors import InputError

Log = Callable[[int, dict[str, float]], None]  # (epoch, values by name)


Report = Callable[[int, int, str | None], None]  # (done, total, note), to somebody elsewhere
Show = bool | Report | None  # whether to show how far work is; None: where a person is looking


class Bar:
    """`advance(n)` after every step; `note(text)` now and then."""

    def __init__(self, update: Callable[[int, str | None], None] | None) -> None:
        self._update = update  # (how much more is done, the note or None for the last one)
        self._pending = 0
        self._shown = time.monotonic()

    def advance(self, amount: int) -> None:
        self._pending += amount
        if self.watched and time.monotonic() - self._shown > 0.1:
            self.note(None)

    @property
    def watched(self) -> bool:
        """Whether anybody sees what is noted."""
        return self._update is not None

    def note(self, text: str | None) -> None:
        if self._update is None:
            return
        self._update(self._pending, text)
        self._pending, self._shown = 0, time.monotonic()


@contextlib.contextmanager
def progress_bar(what: str, *, total: int, show: Show) -> Iterator[Bar]:
    """A bar on stderr: when asked for, or by itself where a person is looking."""
    if callable(show):
        bar = Bar(_told(show, total))
        yield bar
        bar.note(None)
        return
    if not shown(show):
        yield Bar(None)
        return
    with Progress(*columns(), console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total, note="")

        def update(amount: int, text: str | None) -> None:
            fields = {} if text is None else {"note": text}
            progress.update(task, advance=amount, **fields)  # type: ignore[arg-type]

        bar = Bar(update)
        yield bar
        bar.note(None)


def _told(report: Report, total: int) -> Callable[[int, str | None], None]:
    done = 0

    def update(amount: int, text: str | None) -> None:
        nonlocal done
        done += amount
        report(done, total, text)

    return update


def shown(show: bool | None) -> bool:
    return sys.stderr.isatty() if show is None else show


def columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


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
