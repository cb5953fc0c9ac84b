"""Views on matplotlib's axes, in the style that the caller has set."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from stochens.errors import InputError
from stochens.figures.views import Amount, Reliability, Risk, few

BINS = 40  # of a histogram
MOST_POINTS = 500  # of a curve
RARE = 0.5  # where one bin has more than this share, the others need a logarithmic axis


class Look(NamedTuple):
    """Colours: of these data, of others, and of what stands behind them."""

    own: Any = "C0"
    other: Any = "C1"
    quiet: Any = "0.5"


PLAIN = Look()


def new_axes() -> Any:
    """Of a new figure, as pyplot makes it."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise InputError(missing(error)) from None
    return pyplot.subplots()[1]


def missing(error: ModuleNotFoundError) -> str:
    """What to do where a package is not there."""
    return f"reports and figures need {error.name}: pip install 'stochens[report]'"


def draw_reliability(ax: Any, found: Reliability, look: Look = PLAIN) -> Any:
    """Points, with their intervals where they have any, and the diagonal."""
    ax.plot([0, 1], [0, 1], color=look.quiet, linewidth=0.8, linestyle="--", label="as promised")
    x, y = found.promised.numpy(), found.came.numpy()
    if found.ends is not None:
        low, high = (end.numpy() for end in found.ends)
        # rounding may leave an end on the wrong side of a share of 0 or 1
        away = np.maximum(np.stack([y - low, high - y]), 0)
        ax.errorbar(x, y, away, fmt="none", ecolor=look.own, elinewidth=1, alpha=0.5)
    ax.plot(x, y, "o-", color=look.own, label="came")
    ax.set(xlabel=found.promise, ylabel=found.outcome)
    return ax


def draw_risk(ax: Any, found: Risk, look: Look = PLAIN) -> Any:
    """At most 500 points of the curve."""
    some = few(len(found.risk), MOST_POINTS)
    ax.plot(found.coverage[some].numpy(), found.risk[some].numpy(), color=look.own)
    ax.set(xlabel="share answered, surest first", ylabel=found.label)
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    return ax


def draw_amounts(ax: Any, amounts: Mapping[str, Amount], looks: Sequence[Any] = ()) -> Any:
    """Histograms over one another, of the same kind of uncertainty of several data, by name."""
    values = {name: _finite(amount.values) for name, amount in amounts.items()}
    seen = np.concatenate(list(values.values()))
    if not len(seen):
        raise InputError("no finite uncertainty is there to be shown")
    low, high = float(seen.min()), float(seen.max())
    low = 0.0 if 0 <= low < high / 2 else low
    if not high > low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    edges = np.linspace(low, high, BINS + 1)
    top = 0.0
    for k, (name, own) in enumerate(values.items()):
        counts, _ = np.histogram(own, edges)
        shares = counts / max(1, counts.sum())
        top = max(top, shares.max())
        colour = looks[k] if k < len(looks) else f"C{k}"
        ax.stairs(shares, edges, color=colour, fill=True, alpha=0.25)
        ax.stairs(shares, edges, color=colour, linewidth=1.4, label=name)
    if top > RARE:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    label = next(iter(amounts.values())).label
    ax.set(xlabel=label, ylabel="share (log scale)" if top > RARE else "share")
    ax.legend()
    return ax


def _finite(values: Tensor) -> "np.ndarray":
    flat = values.detach().flatten().double().cpu()
    found: np.ndarray = flat[flat.isfinite()].numpy()
    return found
