"""Prediction over many inputs: batches of them on many machines, the same numbers as on one."""

import copy
import dataclasses
from typing import Any

from torch import Tensor

from stochens.errors import InputError
from stochens.members import device_of
from stochens.posterior.predictive import join_rows
from stochens.posterior.streaming import Ask
from stochens.run.cluster.arrays import pack_all, pack_array, unpack_all, unpack_array
from stochens.run.cluster.connect import Ray, connect, room
from stochens.run.cluster.tasks import cut_evenly, run_pieces
from stochens.run.progress import Report

PIECES = 4  # for each worker, so that a slow one delays the end by little


def on_machines(
    posterior: Any, x: Tensor, ask: Ask, engine: Ray, device: str | None, progress: bool | None
) -> Any:
    """Batches of x as pieces; posterior and x lie in the object store once."""
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda', got {device!r}")
    if device is None and not ask.bf16 and device_of(posterior.params).type != "cuda":
        device = "cpu"  # where it is: other devices draw other numbers
    ray = connect(engine)
    where = room(ray, engine, device)
    if ask.bf16 and not where.gpu:
        raise InputError("bf16 is for CUDA, and the Ray cluster has no GPU")
    low_rank = posterior.low_rank and posterior.low_rank.each(pack_all)
    bare = dataclasses.replace(posterior, params={}, low_rank=None, history=None, chains=None)
    params = pack_all(posterior.params)
    shared = (copy.deepcopy(bare).to("cpu"), params, low_rank, pack_array(x), ask, where.gpu)
    batches = range(0, len(x), ask.rows)
    most = -(-len(batches) // (PIECES * where.slots))
    pieces = {
        f"rows {first[0]} to {min(first[-1] + ask.rows, len(x)) - 1}": slice(
            first[0], first[-1] + ask.rows
        )
        for first in cut_evenly(batches, most)
    }
    done, failed = run_pieces(
        ray, engine, where, _predict_piece, shared, pieces, what="prediction", show=progress
    )
    for name, why in failed.items():
        raise type(why)(f"prediction failed at {name}: {why}")
    return join_rows(list(done.values()))


def _predict_piece(shared: Any, at: slice, report: Report) -> Any:
    """In a worker."""
    bare, params, low_rank, x, ask, gpu = shared
    posterior = dataclasses.replace(
        bare,
        params=unpack_all(params),
        low_rank=low_rank and low_rank.each(unpack_all),
    )
    if gpu:
        posterior = posterior.to("cuda")
    part = unpack_array(x)[at]
    found = posterior._predictive(part, ask, first_row=at.start)
    report(len(part), len(part), None)
    return found
