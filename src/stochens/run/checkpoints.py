"""Checkpoints of long work: the last good one is found, whatever happened to those after it.

    FOLDER/.lock        held by the process that works there, and by nobody once it is gone
    FOLDER/000000123    a checkpoint, whole (storage.py), named by how far the work was

Two are kept, so that one that is damaged costs no more than the time since the one before it.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.hashing import hash_bytes
from stochens.files.storage import LOCK, Unread, read_folder, reading, write_folder

KEPT = 2
ASIDE = ".damaged-"
EVERY = 60.0  # seconds between checkpoints
DYING = 5.0  # seconds for a process that was killed to let go of its files
TERMINATED = 128 + signal.SIGTERM  # the exit code that shells give it

Content = tuple[dict[str, Tensor], dict[str, Any]]


class InUse(InputError):
    """Somebody else works in the folder."""


class Checkpoints:
    """Those of one piece of work, in a folder of their own."""

    def __init__(self, folder: str | Path, format: str, *, every: float = EVERY) -> None:
        self.folder, self.format, self.every = Path(folder), format, every
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}") from error
        for left in self.folder.glob(".*.part"):  # by a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        self._last = time.monotonic()

    def latest(self) -> Content | None:
        """The last one that is whole; a damaged one is laid aside with a warning.

        One that cannot be read just now is an error, and stays where it is.
        """
        with reading(self.folder):
            found = self._all()
        while found:
            path = found.pop()
            try:
                return read_folder(path, self.format)
            except Unread:
                raise
            except InputError as error:
                then = "the checkpoint before it is used" if found else "work begins anew"
                warnings.warn(f"{error}; {then}", stacklevel=3)
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(ASIDE + path.name))
        return None

    def due(self) -> bool:
        return time.monotonic() - self._last >= self.every

    def save(self, number: int, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Keep the work as it is after `number` steps, and forget all but the one before it."""
        path = self.folder / f"{number:09d}"
        write_folder(path, self.format, tensors, about, overwrite=True)
        for old in self._all()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        self._last = time.monotonic()

    def _all(self) -> list[Path]:
        inside = (path for path in self.folder.iterdir() if path.name.isdigit())
        return sorted(inside, key=lambda path: int(path.name))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of all their names, shapes and numbers."""
    parts: list[bytes | memoryview] = []
    for name, t in tensors.items():
        parts.append(str((name, tuple(t.shape), t.dtype)).encode())
        parts.append(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return hash_bytes(*parts)


def as_read(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back; numpy's numbers are plain ones then."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=lambda value: value.item()))
    return plain


class Keeper:
    """For work in steps: what was found of it, and when to keep it again. See `kept_in`."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        settings: dict[str, Any],
        stop: Callable[[], BaseException | None],
    ) -> None:
        self._checkpoints, self._settings, self._stop = checkpoints, settings, stop
        self.found: dict[str, Tensor] | None = None
        content = None if checkpoints is None else checkpoints.latest()
        if checkpoints is not None and content is not None:
            self.found, about = content
            refuse_other(settings, about.get("settings", {}), str(checkpoints.folder))

    def __call__(self, number: int, tensors: Callable[[], dict[str, Tensor]]) -> None:
        """After a step: a checkpoint if it is time for one, or if somebody wants to stop."""
        if self._checkpoints is None:
            return
        stop = self._stop()
        if stop is not None or self._checkpoints.due():
            self.now(number, tensors)
        if stop is not None:
            raise stop

    def now(self, number: int, tensors: Callable[[], dict[str, Tensor]]) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(number, tensors(), {"settings": self._settings})


@contextlib.contextmanager
def kept_in(
    folder: str | Path | None, format: str, settings: dict[str, Any], *, every: float = EVERY
) -> Iterator[Keeper]:
    """Work that is kept in a folder, which is ours alone meanwhile; None: it is not kept.

    Signals to stop wait for the end of a step. `settings` are what work that goes on must share;
    `every`: seconds between checkpoints.
    """
    if folder is None:
        yield Keeper(None, settings, lambda: None)
        return
    settings = as_read(settings)
    with alone_in(folder), stoppable(folder) as stop:
        yield Keeper(Checkpoints(folder, format, every=every), settings, stop)


def refuse_other(now: dict[str, Any], then: dict[str, Any], where: str) -> None:
    """Going on with the settings of `then` under those of `now`: they must be the same."""
    for name, value in now.items():
        if then.get(name) != value:
            what = "the data differ" if name == "data" else f"{name} was {then.get(name)!r}"
            raise InputError(
                f"{where} is of another run: {what}"
                + ("" if name == "data" else f" there and is {value!r} now")
            )


@contextlib.contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """Hold the folder's lock. The system lets go of it when its owner ends, however it ends.

    filelock takes it, and the owner's number stands in the file: to be named where another process
    is refused, and to know a process that was killed, which is waited for.
    """
    from filelock import FileLock, Timeout  # it comes with torch, and takes 50 ms to import

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / LOCK).exists():
            raise InputError(f"{folder} is not empty, and holds no checkpoints; choose another")
        lock = FileLock(folder / LOCK, timeout=0, thread_local=False, on_acquired=_sign)
        deadline = time.monotonic() + DYING
        while True:
            try:
                lock.acquire()
                break
            except Timeout:
                _wait_for_owner(folder, deadline)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _sign(lock: int) -> None:
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())


def _wait_for_owner(folder: Path, deadline: float) -> None:
    """A moment, for one that was killed; an error where the owner lives."""
    owner = ""
    with contextlib.suppress(OSError), (folder / LOCK).open("rb") as file:
        owner = file.read(32).decode(errors="replace").strip()
    if time.monotonic() > deadline or not _has_ended(owner):
        raise InUse(
            f"another process ({owner or 'unknown'}) works in {folder}; wait for it, or choose "
            "another folder"
        )
    time.sleep(0.05)


def _has_ended(owner: str) -> bool:
    """A process that was killed holds its files until the last of its threads is gone: it is a
    zombie meanwhile, if not already unknown."""
    if not re.fullmatch("[1-9][0-9]{0,8}", owner):
        return False
    try:
        os.kill(int(owner), 0)
        state = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except OSError:  # gone in between, or another user's, or there is no /proc at all
        return Path("/proc/self/stat").exists() and not Path(f"/proc/{owner}").exists()
    return state in "ZX"


@contextlib.contextmanager
def stoppable(folder: str | Path | None = None) -> Iterator[Callable[[], BaseException | None]]:
    """Inside, Ctrl-C and SIGTERM wait to be asked for, so that a step can be finished first.

    Yields a function: what to raise, or None while nobody wants to stop. A second signal does not
    wait. `folder`: where the work is kept, which the KeyboardInterrupt then says. A signal that
    this process ignores, as one that was started in the background does, stays ignored.
    """
    kept = () if folder is None else (f"stopped; kept in {folder}: the same call goes on",)
    wanted: list[BaseException] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if wanted:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)
        interrupted = number == signal.SIGINT
        wanted.append(KeyboardInterrupt(*kept) if interrupted else SystemExit(TERMINATED))

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        with contextlib.suppress(ValueError):  # not the main thread: signals are not ours
            before[number] = signal.signal(number, note)
    try:
        yield lambda: wanted[0] if wanted else None
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
    if wanted:
        raise wanted[0]
