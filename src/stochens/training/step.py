"""One step of training: the loss of every member, its gradient, the optimiser, the record.

On a GPU a step of a small network is a hundred operations of a few microseconds, and Python needs
longer to ask for one than the GPU to do it. So the step is recorded once as a CUDA graph, and
replayed: the same operations on the same memory, and the next random numbers.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stochens.kernels.graphs import record_graph
from stochens.members import Params
from stochens.posterior.history import Recorder
from stochens.trees import Input

log = logging.getLogger("stochens")

NORM_FLOOR = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


class Several(list[tuple[Input, Tensor]]):
    """Batches of a loader that make one step."""


# rows [M, B]; a loader's (x, y), or several of them; all of the data
Batch = Tensor | tuple[Input, Tensor] | Several | None


class Loss(NamedTuple):
    """Each [M]."""

    # mean NLL + kl_weight * KL / N, times the step's share (shares.py), without the prior's L2
    # where the optimiser has that
    minimised: Tensor
    nll: Tensor
    negative_elbo: Tensor  # N * NLL + KL in nats, the "KL loss" of the paper


# of the step with that number, which inside a CUDA graph is a tensor [1]
LossOf = Callable[[Params, Batch, int | Tensor], Loss]
ShareOf = Callable[[Batch], float]  # what a step counts, 1 for a whole batch


class Passes(NamedTuple):
    """A step in several passes over the network, whose gradients are summed."""

    rows: int  # of one pass
    most: int  # passes of a step

    def of(self, batch: Batch) -> Sequence[Batch]:
        """The parts of a step's batch."""
        if isinstance(batch, Tensor):
            return list(batch.split(self.rows, dim=1))
        return batch if isinstance(batch, Several) else [batch]


class Step(Protocol):
    """Holds the parameters and moves them on."""

    def __call__(self, batch: Batch, number: int, *, rate: float) -> None: ...

    def restart(self) -> None:
        """Forget what the optimiser remembers."""


