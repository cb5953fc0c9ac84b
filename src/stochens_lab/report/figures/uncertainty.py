"""What methods are unsure of, how well they are calibrated, and how much they would get right."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from stochens.metrics import calibration_curve, risk_coverage
from stochens.posterior.predictive import Predictive
from stochens_lab.report.figures.style import (
    QUIET,
    add_legend,
    make_panels,
    pick_colour,
    pick_dash,
    plot_line,
    style_figure,
)

BINS = 40


@style_figure
def draw_uncertainty(
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
    figure, axes = make_panels(
        3, most=3, width=3.0, height=2.6, share=False, legend=len(predictions)
    )
    spread, calibration, risk = axes
    _draw_histograms(spread, predictions, elsewhere)
    calibration.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle="--")
    for i, (name, p) in enumerate(predictions.items()):
        look: dict[str, Any] = {"color": pick_colour(i), "linestyle": pick_dash(i)}
        curve = calibration_curve(p.mean, y, bins=10)
        points = curve.confidence.tolist(), curve.accuracy.tolist()
        plot_line(calibration, name, *points, marker="o", **look)
        answered = risk_coverage(p.mean, y)
        plot_line(risk, name, answered.coverage.tolist(), (100 * answered.risk).tolist(), **look)
    spread.set(
        xlabel="mutual information, nats",
        ylabel=f"share of inputs; dotted: {there}",
        title=f"Unsure of {there}, sure of {here} inputs?",
    )
    title = "Calibration (bins of equal mass)"
    calibration.set(xlabel="confidence", ylabel="accuracy", title=title)
    label = "share of inputs answered, surest first"
    risk.set(xlabel=label, ylabel="errors among them, %", title="Risk against coverage")
    add_legend(figure, [calibration, risk])
    return figure


def _draw_histograms(
    ax: Axes, predictions: Mapping[str, Predictive], elsewhere: Mapping[str, Predictive]
) -> None:
    """Lines for inputs of the kind that was learnt, dotted for the others."""
    both = [*predictions.values(), *elsewhere.values()]
    top = max(float(p.mutual_information.max()) for p in both)
    edges = np.linspace(0, max(top, 1e-6), BINS)
    for i, name in enumerate(predictions):
        for p, dash in ((predictions[name], "-"), (elsewhere[name], ":")):
            counts, _ = np.histogram(p.mutual_information.numpy(), edges)
            ax.stairs(counts / counts.sum(), edges, color=pick_colour(i), linestyle=dash)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
