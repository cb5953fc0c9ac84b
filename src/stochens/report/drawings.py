"""The figures of a report, each as wide as a phone."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stochens.figures.axes import Look, draw_amounts, draw_reliability, draw_risk
from stochens.figures.style import COLOURS, QUIET, make_panels, style_figure
from stochens.figures.views import Amount, Reliability, Risk, Scatter, few
from stochens.report.content import Course

LOOK = Look(COLOURS[0], COLOURS[1], QUIET)
MOST_EPOCHS = 300  # points of a course
WIDTH, HEIGHT = 2.75, 2.2  # inches


def _panel() -> tuple[Figure, Axes]:
    figure, (ax,) = make_panels(1, most=1, width=WIDTH, height=HEIGHT, titles=0)
    return figure, ax


@style_figure
def figure_reliability(found: Reliability) -> Figure:
    figure, ax = _panel()
    draw_reliability(ax, found, LOOK)
    return figure


@style_figure
def figure_risk(found: Risk) -> Figure:
    figure, ax = _panel()
    draw_risk(ax, found, LOOK)
    return figure


@style_figure
def figure_amounts(found: dict[str, Amount]) -> Figure:
    figure, ax = _panel()
    draw_amounts(ax, found, [LOOK.own, LOOK.other])
    return figure


@style_figure
def figure_scatter(found: Scatter) -> Figure:
    """Predictions over the truth, with a standard deviation to either side."""
    figure, ax = _panel()
    true, mean, std = (t.numpy() for t in (found.true, found.mean, found.std))
    ends = [float(min(true.min(), mean.min())), float(max(true.max(), mean.max()))]
    ax.plot(ends, ends, color=LOOK.quiet, linewidth=0.8, linestyle="--")
    ax.errorbar(true, mean, std, fmt="none", ecolor=LOOK.own, elinewidth=0.7, alpha=0.35)
    ax.plot(true, mean, "o", color=LOOK.own, markersize=2.5)
    ax.set(xlabel=f"true {found.name}", ylabel=f"predicted {found.name}")
    ax.locator_params(nbins=5)
    return figure


@style_figure
def figure_training(history: Course) -> Figure | None:
    """The NLL of a data point over epochs: the mean over members, and from the lowest to the
    highest."""
    courses = [("training", history.nll, LOOK.own), ("validation", history.validation, LOOK.other)]
    shown = [(name, t.double().cpu(), colour) for name, t, colour in courses if len(t)]
    if not any(bool(t.isfinite().any()) for _, t, _ in shown):
        return None
    figure, ax = _panel()
    for name, values, colour in shown:
        epochs, low, middle, high = _course(values)
        ax.fill_between(epochs, low, high, color=colour, alpha=0.16, linewidth=0)
        marker = "o" if len(epochs) == 1 else ""
        ax.plot(epochs, middle, color=colour, label=name, marker=marker)
    ax.set(xlabel="epoch", ylabel="NLL of a data point")
    ax.legend()
    return figure


def _course(values: torch.Tensor) -> Sequence[np.ndarray]:
    """Epochs from 1 on, and the lowest, mean and highest member at each, where any is left."""
    some = few(len(values), MOST_EPOCHS)
    found = values[some].numpy()
    known = np.isfinite(found)
    left = known.any(1)
    found, known = found[left], known[left]
    low = np.where(known, found, np.inf).min(1)
    high = np.where(known, found, -np.inf).max(1)
    middle = np.where(known, found, 0).sum(1) / known.sum(1)
    return some.numpy()[left] + 1, low, middle, high
