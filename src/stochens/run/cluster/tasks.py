"""Pieces of work as Ray tasks. Ray places them, and places them again when a worker or a node dies.

What all pieces share is put into the object store once, and read from there by every worker of a
machine without a copy.
"""

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stochens.errors import Failed, InputError, outside
from stochens.run.cluster.connect import Ray, Room
from stochens.run.cluster.view import EVERY, Count, Reporter, Seen, View, board_class, view
from stochens.run.progress import Report, Show

# (what all share, what is this piece's own, where to tell how far it is) -> what comes of it
Work = Callable[[Any, Any, Report], Any]
FAREWELL = 20.0  # seconds that pieces have to keep what they did, when the driver is stopped


def cut_evenly(ids: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Blocks of at most so many, as even as can be.

    >>> cut_evenly(range(7), 3)
    [(0, 1, 2), (3, 4), (5, 6)]
    """
    count = math.ceil(len(ids) / most)
    small, more = divmod(len(ids), count)
    ends = [k * small + min(k, more) for k in range(count + 1)]
    return [tuple(ids[a:b]) for a, b in itertools.pairwise(ends)]


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Cut where they do not follow each other.

    >>> runs([0, 1, 2, 5, 6])
    [[0, 1, 2], [5, 6]]
    """
    found: list[list[int]] = []
    for number in numbers:
        if not found or number != found[-1][-1] + 1:
            found.append([])
        found[-1].append(number)
    return found


class Outcome(NamedTuple):
    """By the names of the pieces, in their order."""

    results: dict[str, Any]
    failed: dict[str, InputError | Failed]  # why


class _Result(NamedTuple):
    value: Any
    warnings: Sequence[tuple[str, type[Warning]]]


def run_pieces(
    ray: Any,
    options: Ray,
    where: Room,
    work: Work,
    shared: Any,
    pieces: Mapping[str, Any],
    *,
    what: str,
    show: Show,
) -> Outcome:
    """work(shared, piece, report) for every piece. One that fails for good does not stop the rest.

    Warnings of the pieces are given again here, each once.
    """
    try:
        shared = ray.put(shared)
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the network, the data or an option cannot be sent to other machines: {error}"
        ) from error
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=True
    )
    task = ray.remote(_piece).options(
        num_cpus=1 if where.gpu else options.cpus,
        num_gpus=1 if where.gpu else 0,
        max_retries=options.tries - 1,
        retry_exceptions=[OSError],  # a disk or a network that failed may be back
        scheduling_strategy="SPREAD",
    )
    threads = 1 if where.gpu else options.cpus
    with view(what, len(pieces), show=show) as shown:
        board = None
        if isinstance(shown, View):
            board = ray.remote(board_class()).options(num_cpus=0, scheduling_strategy=here).remote()
        dtype = torch.get_default_dtype()
        working = {
            task.remote(work, shared, piece, name, board, threads, dtype): name
            for name, piece in pieces.items()
        }
        results: dict[str, _Result] = {}
        failed: dict[str, InputError | Failed] = {}
        try:
            while working:
                done, _ = ray.wait(list(working), timeout=EVERY)
                for ref in done:
                    name = working.pop(ref)
                    try:
                        results[name] = ray.get(ref)
                    except Exception as error:  # whatever a piece raised, or how it ended
                        failed[name] = reason(ray, error, options)
                if isinstance(shown, View):
                    _look(ray, board, shown, set(results), set(failed))
                elif isinstance(shown, Count):
                    shown.show(set(results), set(failed))
        except BaseException:
            _stop(ray, list(working))
            raise
    _warn_once(results.values())
    ordered = {name: results[name].value for name in pieces if name in results}
    return Outcome(ordered, {name: failed[name] for name in pieces if name in failed})


def _piece(
    work: Work,
    shared: Any,
    piece: Any,
    name: str,
    board: Any,
    threads: int,
    dtype: torch.dtype,
) -> _Result:
    """In a worker. One at a time runs there, in the main thread."""
    import ray

    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    report = Reporter(board, name, ray.util.get_node_ip_address())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        value = work(shared, piece, report)
    own = [(str(w.message), w.category) for w in said if issubclass(w.category, UserWarning)]
    return _Result(value, own)


def reason(ray: Any, error: Exception, options: Ray) -> InputError | Failed:
    """What a piece refused, or one line of what Ray says in many."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, (InputError, Failed)):
        return cause
    return Failed(_in_one_line(ray, error, cause, options))


def _in_one_line(ray: Any, error: Exception, cause: object, options: Ray) -> str:
    if isinstance(cause, BaseException):
        said = str(cause).partition("\ntraceback: ")[0]  # which Ray's own errors end with
        return f"{type(cause).__name__}: {said}"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"its machine ran out of memory, {options.tries} times"
    if isinstance(error, (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)):
        return f"its worker or its node died, {options.tries} times"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"


def _look(ray: Any, board: Any, shown: View, done: set[str], failed: set[str]) -> None:
    """A board that is slow or gone costs the view, and nothing else."""
    with contextlib.suppress(ray.exceptions.RayError):
        told = ray.get(board.seen.remote(), timeout=1.0)
        shown.show({name: Seen(*values) for name, values in told.items()}, done, failed)


def _stop(ray: Any, working: list[Any]) -> None:
    """Pieces keep what they did, as at Ctrl-C, before the one who wanted them goes."""
    for ref in working:
        with contextlib.suppress(Exception):
            ray.cancel(ref, force=False)
    with contextlib.suppress(BaseException):
        ray.wait(working, num_returns=len(working), timeout=FAREWELL)


def _warn_once(results: Any) -> None:
    seen: set[tuple[str, type[Warning]]] = set()
    for result in results:
        for text, category in result.warnings:
            if (text, category) not in seen:
                seen.add((text, category))
                warnings.warn(text, category, stacklevel=outside())
