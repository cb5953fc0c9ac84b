"""The gradient of a posterior by the network's fastest way, and the rows of mini-batches: what the
samplers on flat positions q [M, D] share.
"""

import itertools
import logging
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.kernels.graphs import Replayed
from stochens.members import Params, flatten
from stochens.program.data_term import DataTerm, InMemory, Term, Way, data_term, refuse_unfused
from stochens.randomness.hashed import ROWS, uniform
from stochens.randomness.seeds import permutations
from stochens.run.progress import Bar, compiling
from stochens.samplers.problem import Problem
from stochens.samplers.target import unflatten

log = logging.getLogger("stochens")


class Gradient:
    """N nll [M] on the rows [M, B], and dU / dq = N dnll / dq + lambda (q - mean), [M, D].

    A batch is a random part of the data: its mean is that of all the data on average. On a GPU the
    network's part is a CUDA graph, one for each size of batch, since Python needs longer to ask for
    its operations than the GPU to do them.
    """

    def __init__(self, problem: Problem, data_term: DataTerm) -> None:
        self._problem, self._data_term = problem, data_term
        self._graphs: dict[int, Replayed] = {}
        self._record = problem.x.is_cuda

    def __call__(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        energy, slope = self.of_data(q, rows, step)
        coordinates = self._problem.coordinates
        pull = coordinates.precision(self._problem.prior_precision)  # lambda, or [D] of them
        away = q.detach() if coordinates.mean is None else q.detach() - coordinates.mean
        return energy, slope + pull * away

    def of_data(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        """N nll [M] and N dnll / dq [M, D], without the prior."""
        if self._record:
            nll, slope = self._replayed(q, rows, step)
        else:
            nll, slope = self._slope(q, step, rows)
        N = len(self._problem.x)
        return N * nll.double(), N * slope

    def _slope(
        self, q: Tensor, step: int | Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            nll = self._data_term(unflatten(q, self._problem.shapes), rows, step)  # [M]
            (slope,) = torch.autograd.grad(nll.sum(), q)  # summed: each chain has its own, whole
        return nll.detach(), slope

    def _replayed(self, q: Tensor, rows: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        inputs = (q, torch.full((1,), step, device=q.device), *([] if rows is None else [rows]))
        size = 0 if rows is None else rows.shape[1]
        try:
            if size not in self._graphs:
                self._graphs[size] = Replayed(self._slope, *inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning("chains run without a CUDA graph: %s", error)
            self._record = False
            return self._slope(q, step, rows)
        nll, slope = self._graphs[size](*inputs)
        return nll, slope


def gradient_in_w(problem: Problem, data_term: DataTerm) -> Gradient:
    """With respect to coordinates in which the prior is the same for all parameters."""
    coordinates = problem.coordinates
    if coordinates.plain:
        return Gradient(problem, data_term)

    def of_w(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        theta = coordinates.theta(flatten(params))
        return data_term(unflatten(theta, problem.shapes), rows, step)

    return Gradient(problem, of_w)


def batches(problem: Problem, batch_size: int) -> Iterator[Tensor | None]:
    """Rows [M, B] of each chain, epoch after epoch for ever; None for all of the data.

    What is left over at the end of an epoch begins the first batch of the next one. A short batch
    of its own would have a gradient with more noise, which heats the chain, and its rows would
    count more than the others.
    """
    if batch_size >= len(problem.x):
        yield from itertools.repeat(None)
    left = torch.zeros(len(problem.ids), 0, dtype=torch.int64, device=problem.x.device)
    for epoch in itertools.count():
        order = permutations(
            len(problem.x),
            seed=problem.seed,
            members=problem.ids,
            epoch=epoch,
            device=problem.x.device,
        )  # [M, N]
        left = torch.cat([left, order], 1)
        while left.shape[1] >= batch_size:
            batch, left = left[:, :batch_size], left[:, batch_size:]
            yield batch


def random_rows(problem: Problem, key: Tensor, batch_size: int, step: int) -> Tensor:
    """Rows [M, B] of one step, each drawn by itself from all of the data.

    So the noise of a step has nothing to do with that of the steps before, as it would in a random
    order, whose batches make up for each other. A function of (key, step): nothing need be kept.
    """
    index = torch.arange(batch_size, device=key.device)
    key, number = key.unsqueeze(1), torch.full_like(key, step).unsqueeze(1)
    return (uniform(key, number, ROWS, index) * len(problem.x)).long()


def data_term_for(problem: Problem, batch_size: int | None, steps: int) -> Term:
    """The mean NLL of each chain on its rows, [M]. steps: about how many are to be made."""
    run, everything = problem.run, len(problem.x)
    batch = min(batch_size or everything, everything)
    way = Way(
        engine=problem.engine,
        fast=run.way in ("auto", "fused", "compile"),
        compile=run.way == "compile",
        bf16=run.bf16,
        batch=batch,
        examples=float(steps) * batch * len(problem.ids),
        own_rows=batch_size is not None and batch_size < everything,
    )
    net, x = problem.computed
    data = InMemory(x, problem.y)
    if run.way == "fused":
        refuse_unfused(net, problem.likelihood, data)
    return data_term(net, problem.likelihood, data, problem.ids, problem.seed, way)


def told(term: Term, bar: Bar) -> DataTerm:
    """The same, which says when it compiles: at its first call for each size of batch."""
    if not term.compiled:
        return term.of
    met: set[int | None] = set()

    def of(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        size = None if rows is None else rows.shape[1]
        with compiling(bar, size not in met):
            met.add(size)
            return term.of(params, rows, step)

    return of


def refuse_bad_start(energy: Tensor, ids: tuple[int, ...]) -> None:
    """Name the first chain whose likelihood [M] is no number where it begins."""
    for chain, value in zip(ids, energy.tolist(), strict=True):
        if not math.isfinite(value):
            raise InputError(
                f"chain {chain} cannot start: its log likelihood is {-value}; give another start"
            )
