"""What training recorded, epoch by epoch and member by member."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class History(NamedTuple):
    """Each [E, M]: the mean over an epoch's steps, and its fluctuation (standard deviation); a step
    counts by its rows.

    `nll` is the expected NLL of a data point under the member's noise; `loss` is the training KL
    loss in nats: N * nll + L2 + stochasticity + the terms of a finite sigma + repulsion. Constants
    of machine precision and of ensembling (-log K) are left out; `posterior.kl()` has them.
    """

    nll: Tensor
    nll_sd: Tensor
    loss: Tensor
    loss_sd: Tensor

    def __repr__(self) -> str:
        epochs, members = self.loss.shape
        return f"History({epochs} epochs, {members} members)"

    def take(self, members: slice | Sequence[int]) -> "History":
        return History(*(t[:, members] for t in self))

    @classmethod
    def join(cls, blocks: "list[History]") -> "History":
        """Blocks of members side by side."""
        return cls(*(torch.cat(fields, dim=1) for fields in zip(*blocks, strict=True)))

    @classmethod
    def empty(cls, members: int) -> "History":
        return cls(*(torch.zeros(0, members) for _ in cls._fields))


class Recorder:
    """Sums of an epoch, kept on the device so that no step waits for them."""

    def __init__(self, members: int, device: torch.device) -> None:
        self.rows: list[Tensor] = []  # [4, M] each
        self.sums = torch.zeros(4, members, dtype=torch.float64, device=device)
        self.weight = 0.0  # of the steps in them; a whole batch has 1
        # of each member the first step whose loss was no number, or -1, and that loss
        self.lost_at = torch.full((members,), -1, device=device)
        self.lost_by = torch.zeros(members, dtype=torch.float64, device=device)
        self.any_lost = False  # as far as it is known without waiting for a GPU

    def step(self, nll: Tensor, loss: Tensor, number: int | Tensor, share: float = 1.0) -> None:
        """nll, loss [M], of the step with that number; `share`: what it counts, a whole one 1."""
        values = torch.stack([nll, loss]).double()
        self.sums += share * torch.cat([values, values.square()])
        self.weight += share
        finite = loss.isfinite()
        if loss.is_cuda or not bool(finite.all()):
            new = ~finite & (self.lost_at < 0)
            self.lost_by.copy_(torch.where(new, values[1], self.lost_by))
            self.lost_at.copy_(torch.where(new, number, self.lost_at))
            self.any_lost = not loss.is_cuda

    def end_epoch(self) -> None:
        mean_nll, mean_loss, square_nll, square_loss = self.sums / (self.weight or 1.0)
        sd_nll = (square_nll - mean_nll.square()).clamp_min(0).sqrt()
        sd_loss = (square_loss - mean_loss.square()).clamp_min(0).sqrt()
        self.rows.append(torch.stack([mean_nll, sd_nll, mean_loss, sd_loss]).float())
        self.sums.zero_()
        self.weight = 0.0

    def mean_loss(self) -> float:
        """Of the last epoch, over members."""
        return float(self.rows[-1][2].mean())

    def history(self) -> History:
        return History(*torch.stack(self.rows, dim=1).cpu())

    def state(self) -> dict[str, Tensor]:
        """To go on with later."""
        rows = torch.stack(self.rows) if self.rows else self.sums.new_zeros(0)
        lost = {"lost_at": self.lost_at, "lost_by": self.lost_by}
        weight = torch.tensor(self.weight, dtype=torch.float64)
        return {"sums": self.sums, "rows": rows, "weight": weight, **lost}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.sums.copy_(state["sums"])
        self.rows = list(state["rows"].to(self.sums.device))
        self.weight = float(state["weight"])
        self.lost_at.copy_(state["lost_at"])
        self.lost_by.copy_(state["lost_by"])
        self.any_lost = bool((self.lost_at >= 0).any()) and not self.sums.is_cuda
