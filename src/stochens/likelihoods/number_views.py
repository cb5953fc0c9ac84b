"""What predictions of numbers show of themselves."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from stochens.figures.views import (
    Amount,
    PartTable,
    Ranking,
    Reliability,
    Risk,
    Scatter,
    Views,
    few,
    means_of_surest,
    name_of,
    to_spread,
    wilson,
)
from stochens.likelihoods.number_measures import LEVEL, PERCENT

LEVELS = torch.arange(1, 20, dtype=torch.float64) / 20  # of central intervals; the last is LEVEL
MOST_TARGETS = 3  # that have figures of their own
MOST_POINTS = 400  # of a scatter plot


class Spread(Protocol):
    """What is shown: `Moments`."""

    @property
    def mean(self) -> Tensor: ...  # [B, D]

    @property
    def std(self) -> Tensor: ...

    @property
    def epistemic(self) -> Tensor: ...

    def crps(self, y: Tensor) -> Tensor: ...


class NumberViews(Views):
    """Of predictions with mean and variance: targets y [B] or [B, D].

    `cumulative(y)` is P(Y < y) and P(Y <= y), each [B, D], or None where the family has no cdf.
    """

    def __init__(
        self,
        p: Spread,
        check: Callable[[Tensor], Tensor],
        cumulative: Callable[[Tensor], tuple[Tensor, Tensor] | None],
    ) -> None:
        self.p, self._check, self.cumulative = p, check, cumulative

    def width(self) -> int:
        return self.p.mean[0].numel()

    def _name(self, k: int, names: Sequence[str]) -> str:
        if names:
            return name_of(k, names)
        return "y" if self.width() == 1 else f"target {k}"

    def _columns(self, t: Tensor) -> Tensor:
        """[B, D] in float64."""
        return t.double().cpu().reshape(len(t), -1)

    def _targets(self, y: Tensor) -> Tensor:
        return self._columns(self._check(y))

    def _inside(self, y: Tensor) -> Tensor | None:
        """Of each target the smallest level whose central interval holds it, [B, D].

        low <= y <= high, the quantiles at (1 - L) / 2 and (1 + L) / 2, is the same as
        P(Y <= y) >= (1 - L) / 2 and P(Y < y) <= (1 + L) / 2.
        """
        found = self.cumulative(self._check(y))
        if found is None:
            return None
        below, up_to = (self._columns(t) for t in found)
        needed = torch.maximum(1 - 2 * up_to, 2 * below - 1)
        return needed.nan_to_num(0.0)  # of a network that overflows: its interval holds everything

    def reliability(self, y: Tensor) -> Reliability | None:
        needed = self._inside(y)
        if needed is None:
            return None
        there = ~self._targets(y).isnan()
        count = there.sum()
        came = torch.stack([(needed[there] <= level).double().mean() for level in LEVELS])
        reading = (
            "On the dashed line central intervals hold as many targets as they say; below it they "
            "are too narrow, above it too wide."
        )
        alone = self.width() == 1  # several targets of one example are not independent
        ends = wilson(came, count) if alone else None
        reading += " Bars are 95 % intervals." if alone else ""
        axes = "level of the interval", "share of targets inside"
        return Reliability(LEVELS.clone(), came, ends, *axes, reading)

    def _sizes(self) -> Tensor:
        """The standard deviations of each example in units of their usual size: [B]."""
        std = self._columns(self.p.std)
        usual = std.square().mean(0).sqrt()
        return (std / usual.where(usual > 0, 1.0)).mean(1)

    def risk(self, y: Tensor) -> Risk:
        own = self._targets(y)
        there = ~own.isnan()
        squares = (self._columns(self.p.mean) - own).square().where(there, 0.0).sum(1)
        count = there.sum(1).double()
        known = count > 0
        mean = means_of_surest(-self._sizes()[known], squares[known] / count[known], count[known])
        coverage = torch.arange(1, len(mean) + 1, dtype=torch.float64) / len(mean)
        reading = (
            "The RMSE if only the surest examples are answered: the more it rises to the right, "
            "the better the standard deviation tells where errors are large."
        )
        return Risk(coverage, mean.sqrt(), "RMSE among them", reading)

    def amounts(self, y: Tensor | None = None, names: Sequence[str] = ()) -> dict[str, Amount]:
        found: dict[str, Amount] = {}
        kinds = (
            ("std", self.p.std, "All of the uncertainty about each target, in its own units."),
            (
                "epistemic std",
                self.p.epistemic.sqrt(),
                "What the members disagree on, as a standard deviation: more data of this kind "
                "could remove it.",
            ),
        )
        for k in range(min(self.width(), MOST_TARGETS)):
            of = "" if self.width() == 1 else f" of {self._name(k, names)}"
            for what, values, reading in kinds:
                label = what.replace("std", "standard deviation") + of
                found[what + of] = Amount(self._columns(values)[:, k], label, reading)
        return found

    def scatters(self, y: Tensor, names: Sequence[str] = ()) -> list[Scatter]:
        """Of the first targets, some of the examples."""
        own, mean, std = self._targets(y), self._columns(self.p.mean), self._columns(self.p.std)
        found = []
        for k in range(min(self.width(), MOST_TARGETS)):
            known = (~own[:, k].isnan()).nonzero().squeeze(1)
            some = known[few(len(known), MOST_POINTS)]
            found.append(Scatter(own[some, k], mean[some, k], std[some, k], self._name(k, names)))
        return found

    def parts(self, y: Tensor, names: Sequence[str] = ()) -> PartTable | None:
        """Of several targets; what is told of one alone stands in the first table."""
        if self.width() == 1:
            return None
        own = self._targets(y)
        away = self._columns(self.p.mean) - own
        columns = {
            "RMSE": away.square().nanmean(0).sqrt(),
            "mean error": away.nanmean(0),
            "CRPS": self._columns(self.p.crps(y)).nanmean(0),
            "mean std": self._columns(self.p.std).mean(0),
        }
        needed = self._inside(y)
        if needed is not None:
            held = (needed <= LEVEL).double().masked_fill(own.isnan(), torch.nan)
            columns[f"{PERCENT} coverage"] = held.nanmean(0)
        columns["targets"] = (~own.isnan()).sum(0)
        reading = (
            "Each target in its own units; the mean error is that of the prediction minus the "
            "truth."
        )
        targets = [name_of(k, names) for k in range(self.width())]
        return PartTable("target", targets, columns, reading)

    def rankings(self, y: Tensor) -> list[Ranking]:
        own, std = self._targets(y), self._columns(self.p.std)
        away = ((self._columns(self.p.mean) - own).abs() / std).nan_to_num(0.0).amax(1)
        return [
            Ranking(
                "Most uncertain",
                self._sizes(),
                "Those with the largest standard deviation: are they hard, or foreign?",
            ),
            Ranking(
                "Most confidently wrong",
                away,
                "Those whose truth is the most standard deviations away: look for wrong targets "
                "and blind spots.",
            ),
        ]

    def say(self, row: int, y: Tensor, names: Sequence[str] = ()) -> str:
        own = self._targets(y)[row]
        mean, std = (self._columns(t[row : row + 1])[0] for t in (self.p.mean, self.p.std))
        said = []
        for k in range(min(self.width(), MOST_TARGETS)):
            of = "" if self.width() == 1 else f"{self._name(k, names)}: "
            numbers = [to_spread(t[k], std[k]) for t in (mean, std, own)]
            truth = "unknown" if own[k].isnan() else numbers[2]
            said.append(f"{of}{numbers[0]} ± {numbers[1]}, true {truth}")
        return "; ".join(said)
