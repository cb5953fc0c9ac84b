"""Figures, drawn without a display and saved as files."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from stochens.metrics import calibration_curve, risk_coverage
from stochens.posterior.predictive import Predictive

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2")
LABEL = 9  # points
BINS = 40


def uncertainty_figure(
    predictions: Mapping[str, Predictive],
    elsewhere: Mapping[str, Predictive],
    y: Tensor,
    *,
    here: str,
    there: str,
) -> Figure:
    """Three panels: mutual information here and elsewhere, calibration, and risk against coverage.

    `predictions` and `elsewhere` hold each method's Predictive for inputs of the kind it was
    trained on, `here`, and of another kind, `there`; y [B] are the labels of the first.
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    _histograms(axes[0], predictions, elsewhere, here, there)
    _calibration(axes[1], predictions, y)
    _risk(axes[2], predictions, y)
    return figure


def _histograms(
    ax: Axes,
    predictions: Mapping[str, Predictive],
    elsewhere: Mapping[str, Predictive],
    here: str,
    there: str,
) -> None:
    top = max(
        float(p.mutual_information.max()) for p in [*predictions.values(), *elsewhere.values()]
    )
    edges = np.linspace(0, max(top, 1e-6), BINS)
    for colour, name in zip(COLOURS, predictions, strict=False):
        for p, style, kind in ((predictions[name], "-", here), (elsewhere[name], "--", there)):
            counts, _ = np.histogram(p.mutual_information.numpy(), edges)
            share = counts / counts.sum()
            ax.stairs(share, edges, color=colour, linestyle=style, label=f"{name}, {kind}")
    ax.set_yscale("log")
    ax.set_xlabel("mutual information, nats", fontsize=LABEL)
    ax.set_ylabel("share of inputs", fontsize=LABEL)
    ax.set_title("It knows when it does not know", fontsize=LABEL + 1)
    ax.legend(fontsize=LABEL - 2, frameon=False)


def _calibration(ax: Axes, predictions: Mapping[str, Predictive], y: Tensor) -> None:
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for colour, (name, p) in zip(COLOURS, predictions.items(), strict=False):
        curve = calibration_curve(p.mean, y, bins=10)
        ax.plot(curve.confidence, curve.accuracy, "o-", color=colour, markersize=3, label=name)
    ax.set_xlabel("confidence", fontsize=LABEL)
    ax.set_ylabel("accuracy", fontsize=LABEL)
    ax.set_title("Calibration (bins of equal mass)", fontsize=LABEL + 1)
    ax.legend(fontsize=LABEL - 2, frameon=False)


def _risk(ax: Axes, predictions: Mapping[str, Predictive], y: Tensor) -> None:
    for colour, (name, p) in zip(COLOURS, predictions.items(), strict=False):
        curve = risk_coverage(p.mean, y)
        ax.plot(curve.coverage, 100 * curve.risk, color=colour, label=name)
    ax.set_xlabel("share of inputs answered, surest first", fontsize=LABEL)
    ax.set_ylabel("errors among them, %", fontsize=LABEL)
    ax.set_title("Risk against coverage", fontsize=LABEL + 1)
    ax.legend(fontsize=LABEL - 2, frameon=False)


def save_figure(figure: Figure, path: Path) -> None:
    """The same figure makes the same file: an SVG has no date and no random names inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    undated = {"Date": None} if path.suffix == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "stochens"}):
        figure.savefig(path, dpi=150, facecolor="white", metadata=undated)
