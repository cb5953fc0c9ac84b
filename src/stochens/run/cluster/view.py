"""How far all pieces are, in one live view."""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from stochens.run.progress import Lines, Show, live, rich_progress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY = 0.5  # seconds between two reports of a piece
LINES = 16  # of pieces at a time; more are counted
WHOLE = 1000  # a piece's share of the bar over all of them


class Seen(NamedTuple):
    """What a piece last said of itself."""

    attempt: int
    node: str
    done: int
    total: int
    note: str

    @property
    def share(self) -> float:
        return min(1.0, self.done / max(self.total, 1))


def board_class() -> type:
    """Where pieces tell how far they are, and the driver asks: an actor's class.

    Made here so that Ray sends it whole: its process then imports nothing of ours.
    """

    class Board:
        def __init__(self) -> None:
            self.begun: dict[str, int] = {}
            self.last: dict[str, tuple[Any, ...]] = {}

        def begin(self, name: str, node: str) -> None:
            self.begun[name] = self.begun.get(name, 0) + 1
            self.last[name] = (self.begun[name], node, 0, 1, "")

        def tell(self, name: str, done: int, total: int, note: str | None) -> None:
            attempt, node, _, _, before = self.last.get(name, (1, "", 0, 1, ""))
            self.last[name] = (attempt, node, done, total, before if note is None else note)

        def seen(self) -> dict[str, tuple[Any, ...]]:
            return self.last

    return Board


class Reporter:
    """Tells the board, now and then, and waits for nothing: a board that is gone stops no work."""

    def __init__(self, board: Any, name: str, node: str) -> None:
        self._board, self._name, self._last = board, name, 0.0
        if board is not None:
            with contextlib.suppress(Exception):
                board.begin.remote(name, node)

    def __call__(self, done: int, total: int, note: str | None) -> None:
        now = time.monotonic()
        if self._board is not None and (now - self._last > EVERY or done >= total):
            self._last = now
            with contextlib.suppress(Exception):
                self._board.tell.remote(self._name, done, total, note)


class View:
    """A line for the whole, and one for each piece at work."""

    def __init__(self, progress: "Progress", what: str, count: int) -> None:
        self._progress, self._count = progress, count
        self._all = progress.add_task(what, total=count * WHOLE, note="")
        self._lines: dict[str, TaskID] = {}
        self._attempts: dict[str, int] = {}

    def show(self, seen: dict[str, Seen], done: set[str], failed: set[str]) -> None:
        """What the pieces said; those in `done` and `failed` are over."""
        over = done | failed
        working = {name: s for name, s in seen.items() if name not in over}
        for name, s in seen.items():
            if s.attempt > self._attempts.setdefault(name, s.attempt):
                self._attempts[name] = s.attempt
                text = f"{name}: begun again on {s.node}, attempt {s.attempt}"
                self._progress.console.print(text, highlight=False)
        for name in [name for name in self._lines if name not in working]:
            self._progress.remove_task(self._lines.pop(name))
        for name, s in working.items():
            if name not in self._lines and len(self._lines) < LINES:
                self._lines[name] = self._progress.add_task(f"  {name}", total=s.total, note="")
            if name in self._lines:
                note = f"{s.node}: {s.note}" if s.note else s.node
                line = self._lines[name]
                self._progress.update(line, completed=s.done, total=s.total, note=note)
        share = len(over) + sum(s.share for s in working.values())
        waiting = self._count - len(over) - len(working)
        parts = [f"{len(done)} of {self._count} blocks done", f"{len(working)} at work"]
        parts += [f"{waiting} wait for a place"] if waiting else []
        parts += [f"{len(failed)} failed"] if failed else []
        self._progress.update(self._all, completed=share * WHOLE, note=", ".join(parts))


class Count:
    """Blocks that are over, for a log file: no board is kept to know more."""

    def __init__(self, what: str, count: int) -> None:
        self._lines, self._count = Lines(what, count), count

    def show(self, done: set[str], failed: set[str]) -> None:
        note = f"{len(done)} of {self._count} blocks done"
        note += f", {len(failed)} failed" if failed else ""
        self._lines(len(done | failed), self._count, note)


@contextlib.contextmanager
def view(what: str, count: int, *, show: Show) -> Iterator[View | Count | None]:
    """On stderr: live when asked for or in a terminal, else a line now and then."""
    if show is False:
        yield None
    elif live(show) and (made := rich_progress()) is not None:
        with made as progress:
            yield View(progress, what, count)
    else:
        yield Count(what, count)
