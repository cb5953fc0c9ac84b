"""What predictions show of themselves, as numbers and words: figures, tables and pages follow.

A kind of prediction states its `Views`; nothing that draws asks which kind it is.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Z = 1.959963984540054  # of a 95 % interval


class Reliability(NamedTuple):
    """What was promised and what came, bin by bin or level by level; all [k], float64."""

    promised: Tensor
    came: Tensor
    ends: tuple[Tensor, Tensor] | None  # of the 95 % intervals of `came`; None: not independent
    promise: str  # what the axes are called
    outcome: str
    reading: str


class Risk(NamedTuple):
    """The mean loss among the surest share `coverage`; both [k], float64."""

    coverage: Tensor
    risk: Tensor
    label: str
    reading: str


class Amount(NamedTuple):
    """A kind of uncertainty: its values, of any shape."""

    values: Tensor
    label: str
    reading: str


class Scatter(NamedTuple):
    """Predictions of one target beside the truth, with their standard deviations; all [k]."""

    true: Tensor
    mean: Tensor
    std: Tensor
    name: str


class PartTable(NamedTuple):
    """Scores of each class, label or target: columns by name, each [C]."""

    kind: str
    names: list[str]
    columns: dict[str, Tensor]
    reading: str
    confusion: Tensor | None = None  # [C, C]: how often label i was predicted as class j


class Ranking(NamedTuple):
    """Examples by a score [B], the largest first; those of score 0 or less are not meant."""

    title: str
    score: Tensor
    reading: str


class Map(NamedTuple):
    """Values at the places of one example, [H, W]: numbers of classes, -1 where there is none, or
    amounts from 0 to top."""

    title: str
    values: Tensor
    top: float | None  # None: classes


class Views:
    """What a kind of prediction shows; a kind without views of its own shows nothing.

    `names` are those of classes, labels or targets, in their order; their numbers where none are
    given.
    """

    def reliability(self, y: Tensor) -> Reliability | None:
        return None

    def risk(self, y: Tensor) -> Risk | None:
        return None

    def amounts(self, y: Tensor | None = None, names: Sequence[str] = ()) -> dict[str, Amount]:
        """By name, the whole uncertainty first. With y, without the places that y leaves out."""
        return {}

    def scatters(self, y: Tensor, names: Sequence[str] = ()) -> list[Scatter]:
        return []

    def parts(self, y: Tensor, names: Sequence[str] = ()) -> PartTable | None:
        return None

    def rankings(self, y: Tensor) -> list[Ranking]:
        return []

    def say(self, row: int, y: Tensor, names: Sequence[str] = ()) -> str:
        """What it predicts for one example, and what is true."""
        return ""

    def maps(self, row: int, y: Tensor) -> list[Map]:
        return []

    def width(self) -> int:
        """How many classes, labels or targets could have names; 0: none."""
        return 0


def name_of(k: Any, names: Sequence[str]) -> str:
    """
    >>> name_of(1, ["cat", "dog"]), name_of(1, [])
    ('dog', '1')
    """
    return str(names[int(k)]) if names else str(int(k))


def percent(share: Any) -> str:
    """
    >>> percent(0.934)
    '93 %'
    """
    return f"{100 * float(share):.0f} %"


def to_spread(value: Any, std: Any) -> str:
    """A number with the digits that its standard deviation leaves it: two of that one's.

    >>> to_spread(1004312.7, 9800.0), to_spread(0.12345, 0.021), to_spread(1e30, 1e28)
    ('1,004,313', '0.123', '1e+30')
    """
    value, std = float(value), float(std)
    if not (0 < std < math.inf and abs(value) < 1e12):
        return f"{value:.4g}"
    places = 1 - math.floor(math.log10(std))
    return f"{value:.4g}" if places > 6 else f"{value:z,.{max(0, places)}f}"


def wilson(share: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of Wilson's 95 % interval of a share of `count` independent examples.

    >>> [round(float(end), 3) for end in wilson(torch.tensor(0.5), torch.tensor(100))]
    [0.404, 0.596]
    """
    n = count.double()
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * (share * (1 - share) / n + Z**2 / (4 * n**2)).sqrt()
    return middle - half, middle + half


def means_of_surest(sureness: Tensor, loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean loss of the k surest examples, k = 1 to K: sureness, loss [K] -> [K].

    Those that are equally sure share the mean of their group, whatever their order. `weight` [K]:
    how much each counts.

    >>> means_of_surest(torch.tensor([0.5, 1.0, 0.5]), torch.tensor([1.0, 0.0, 0.0]))
    tensor([0.0000, 0.2500, 0.3333], dtype=torch.float64)
    """
    weight = torch.ones_like(loss) if weight is None else weight
    order = sureness.argsort(descending=True)
    _, group, size = torch.unique_consecutive(
        sureness[order], return_inverse=True, return_counts=True
    )
    loss_sum, weight_sum = (
        (group.bincount(t[order].double()) / size)[group].cumsum(0) for t in (loss * weight, weight)
    )
    found: Tensor = loss_sum / weight_sum
    return found


def few(count: int, most: int) -> Tensor:
    """At most so many of the places 0 to count - 1, equally far apart, with the first and the last.

    >>> few(5, 9), few(9, 3)
    (tensor([0, 1, 2, 3, 4]), tensor([0, 4, 8]))
    """
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, most, dtype=torch.float64).round().long()
