"""What training recorded, epoch by epoch and member by member."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class History(NamedTuple):
    """The first four are [E, M]: the mean over an epoch's steps, and its fluctuation (standard
    deviation); a step counts by its rows. NaN: the member had stopped before that epoch.

    `nll` is the expected NLL of a data point under the member's noise; `loss` is the training KL
    loss in nats: N * nll + L2 + stochasticity + the terms of a finite sigma + repulsion. Constants
    of machine precision and of ensembling (-log K) are left out; `posterior.kl()` has them.

    `validation` [E, M] is the NLL of a data point of `fit(validation=...)` after each epoch,
    likewise expected under the member's noise; [0, M] without such data. `kept` [M] is the epoch
    whose state each member has, from 0 on: its best one where validation chooses, else its last.
    """

    nll: Tensor
    nll_sd: Tensor
    loss: Tensor
    loss_sd: Tensor
    validation: Tensor
    kept: Tensor

    def __repr__(self) -> str:
        epochs, members = self.loss.shape
        return f"History({epochs} epochs, {members} members)"

    def take(self, members: slice | Sequence[int]) -> "History":
        return History(*(t[..., members] for t in self))

    def put(self, members: Sequence[int], other: "History") -> None:
        """That of other members in the places of these."""
        for mine, theirs in zip(self, other, strict=True):
            mine[..., members] = theirs

    @classmethod
    def join(cls, blocks: "list[History]") -> "History":
        """Blocks of members side by side."""
        return cls(*(torch.cat(fields, dim=-1) for fields in zip(*blocks, strict=True)))

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> "History":
        """By the names of its fields. Files of before have none of validation."""
        epochs, members = named["loss"].shape
        without = {
            "validation": named["loss"].new_zeros(0, members),
            "kept": torch.full((members,), epochs - 1),
        }
        return cls(**{**without, **named})


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

    def mean_loss(self, stopped: Tensor | None = None) -> float:
        """Of the last epoch, over members, but for those that have stopped [M]."""
        loss = self.rows[-1][2]
        return float((loss if stopped is None or bool(stopped.all()) else loss[~stopped]).mean())

    def history(self, epochs: int, last: Tensor) -> History:
        """Of so many epochs, NaN after the `last` one of each member, [M]."""
        fields = torch.stack(self.rows, dim=1).cpu()  # [4, e, M]
        missing = fields.new_full((4, epochs - fields.shape[1], fields.shape[2]), torch.nan)
        fields = torch.cat([fields, missing], dim=1)
        after = torch.arange(epochs)[:, None] > last.cpu()  # [E, M]
        named = dict(zip(History._fields[:4], fields.masked_fill(after, torch.nan), strict=True))
        return History.of({**named, "kept": last.cpu()})

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
