"""Prediction over many inputs: batches of them on many machines, the same numbers as on one."""

import copy
import dataclasses
from typing import Any, NamedTuple

import torch

from stochens.errors import InputError
from stochens.likelihoods import Predicted
from stochens.members import device_of
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.predictive import join_rows
from stochens.posterior.streaming import Ask, predictive
from stochens.run.cluster.arrays import Named, pack_all, pack_input, unpack_all, unpack_input
from stochens.run.cluster.connect import Ray, connect, room
from stochens.run.cluster.tasks import cut_evenly, run_pieces
from stochens.run.options import CUDA_ONLY, Run, matmul_precision, refuse_unused
from stochens.run.progress import Report
from stochens.trees import Input

PIECES = 4  # for each worker, so that a slow one delays the end by little


def refuse_unfit(posterior: PosteriorFields, run: Run) -> None:
    """A posterior predicts where it is and in the precision that its parameters have, unless it is
    by bfloat16 or on many machines."""
    refuse_unused(run, "predict", "chunk", "checkpoint", "log")
    here = device_of(posterior.params).type
    if run.cluster is None:
        if run.engine != "auto":
            raise InputError(f"engine must be 'auto', 'ray' or Ray(...), got {run.engine!r}")
        if run.device is not None and torch.device(run.device).type != here:
            device = str(run.device)
            raise InputError(
                f"device = {device!r} is for engine='ray'; use posterior.to({device!r})"
            )
        if run.precision in CUDA_ONLY and here != "cuda":
            raise InputError(
                f"precision={run.precision!r} is for CUDA, and this posterior is on {here!r}"
            )
    dtype = next(iter(posterior.params.values())).dtype
    if run.dtype not in (None, dtype):
        raise InputError(
            f"precision={run.precision!r}, but the parameters of this posterior are {dtype}, which "
            "is what it predicts in; ask `fit` or the sampler for another precision"
        )


class _Shared(NamedTuple):
    """What all pieces have in common; lies in the object store once."""

    bare: PosteriorFields  # without its tensors, on the CPU
    params: Named  # packed
    low_rank: LowRankGaussian | None  # likewise
    x: Any  # packed
    ask: Ask
    run: Run
    gpu: bool


def predict_on_machines(
    posterior: PosteriorFields, x: Input, ask: Ask, cluster: Ray, run: Run
) -> Predicted:
    """Batches of x as pieces; posterior and x lie in the object store once."""
    device = None if run.device is None else str(run.device)
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda', got {device!r}")
    here = device_of(posterior.params).type
    if device is None and run.precision not in CUDA_ONLY and here != "cuda":
        device = "cpu"  # where it is: other devices draw other numbers
    ray = connect(cluster)
    where = room(ray, cluster, device)
    if run.precision in CUDA_ONLY and not where.gpu:
        raise InputError(f"precision={run.precision!r} is for CUDA, and the Ray cluster has no GPU")
    low_rank = posterior.low_rank and posterior.low_rank.each(pack_all)
    bare = dataclasses.replace(posterior, params={}, low_rank=None, history=None, chains=None)
    shared = _Shared(
        copy.deepcopy(bare).to("cpu"),
        pack_all(posterior.params),
        low_rank,
        pack_input(x),
        ask,
        Run(precision=run.precision),
        where.gpu,
    )
    batches = range(0, len(x), ask.rows)
    most = -(-len(batches) // (PIECES * where.slots))
    pieces = {
        f"rows {first[0]} to {min(first[-1] + ask.rows, len(x)) - 1}": slice(
            first[0], first[-1] + ask.rows
        )
        for first in cut_evenly(batches, most)
    }
    show = False if run.progress is None else run.progress
    done, failed = run_pieces(
        ray, cluster, where, _predict_piece, shared, pieces, what="prediction", show=show
    )
    for name, why in failed.items():
        raise type(why)(f"prediction failed at {name}: {why}")
    return join_rows(list(done.values()))


def _predict_piece(shared: _Shared, at: slice, report: Report) -> Predicted:
    """In a worker."""
    posterior = dataclasses.replace(
        shared.bare,
        params=unpack_all(shared.params),
        low_rank=shared.low_rank and shared.low_rank.each(unpack_all),
    )
    if shared.gpu:
        posterior = posterior.to("cuda")
    part = unpack_input(shared.x)[at]
    with matmul_precision(shared.run):
        found = predictive(posterior, part, shared.ask, first_row=at.start)
    report(len(part), len(part), None)
    return found
