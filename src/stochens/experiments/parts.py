"""A run in several processes at a time, gathered as one."""

import contextlib
import multiprocessing
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol

from stochens.checkpoints import TERMINATED
from stochens.errors import InputError
from stochens.report.run_folder import RUN, Run, RunFolder

PARTS = "parts"


class PartConfig(Protocol):
    @property
    def out(self) -> Path: ...


def side_by_side(
    run: Callable[..., Path], parts: Sequence[PartConfig], folder: RunFolder, *, jobs: int
) -> None:
    """run(part) for each part, `jobs` at a time; `folder` takes over what they find.

    What is done when one fails, or at Ctrl-C, is taken over too.
    """
    # spawned: a forked process cannot use CUDA
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    with pool, _ended_with(pool):
        working = [pool.submit(_quietly, run, part) for part in parts]
        try:
            for done in as_completed(working):
                done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for part in parts:
                try:
                    folder.absorb(Run(part.out))
                except InputError:
                    continue  # it had not begun
            folder.write()
        shutil.rmtree(folder.path / PARTS, ignore_errors=True)


@contextlib.contextmanager
def _ended_with(pool: ProcessPoolExecutor) -> Iterator[None]:
    """SIGTERM to this process is one to those that work for it, and each keeps what it has."""

    def end(number: int, frame: object) -> None:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise SystemExit(TERMINATED)

    before = None
    with contextlib.suppress(ValueError):  # not the main thread: signals are not ours
        before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _quietly(run: Callable[..., Any], part: PartConfig) -> None:
    """In another process: what it notes goes to the terminal as it is."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("default")
    begun = (part.out / RUN).exists()  # by a run that was stopped
    run(part, resume=begun, note=lambda text: print(text, flush=True))