class EagerStep:
    """One operation after the other."""

    def __init__(
        self,
        params: Params,
        loss_of: LossOf,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        share_of: ShareOf,
        means: Params | None = None,
        *,
        clip: float | None = None,
        passes: Passes | None = None,
    ) -> None:
        """means: those of the prior, [1 or M, ...], of parameters where they are not 0. clip: the
        norm of a member's gradient, at most. passes: how a batch is cut; None: it is not."""
        self._clip, self._passes = clip, passes
        self.params, self.optimizer, self.recorder = params, optimizer, recorder
        self._means = {id(params[name]): mean for name, mean in (means or {}).items()}
        self.share_of = share_of
        self._loss_of = loss_of
        self._decay: float = optimizer.defaults.get("weight_decay", 0.0)
        self._decoupled = isinstance(optimizer, torch.optim.AdamW)

    def __call__(self, batch: Batch, number: int, *, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.move(batch, number)

    def move(self, batch: Batch, number: int | Tensor) -> None:
        """The step at the rate that the optimiser has."""
        parts = [batch] if self._passes is None else self._passes.of(batch)
        for k, part in enumerate(parts):
            # each pass has noise of its own
            at = number if self._passes is None else number * self._passes.most + k
            loss = self._loss_of(self.params, part, at)
            loss.minimised.sum().backward()  # summed: each member has its own gradient, whole
            nll, elbo = loss.nll.detach(), loss.negative_elbo.detach()
            self.recorder.step(nll, elbo, number, self.share_of(part))
        share = self.share_of(batch)
        for group in self.optimizer.param_groups:
            self._set_decay(group, share)
        if self._clip is not None:
            clip_members(self.params, self._clip, share)
        lost = self.recorder.lost_at >= 0 if self.recorder.any_lost else None
        before = {} if lost is None else {n: p.detach()[lost] for n, p in self.params.items()}
        self.optimizer.step()
        if lost is not None:
            self._put_back(lost, before)
        self.optimizer.zero_grad(set_to_none=True)

    def _set_decay(self, group: dict[str, Any], share: float) -> None:
        """Weight decay and the prior's L2. Both are added to the gradient by Adam and SGD
        themselves; AdamW keeps its decay apart."""
        if "l2" not in group:  # one of the user's own
            return
        group["share"] = share
        group["weight_decay"] = self._decay * share
        own = group["params"]
        if group["l2"] == 0:
            return
        for p in own:
            if p.grad is None:  # the network does not use it, the prior holds all the same
                p.grad = torch.zeros_like(p)
            if (mean := self._means.get(id(p))) is not None:  # l2 (p - mean): the rest is decay
                p.grad.sub_(mean, alpha=share * group["l2"])
        if self._decoupled or self._clip is not None:  # whose norm is that of the whole gradient
            for p in own:
                p.grad.add_(p.detach(), alpha=share * group["l2"])
        else:
            group["weight_decay"] += share * group["l2"]

    def _put_back(self, lost: Tensor, before: Params) -> None:
        """Members whose loss is no number stay where they are. (Inside a CUDA graph they go on, in
        vain: to look at them would make every step wait.)"""
        for name, p in self.params.items():
            p.detach()[lost] = before[name]
            for value in self.optimizer.state.get(p, {}).values():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    value[lost] = 0

    def restart(self) -> None:
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


@torch.no_grad()
def clip_members(params: Params, most: float, share: float = 1.0) -> None:
    """g_k <- g_k min(1, most / |g_k|) of each member k, where |g_k|^2 is the sum of squares over
    all its parameters, and g_k has been multiplied by the step's share.

    >>> w = torch.zeros(2, 2, requires_grad=True)
    >>> w.grad = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> clip_members({"w": w}, 1.0)
    >>> w.grad
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    gradients = [p.grad for p in params.values() if p.grad is not None]
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)  # [M]
    factor = (most / (squares.sqrt() / share + NORM_FLOOR)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor.to(g.dtype).view(-1, *[1] * (g.dim() - 1)))


class Replayed:
    """The same, recorded as a CUDA graph: one for each size of batch."""

    def __init__(self, step: EagerStep, batch: Batch) -> None:
        self._step = step
        device = step.recorder.sums.device
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._rates: list[tuple[Tensor, float]] = []
        for group in step.optimizer.param_groups:
            # read by the graph at each replay; fused optimisers want float32
            group["lr"] = torch.zeros((), dtype=torch.float32, device=device)
            self._rates.append((group["lr"], group["factor"]))
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[int | None, tuple[torch.cuda.CUDAGraph, Tensor | None]] = {}
        self._record(batch)

    def __call__(self, batch: Batch, number: int, *, rate: float) -> None:
        if size_of(batch) not in self._graphs:
            self._record(batch)
        graph, rows = self._graphs[size_of(batch)]
        for held, factor in self._rates:
            held.fill_(rate * factor)
        self._number.fill_(number)
        if rows is not None and isinstance(batch, Tensor):
            rows.copy_(batch)
        graph.replay()
        self._step.recorder.weight += self._step.share_of(batch)

    def restart(self) -> None:
        self._step.restart()

    def _record(self, batch: Batch) -> None:
        """Record the step for batches of this size; nothing is trained by it."""
        assert not isinstance(batch, (tuple, Several))
        rows = None if batch is None else batch.clone()
        with _undone(self._step):
            graph = record_graph(lambda: self._step.move(rows, self._number), pool=self._pool)
        self._graphs[size_of(batch)] = graph, rows


def record_step(step: EagerStep, batch: Batch) -> Step:
    """`step` as a CUDA graph, or as it is where the network does something no graph can hold."""
    try:
        return Replayed(step, batch)
    except torch.OutOfMemoryError:
        raise  # fewer members may fit
    except RuntimeError as error:
        log.warning("training runs without a CUDA graph: %s", error)
        return step


def size_of(batch: Batch) -> int | None:
    """Rows of each member; None where they are all of the data, or come from a loader."""
    return batch.shape[1] if isinstance(batch, Tensor) else None


@contextlib.contextmanager
def _undone(step: EagerStep) -> Iterator[None]:
    """Leaves everything as it was, but for the optimiser's state, which exists then."""
    held = [p.detach() for p in step.params.values()]
    held += [step.recorder.sums, step.recorder.lost_at, step.recorder.lost_by]
    held += _state(step.optimizer)
    before, weight = [t.clone() for t in held], step.recorder.weight
    random = torch.cuda.get_rng_state()
    try:
        yield
    finally:
        torch.cuda.synchronize()  # an error may have left steps under way on the other stream
        for group in step.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
        new = {id(t) for t in _state(step.optimizer)} - {id(t) for t in held}
        for t, value in zip(held, before, strict=True):
            t.copy_(value)
        for t in _state(step.optimizer):
            if id(t) in new:
                t.zero_()
        step.recorder.weight = weight
        torch.cuda.set_rng_state(random)


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)
    ]
