"""The members of a block on validation data, epoch by epoch: who stops, and with which state."""

from collections.abc import Callable

import torch
from torch import Tensor

from stochens.members import Params, size
from stochens.posterior.history import History
from stochens.program.choice import BACKWARD, TRIED, Workload
from stochens.program.data_term import own_noise
from stochens.program.outputs import outputs_for
from stochens.program.program import Noise
from stochens.randomness.seeds import VALIDATION, derive, seeded
from stochens.training.task import HeldOut, Task

Named = dict[str, Tensor]
ParamsOf = Callable[[int], Params]  # of the draw with that number; the same for all but Gaussians


def validation_nll(
    task: Task, held: HeldOut, members: tuple[int, ...], params_of: ParamsOf, *, draws: bool
) -> Callable[[], Tensor]:
    """A function that gives the mean NLL of each member on the held-out data, [M] in float64.

    As predictions are, it is of the network in its mode for tests. The noise depends on (seed,
    member, draw, place in the data): in each epoch it is the same, and in blocks of any size.
    `draws`: whether training draws from torch's generator, which goes on where it was then.
    """
    settings, likelihood, net = task.settings, task.likelihood, held.net
    device, many = settings.device, held.options.draws
    ids = torch.tensor(members, device=device)
    first = torch.tensor([derive(settings.seed, VALIDATION, 1)], device=device)
    stream = derive(settings.seed, VALIDATION, 2)
    net.eval()
    examples = settings.epochs * many * len(members) * len(held.y) / BACKWARD  # no way back
    work = Workload(held.rows, examples, False, False, settings.engine, gradients=False)
    run = outputs_for(net, held.x[:TRIED], work, fast=settings.fast, bf16=settings.bf16)
    net.train()

    def mean_nll() -> Tensor:
        total = torch.zeros(len(members), dtype=torch.float64, device=device)
        parts = range(0, len(held.y), held.rows)
        for draw in range(many):
            params = params_of(draw)
            for k, top in enumerate(parts):
                rows = slice(top, top + held.rows)
                y, noise = held.y[rows], Noise(ids, first + draw * len(parts) + k)
                outputs = run(params, held.x[rows], noise, own_noise(noise))  # [M, B, C]
                weights = () if held.weights is None else (held.weights[rows],)
                nll = likelihood.nll(outputs, y.expand(size(params), *y.shape), *weights)
                total += nll.double() * len(y)
        return total / (many * len(held.y))

    def in_its_mode() -> Tensor:
        net.eval()
        try:
            with torch.no_grad():
                if not draws:
                    return mean_nll()
                with seeded(stream, device):
                    return mean_nll()
        finally:
            net.train()

    return in_its_mode


class Validator:
    """The NLLs so far, who has stopped, and the best state of each member.

    A member that has stopped goes on computing in vain, so that nothing changes for the others: its
    best state is kept aside.
    """

    def __init__(
        self, held: HeldOut, nll: Callable[[], Tensor], state: Callable[[], Params]
    ) -> None:
        """state: all that a member is, by name, each [M, ...]."""
        self._options, self._nll, self._state = held.options, nll, state
        self._rows: list[Tensor] = []  # [M] each
        now = state()
        members, device = size(now), held.y.device
        self._best = torch.full((members,), torch.inf, dtype=torch.float64, device=device)
        self._kept = torch.zeros(members, dtype=torch.int64, device=device)
        self.last = torch.full((members,), -1, device=device)  # the epoch after which it stopped
        self._aside = {n: t.detach().clone() for n, t in now.items()} if self.chooses else {}

    @property
    def chooses(self) -> bool:
        return self._options.chooses

    @property
    def stopped(self) -> Tensor:
        """Of each member, [M]."""
        return self.last >= 0

    @property
    def newest(self) -> Tensor:
        """The NLL of each member after the last epoch, NaN for those that had stopped: [M]."""
        return self._rows[-1]

    def all_stopped(self) -> bool:
        return bool(self.stopped.all())

    def end_epoch(self) -> None:
        """A look at the members as they are now."""
        epoch = len(self._rows)
        value = self._nll().masked_fill(self.stopped, torch.nan)  # [M]
        self._rows.append(value)
        better = value < self._best  # never of what is no number
        self._best = torch.where(better, value, self._best)
        better = better | (epoch == 0)
        if not self.chooses:
            self._kept.fill_(epoch)
            return
        self._kept = torch.where(better, epoch, self._kept)
        for name, t in self._state().items():
            where = better.view(-1, *[1] * (t.dim() - 1))
            self._aside[name].copy_(torch.where(where, t.detach(), self._aside[name]))
        if self._options.patience is not None:
            waited = (epoch - self._kept >= self._options.patience) & ~self.stopped
            self.last = torch.where(waited, epoch, self.last)

    def chosen(self) -> Params:
        """The state that each member has in the end."""
        return self._aside if self.chooses else self._state()

    def completed(self, history: History) -> History:
        """With what was seen here."""
        seen = torch.stack(self._rows).float().cpu()  # [e, M]
        missing = seen.new_full((len(history.loss) - len(seen), seen.shape[1]), torch.nan)
        return history._replace(validation=torch.cat([seen, missing]), kept=self._kept.cpu())

    def note(self) -> str:
        """For the progress bar: the mean over members that are still learning."""
        told = f", validation {float(self.newest.nanmean()):.4g}"
        stopped = int(self.stopped.sum())
        return told + (f", {stopped} stopped" if stopped else "")

    def state(self) -> Named:
        """To go on with later."""
        rows = torch.stack(self._rows) if self._rows else self._best.new_zeros(0)
        seen = {"rows": rows, "best": self._best, "kept": self._kept, "last": self.last}
        return {**seen, **{f"aside/{name}": t for name, t in self._aside.items()}}

    def restore(self, state: Named) -> None:
        device = self._best.device
        self._rows = list(state["rows"].to(device))
        self._best, self._kept = state["best"].to(device), state["kept"].to(device)
        self.last = state["last"].to(device)
        for name, t in self._aside.items():
            t.copy_(state[f"aside/{name}"])
