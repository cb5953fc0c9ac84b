"""Blocks of members, or of chains, on many machines: the same posterior as on one.

Members are independent, so that a block is a training of its own with its members' numbers. It is
the same function that runs on one machine; each block keeps its checkpoints and goes on from them
when its worker died.
"""

import contextlib
import dataclasses
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from stochens.data import Data, Replicas, source
from stochens.errors import Failed, InputError, outside
from stochens.files.storage import may_pass
from stochens.members import Params, take
from stochens.posterior.posterior import Posterior
from stochens.run.checkpoints import InUse
from stochens.run.cluster.arrays import pack_array, pack_input, unpack_input
from stochens.run.cluster.connect import Ray, Room, connect, room
from stochens.run.cluster.folder import everywhere, folder_of, held, keep_cut, kept_cut
from stochens.run.cluster.tasks import cut_evenly, run_pieces, runs
from stochens.run.memory import SHARE, chosen_device, free_bytes
from stochens.run.progress import Report
from stochens.training.blocks import AllLost
from stochens.training.request import Place, Request, Start

LOCK_PATIENCE = 60.0  # seconds until a worker that lost its node has let go of its folder
TOLD = 5  # failed blocks that are named with their reasons


R = TypeVar("R", bound=Request)
Train = Callable[[R], Posterior]  # on the machine where it is called


@dataclasses.dataclass(frozen=True)
class Shared(Generic[R]):
    """What all blocks have in common; lies in the object store once."""

    train: Train[R]
    request: R  # of all blocks, with its data packed
    checkpoint: str | Path | None
    token: str


class Piece(NamedTuple):
    """A block's own part."""

    name: str
    ids: tuple[int, ...]
    start: Params | Posterior | None  # what it begins with, where that was given


def over_machines(
    cluster: Ray,
    train: Train[R],
    request: R,
    *,
    size: int | None = None,
    bytes_each: int | None = None,
) -> list[Posterior]:
    """`train(request)` in blocks of its members, one posterior for each, in their order.

    size: of a block; by the machines' number and memory when None. bytes_each: of one member.
    Blocks that fail for good are named in a warning and are missing; the others are there.
    """
    run, ids, which, start = request.run, request.ids, request.which, request.start
    checkpoint = run.checkpoint
    device = None if run.device is None else torch.device(run.device).type  # each worker has its
    ray = connect(cluster)
    where = room(ray, cluster, device)
    own = dataclasses.replace(
        run,
        engine=cluster.within,
        device=device or ("cuda" if where.gpu else "cpu"),
        checkpoint=None,  # each has its own, and reports how far it is
        progress=None,
    )
    sent = dataclasses.replace(
        request,
        data=dataclasses.replace(request.given, data=packed_data(request.given)),
        run=own,
        start=start if isinstance(start, str) else "reset",  # each block has its own part of it
    )
    with contextlib.ExitStack() as stack:
        before, token = None, ""
        if checkpoint is not None:
            checkpoint = everywhere(checkpoint)
            stack.enter_context(held(checkpoint))
            before = kept_cut(checkpoint)
        known = [tuple(block) for block in before["blocks"]] if before else []
        blocks = _blocks(ids, known, lambda n: size or _size(ray, where, n, bytes_each))
        if checkpoint is not None:
            known += [block for block in blocks if block not in known]
            token = keep_cut(checkpoint, known, before["token"] if before else None)
        pieces = {
            _name(which, block): Piece(_name(which, block), block, _part(start, block, ids))
            for block in blocks
        }
        shared = Shared(train, sent, checkpoint, token)
        done, failed = run_pieces(
            ray, cluster, where, _train_block, shared, pieces, what=which, show=run.progress
        )
    _report_failures(failed, pieces, which, checkpoint)
    found = [posterior for posterior in done.values() if posterior is not None]
    if not found:
        raise AllLost(f"all {len(ids)} {which} diverged; a smaller lr usually mends it")
    return found


def members_to_check(ids: tuple[int, ...], start: object, engine: Ray | None) -> tuple[int, ...]:
    """Those that the driver itself prepares, to refuse bad input before any work: one stands for
    all of a cluster's, but where a start is given for each."""
    return ids[:1] if engine is not None and isinstance(start, str) else ids


def refuse_resume(resume: Posterior | None) -> None:
    if resume is not None:
        raise InputError("resume is for one machine; with engine='ray' give checkpoint instead")


def local_device(device: str | torch.device | None) -> torch.device:
    """Where a posterior that was made elsewhere is put: as if it had been made here."""
    wanted, here = chosen_device(device, elsewhere=True), chosen_device(None)
    return wanted if wanted.type != "cuda" or here.type == "cuda" else torch.device("cpu")


# How members are cut into blocks ------------------------------------------------------------------


