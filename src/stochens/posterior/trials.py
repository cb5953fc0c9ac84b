"""What short trials of the methods said, kept beside the posterior that they led to."""

import dataclasses
import math
from typing import Any, NamedTuple

from stochens.text_table import folded, text_table

WIDTH = 80  # columns of a terminal


class Trial(NamedTuple):
    """One candidate, trained for a short time on a part of the data.

    `kl` is the training KL loss of its last epoch in nats (`posterior.history.loss`), a mean over
    members; `kl_fluctuation` is its standard deviation from step to step, `kl_error` the standard
    error of the mean over members, and `stochasticity` the part of it that is minus the entropy of
    the noise, which nothing trains (`posterior.kl()` has it too). `held_out` is the mean
    log-likelihood of a held-out example in nats; `gap` is how far below the best candidate's it is,
    example by example.
    """

    label: str
    kl: float | None  # None: no rank, since the terms of a finite sigma are on another scale
    kl_fluctuation: float
    kl_error: float
    stochasticity: float
    held_out: float
    held_out_error: float  # standard error over the held-out examples
    gap: float
    gap_error: float  # standard error of the differences


@dataclasses.dataclass(frozen=True)
class Trials:
    """All candidates, the one that was chosen and why. `print(posterior.trials)` tells."""

    rows: tuple[Trial, ...]
    chosen: str
    reason: str
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # candidate -> why

    def __repr__(self) -> str:
        return f"Trials({len(self.rows)} candidates, chosen {self.chosen!r})"

    def by_kl(self) -> list[Trial]:
        """Best first, without those that have no rank by it."""
        ranked = [(worth(-row.kl), row) for row in self.rows if row.kl is not None]
        return [row for _, row in sorted(ranked, key=lambda pair: pair[0], reverse=True)]

    def by_held_out(self) -> list[Trial]:
        """Best first."""
        return sorted(self.rows, key=lambda row: worth(row.held_out), reverse=True)

    def __str__(self) -> str:
        """The best by held-out likelihood first: held-out likelihoods, below them the training KL
        losses, since both side by side are too wide for many terminals."""
        held_out, kl = [], []
        ranks = {row.label: str(k) for k, row in enumerate(self.by_kl(), 1)}
        for k, row in enumerate(self.by_held_out(), 1):
            name = row.label + (" <-" if row.label == self.chosen else "")
            by_held_out = [
                f"{row.held_out:.4f} ± {row.held_out_error:.4f}",
                f"{row.gap:.4f} ± {row.gap_error:.4f}",
                str(k),
            ]
            by_kl = [
                "-" if row.kl is None else f"{row.kl:.1f} ± {row.kl_error:.1f}",
                f"{row.kl_fluctuation:.1f}",
                f"{row.stochasticity:.1f}",
                ranks.get(row.label, "-"),
            ]
            held_out.append([name, *by_held_out])
            kl.append([name, *by_kl])
        tables = (
            text_table(["", "held-out log p", "below best", "rank"], held_out),
            text_table(["", "KL loss", "fluctuates", "by noise", "rank"], kl),
        )
        return "\n\n".join([*tables, folded(self.reason, WIDTH)])

    def description(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self) | {"rows": [row._asdict() for row in self.rows]}

    @classmethod
    def read(cls, about: dict[str, Any] | None) -> "Trials | None":
        """From what `description` gave."""
        if about is None:
            return None
        rows = tuple(Trial(**row) for row in about["rows"])
        return cls(rows, about["chosen"], about["reason"], about["skipped"])


def worth(value: float) -> tuple[bool, float]:
    """To compare by, higher is better: what is no number is below all numbers.

    >>> max([math.nan, -math.inf, -2.0], key=worth)
    -2.0
    """
    return not math.isnan(value), value
