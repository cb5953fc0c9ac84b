"""A run in several processes at a time, gathered as one.

Each part has a process of its own, and not a place in a pool: when one process of a pool is killed,
by the system for want of memory say, the others are ended with it.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stochens.errors import Failed, InputError
from stochens.run.checkpoints import TERMINATED
from stochens_lab.report.run_folder import RUN, RunFolder, SavedRun

TRIES = 3  # of a part whose process is killed
INTERRUPTED = 128 + signal.SIGINT


class PartConfig(Protocol):
    @property
    def out(self) -> Path: ...


class Worker(NamedTuple):
    part: PartConfig
    process: SpawnProcess
    said: Connection  # what went wrong, in its own words


def run_parts(
    run: Callable[..., Path], parts: Sequence[PartConfig], folder: RunFolder, *, jobs: int
) -> None:
    """run(part) for each part, `jobs` at a time; `folder` takes over what they find.

    A process that is killed is begun again, and goes on where it was. What is done when one fails,
    or at Ctrl-C, is taken over too.
    """
    try:
        with _end_by_signal():
            _run_workers(run, list(parts), jobs)
    except BaseException:
        for part in parts:
            with contextlib.suppress(InputError):  # it had not begun
                folder.absorb(SavedRun(part.out))
        folder.write()
        raise
    for part in parts:
        folder.absorb(SavedRun(part.out))
    folder.write()


def _run_workers(run: Callable[..., Path], waiting: list[PartConfig], jobs: int) -> None:
    working: list[Worker] = []
    ends: Counter[str] = Counter()
    lost: list[str] = []
    failed: BaseException | None = None
    try:
        while working or (waiting and failed is None):
            while waiting and failed is None and len(working) < jobs:
                working.append(_start_worker(run, waiting.pop(0)))
            for worker in _wait_for_end(working):
                working.remove(worker)
                error, how = _read_outcome(worker)
                failed = failed or error
                if error is not None or how is None:
                    continue
                name = worker.part.out.name
                ends[name] += 1
                if ends[name] < TRIES:
                    warnings.warn(
                        f"the process of {name} {how}; its part is begun again", stacklevel=4
                    )
                    waiting.append(worker.part)
                else:
                    lost.append(f"the process of {name} {how}, the last of {TRIES} times")
    except BaseException as error:
        _stop(working, signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        raise
    if failed is not None:
        raise failed
    if lost:
        raise Failed(
            f"{'; '.join(lost)}. Is there memory enough for {jobs} at a time? What is done is "
            "kept, and --resume goes on with it"
        )


def _start_worker(run: Callable[..., Path], part: PartConfig) -> Worker:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    said, say = context.Pipe(duplex=False)
    process = context.Process(target=_run_quietly, args=(run, part, say), name=part.out.name)
    process.start()
    say.close()  # so that its end is the end of what is said
    return Worker(part, process, said)


def _wait_for_end(working: Sequence[Worker]) -> list[Worker]:
    """Wait until one has ended, or says why it will."""
    ready = wait([w.said for w in working] + [w.process.sentinel for w in working])
    return [w for w in working if w.said in ready or w.process.sentinel in ready]


def _read_outcome(worker: Worker) -> tuple[BaseException | None, str | None]:
    """The error that it raised, and how it ended where it ended without a word; None: well."""
    error = None
    with contextlib.suppress(EOFError, OSError), worker.said:
        error = worker.said.recv() if worker.said.poll() else None
    worker.process.join()
    code = worker.process.exitcode or 0
    if code == 0:
        return error, None
    return error, f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _stop(working: Sequence[Worker], number: int) -> None:
    """Ask all to keep what they have and end; asked a second time, they do not wait."""
    while any(worker.process.is_alive() for worker in working):
        for worker in working:
            if worker.process.is_alive() and worker.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, number)
        with contextlib.suppress(KeyboardInterrupt):
            for worker in working:
                worker.process.join()


@contextlib.contextmanager
def _end_by_signal() -> Iterator[None]:
    """SIGTERM is an error here, so that it can be passed on."""

    def raise_exit(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = None
    with contextlib.suppress(ValueError):  # not the main thread: signals are not ours
        before = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


# In the other process -----------------------------------------------------------------------------


def _run_quietly(run: Callable[..., Any], part: PartConfig, say: Connection) -> None:
    """What it notes goes to the terminal as it is."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C comes from the main process alone: twice would be "at once"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("default")
    begun = (part.out / RUN).exists()  # by a run that was stopped
    if not begun:
        shutil.rmtree(part.out, ignore_errors=True)  # it was killed before it was one
    try:
        run(part, resume=begun, note=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        error.add_note(traceback.format_exc())
        say.send(error)


def _end_with_parent() -> None:
    """When the main process is killed nobody wants this one's work: it keeps it and ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