def _blocks(
    ids: tuple[int, ...], known: list[tuple[int, ...]], size: Callable[[int], int]
) -> list[tuple[int, ...]]:
    """Those that an earlier run has cut, as far as they are asked for, and the rest cut anew."""
    place = {k: at for at, k in enumerate(ids)}
    blocks: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for block in known:  # those of several runs may overlap
        if place.keys() >= set(block) and taken.isdisjoint(block):
            blocks.append(block)
            taken |= set(block)
    left = [at for at, k in enumerate(ids) if k not in taken]
    if left:
        most = size(len(left))
        cut = [part for run in runs(left) for part in cut_evenly(run, most)]  # no gap inside
        blocks += [tuple(ids[at] for at in part) for part in cut]
    return sorted(blocks, key=lambda block: place[block[0]])


def _size(ray: Any, where: Room, count: int, bytes_each: int | None) -> int:
    """Members of a block: every worker has as many, and no more than fit into its memory."""
    share = math.ceil(count / where.slots)
    if bytes_each is None or share == 1:
        return share
    memory = where.memory
    if where.gpu:
        memory = ray.get(ray.remote(_gpu_memory).options(num_gpus=1).remote())
    if memory is None:
        return share
    fit = max(1, int(SHARE * memory) // max(bytes_each, 1))
    waves = math.ceil(count / (fit * where.slots))
    return math.ceil(count / (waves * where.slots))


def _gpu_memory() -> int:
    return free_bytes(torch.device("cuda"))


def _name(which: str, ids: tuple[int, ...]) -> str:
    return f"{which} {ids[0]}" if len(ids) == 1 else f"{which} {ids[0]} to {ids[-1]}"


def _part(
    start: Place | Start, block: tuple[int, ...], ids: tuple[int, ...]
) -> Params | Posterior | None:
    """A block's rows of what was given to begin with."""
    rows = [ids.index(k) for k in block]
    if isinstance(start, Posterior):
        if len(start) < len(ids):
            raise InputError(f"start has {len(start)} members, fewer than the {len(ids)} asked for")
        return start.take(rows).to("cpu")
    if isinstance(start, dict):
        return {name: p.cpu() for name, p in take(start, rows).items()}
    return None


# In a worker --------------------------------------------------------------------------------------


def _train_block(shared: Shared[R], piece: Piece, report: Report) -> Posterior | None:
    """A block's posterior, on the CPU; None where all of its members diverged."""
    import ray

    given = shared.request.given
    request = dataclasses.replace(
        shared.request,
        members=piece.ids,
        data=dataclasses.replace(given, data=unpacked_data(given.data)),
        start=shared.request.start if piece.start is None else piece.start,
    )
    name, node = re.sub(r"\W+", "-", piece.name), ray.util.get_node_ip_address()
    with _for_ray(), folder_of(shared.checkpoint, shared.token, name, node) as folder:
        begun = time.monotonic()
        while True:
            try:
                run = dataclasses.replace(request.run, checkpoint=folder, progress=report)
                return shared.train(dataclasses.replace(request, run=run)).to("cpu")
            except AllLost as error:
                warnings.warn(f"{piece.name}: {error}", stacklevel=2)
                return None
            except InUse as error:  # by the worker before, which does not know yet that it is lost
                if time.monotonic() - begun > LOCK_PATIENCE:
                    raise OSError(str(error)) from error  # which is tried again
                time.sleep(1.0)


@contextlib.contextmanager
def _for_ray() -> Iterator[None]:
    """Inside, what may pass is an OSError again, which Ray tries again (tasks.py)."""
    try:
        yield
    except InputError as error:
        if may_pass(error):
            raise OSError(str(error)) from error
        raise


# Data, as the object store shares it --------------------------------------------------------------


def packed_data(given: Data) -> Any:
    """Tensors as arrays; a Dataset is read here, once; a DataLoader travels as it is."""
    if isinstance(given.data, Replicas):
        return Replicas(packed_data(Data(part, given.target)) for part in given.data)
    read = source(Data(given.data, given.target, size=given.size))  # weights travel beside them
    return given.data if read.loader is not None else [pack_input(read.x), pack_array(read.y)]


def unpacked_data(data: Any) -> Any:
    if isinstance(data, Replicas):
        return Replicas(unpacked_data(part) for part in data)
    return tuple(unpack_input(part) for part in data) if isinstance(data, list) else data


# What is told -------------------------------------------------------------------------------------


def _report_failures(
    failed: Mapping[str, InputError | Failed],
    pieces: Mapping[str, Piece],
    which: str,
    checkpoint: object,
) -> None:
    if not failed:
        return
    told = "; ".join(f"{name}: {why}" for name, why in list(failed.items())[:TOLD])
    told += f"; and {len(failed) - TOLD} more" if len(failed) > TOLD else ""
    if len(failed) == len(pieces):
        first, *others = failed.values()
        told = told if any(str(other) != str(first) for other in others) else str(first)
        kind = Failed if any(type(other) is not type(first) for other in others) else type(first)
        raise kind(f"all {len(pieces)} blocks failed: {told}")  # what all refuse is bad input
    missing = sum(len(pieces[name].ids) for name in failed)
    again = "" if checkpoint is None else f". The same call with checkpoint={str(checkpoint)!r} "
    again += "tries them again" if again else ""
    warnings.warn(
        f"{len(failed)} of {len(pieces)} blocks failed for good, and their {missing} {which} are "
        f"missing ({told}); the others are unharmed{again}",
        stacklevel=outside(),
    )
