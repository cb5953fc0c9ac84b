"""A progress bar for long work, and loggers that users may have."""

import contextlib
import datetime
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stochens.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

log = logging.getLogger("stochens")

Log = Callable[[int, dict[str, float]], None]  # (epoch, values by name)


Report = Callable[[int, int, str | None], None]  # (done, total, note), to somebody elsewhere
Show = bool | Report | None  # a bar; None: a bar in a terminal, a line now and then elsewhere
BETWEEN = 60.0  # seconds between two lines
SOON = 5.0  # where somebody waits for them, and rich is not installed


class Bar:
    """`advance(n)` after every step; `extend(n)` where there is more to do than it began with;
    `note(text)` now and then; `announce(text)` at once."""

    def __init__(
        self,
        update: Callable[[int, int, str | None], None] | None,
        total: int,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._update = update  # (how much is done, of how much, the note or None for the last one)
        self._say = say  # where a note may wait for its line
        self._total, self.done = total, 0
        self._shown = self._noted = time.monotonic()

    def advance(self, amount: int) -> None:
        self.done += amount
        if self._update is not None and time.monotonic() - self._shown > 0.1:
            self.note(None)

    def extend(self, amount: int) -> None:
        self._total += amount

    @property
    def wants_note(self) -> bool:
        """Whether a note that costs something is worth its price."""
        return self._update is not None and time.monotonic() - self._noted > 0.1

    def note(self, text: str | None) -> None:
        if self._update is None:
            return
        self._update(self.done, self._total, text)
        self._shown = time.monotonic()
        if text is not None:
            self._noted = self._shown

    def announce(self, text: str) -> None:
        """A note that somebody waits for."""
        self.note(text)
        if self._say is not None:
            self._say(text)


@contextlib.contextmanager
def progress_bar(what: str, *, total: int, show: Show) -> Iterator[Bar]:
    """On stderr: a bar when asked for or in a terminal, else lines for what takes long. A total of
    0 is one that nobody knows."""
    with contextlib.ExitStack() as held:
        if callable(show):
            bar = Bar(show, total)
        elif show is False:
            bar = Bar(None, total)
        elif live(show) and (made := rich_progress()) is not None:
            progress = held.enter_context(made)
            task = progress.add_task(what, total=total or None, note="")

            def update(done: int, total: int, text: str | None) -> None:
                fields = {} if text is None else {"note": text}
                progress.update(task, completed=done, total=total or None, **fields)  # type: ignore[arg-type]

            bar = Bar(update, total)
        else:
            lines = Lines(what, total, between=SOON if live(show) else None)
            bar = Bar(lines, total, lines.say)
        yield bar
        bar.note(None)


@contextlib.contextmanager
def compiling(bar: Bar, wanted: bool) -> Iterator[None]:
    """Inside, where it is `wanted`, something is compiled: the bar and the log say so when it
    begins, and how long it took."""
    if not wanted:
        yield
        return
    began, text = time.monotonic(), "compiling the program; torch keeps it for the next run"
    bar.announce(text)
    log.info(text)
    yield
    text = f"compiled in {time.monotonic() - began:.1f} s"
    bar.announce(text)
    log.info(text)


def live(show: Show) -> bool:
    """Whether a bar may be redrawn: the processes of a run would write over each other's."""
    alone = multiprocessing.parent_process() is None
    return alone and sys.stderr.isatty() if show is None else show is True


class Lines:
    """How far work is, for a log file: a line a minute, and a hundred at most."""

    def __init__(self, what: str, total: float, *, between: float | None = None) -> None:
        self._between = BETWEEN if between is None else between
        if multiprocessing.parent_process() is not None:
            what = f"{multiprocessing.current_process().name}: {what}"
        self._what, self._total = what, total
        self._began = self._last = time.monotonic()
        self._first: tuple[float, float] | None = None  # a run before this one may have begun it
        self._share = 0.0
        self._note = ""

    def say(self, text: str) -> None:
        print(f"{self._what}: {text}", file=sys.stderr, flush=True)

    def __call__(self, done: float, total: float, note: str | None) -> None:
        if total and self._total:
            self._share *= self._total / total  # it may have grown
        self._total = total
        now, share = time.monotonic(), done / total if total else 0.0
        self._note = self._note if note is None else note
        then, before = self._first = self._first or (now, done)
        if now - self._last < self._between or (self._total and share < self._share + 0.01):
            return
        self._last, self._share = now, share
        far = f"{share:.0%}" if self._total else f"{done:,}"
        said = f"{self._what}: {far} after {_clock(now - self._began)}"
        if done > before and self._total:
            said += f", {_clock((now - then) * (self._total - done) / (done - before))} left"
        print(said + (f"; {self._note}" if self._note else ""), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def rich_progress(console: "Console | None" = None) -> "Progress | None":
    """A live view on stderr, whose tasks have a `note`; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console or Console(stderr=True))


def log_to(target: str | Log | None) -> Log | None:
    """A function of one's own; "tensorboard[:DIR]", "wandb[:PROJECT]" or "mlflow[:EXPERIMENT]", if
    they are installed."""
    if target is None or callable(target):
        return target
    kind, _, place = target.partition(":")
    if kind == "tensorboard":
        return _tensorboard(place or "runs/tensorboard")
    if kind == "wandb":
        return _wandb(place or "stochens")
    if kind == "mlflow":
        return _mlflow(place or "stochens")
    raise InputError(
        "log must be a function, 'tensorboard[:DIR]', 'wandb[:PROJECT]' or 'mlflow[:EXPERIMENT]', "
        f"got {target!r}"
    )


def _tensorboard(folder: str) -> Log:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed: pip install tensorboard") from None
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
        raise InputError("Weights & Biases is not installed: pip install wandb") from None
    run: Any = wandb.init(project=project)
    return lambda epoch, values: run.log(values, step=epoch)


def _mlflow(experiment: str) -> Log:
    try:
        import mlflow
    except ImportError:
        raise InputError("MLflow is not installed: pip install mlflow") from None
    flow: Any = mlflow
    if flow.active_run() is None:
        flow.set_experiment(experiment)
        flow.start_run()
    return lambda epoch, values: flow.log_metrics(values, step=epoch)
