"""Training: the loss over steps, the distance to the reference over steps; calibration, and what
methods are unsure of."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from stochens.figures.style import (
    AREA,
    COLOURS,
    MARGIN,
    PAGE_WIDTH,
    QUIET,
    add_legend,
    format_ticks,
    label_below,
    make_panels,
    pick_colour,
    pick_dash,
    plot_line,
    style_figure,
)
from stochens.metrics import calibration_curve, risk_coverage
from stochens.posterior.predictive import Predictive
from stochens_lab.report.view import RunView, describe_metric, name_domain, unique

SETTLED = 0.15  # the share of training after which the loss is worth its place on the axis
CURVE_METRIC = "variance"  # what "curve" in training.json holds
APART = 1.6  # the least ratio between two labels of a logarithmic axis


class Course(NamedTuple):
    """y over x, with the standard deviation of y or nothing."""

    x: list[float]
    y: list[float]
    spread: list[float]


@style_figure
def draw_losses(view: RunView, set_name: str) -> Figure | None:
    """A panel for each method, the other methods grey behind it."""
    courses = {
        method: course
        for method, row in view.run.training[set_name].items()
        if (course := _read_loss(row.get("course") or {})).x
    }
    if not courses:
        return None
    settled = [
        y + sign * s
        for course in courses.values()
        for x, y, s in zip(*course, strict=True)
        if x >= SETTLED * course.x[-1]
        for sign in (-1, 1)
    ]
    low, high = min(settled), float(np.quantile(settled, 0.97))
    margin = 0.05 * (high - low) or 1
    figure, axes = make_panels(len(courses), most=5, width=1.9, height=1.2)
    for ax, (method, course) in zip(axes, courses.items(), strict=True):
        for other in courses.values():
            ax.plot(other.x, other.y, color=AREA, linewidth=0.8)
        plot_line(ax, method, course.x, course.y, spread=course.spread, color=COLOURS[0])
        ax.set_title(method)
        ax.set_ylim(low - margin, high + margin)
        ax.set_xlim(left=0)
        ax.locator_params(nbins=4)
    label_below(figure, "training steps")
    return figure


def _read_loss(course: dict[str, Any]) -> Course:
    """Without the steps at which a loss was infinite."""
    if not course.get("step"):
        return Course([], [], [])
    spread = course.get("sd") or [0.0] * len(course["step"])
    points = zip(course["step"], course["loss"], spread, strict=True)
    known = [point for point in points if None not in point]
    return Course(*([point[k] for point in known] for k in range(3)))


@style_figure
def draw_steps(view: RunView) -> Figure | None:
    """Distance to the reference over training steps, with the distance of a method's two sets."""
    panels = {name: found for name in view.sets if (found := _find_curves(view, name))}
    if not panels:
        return None
    methods = unique(m for found in panels.values() for lines in found.values() for m in lines)
    titles = unique(title for found in panels.values() for title in found)
    figure, flat = make_panels(
        len(panels) * len(titles),
        most=len(titles),
        width=(PAGE_WIDTH - MARGIN) / max(len(titles), 3) - 0.6,
        height=1.7,
        share=False,
        legend=len(methods),
    )
    grid = [flat[i : i + len(titles)] for i in range(0, len(flat), len(titles))]
    for axes, (set_name, found) in zip(grid, panels.items(), strict=True):
        for ax, title in zip(axes, titles, strict=True):
            if title not in found:
                ax.axis("off")
                continue
            ax.set_title(f"Set {set_name}: {title}")
            for method, (x, y, spread) in found[title].items():
                look = _choose_look(methods.index(method))
                plot_line(ax, method, x, y, spread=spread, marker="o", **look)
            ax.set_ylim(bottom=0)
            format_ticks(ax, [x for c in found[title].values() for x in c.x], APART)
    label_below(figure, "training steps, log scale")
    add_legend(figure, flat)
    return figure


def _choose_look(index: int) -> dict[str, Any]:
    return {"color": pick_colour(index), "linestyle": pick_dash(index)}


def _find_curves(view: RunView, set_name: str) -> dict[str, dict[str, Course]]:
    """Title of a panel -> method -> its curve, in the units of the metric."""
    found: dict[str, dict[str, Course]] = {}
    rows = view.run.training.get(set_name, {})
    metric = describe_metric(CURVE_METRIC)
    for domain in unique(d for row in rows.values() for d in row.get("curve", {})):
        title = f"{metric.label} {name_domain(domain)}, {metric.unit}"
        for method, row in rows.items():
            if domain in row.get("curve", {}):
                course = _read_curve(view, set_name, method, domain, row["curve"][domain])
                scaled = (
                    [metric.scale * v for v in course.y],
                    [metric.scale * v for v in course.spread],
                )
                found.setdefault(title, {})[method] = Course(course.x, *scaled)
    for method, row in rows.items():
        if "set distance" in row:
            apart = row["set distance"]
            course = Course(apart["step"], apart["mean"], apart["sd"])
            found.setdefault(f"set distance of {method}", {})[method] = course
    return found


def _read_curve(
    view: RunView, set_name: str, method: str, domain: str, curve: dict[str, Any]
) -> Course:
    """Shorter trainings, and last the method of the table."""
    x, y, spread = list(curve["step"]), list(curve["mean"]), list(curve["sd"])
    last = view.interval(set_name, method, domain, CURVE_METRIC)
    steps = view.training_of(set_name, method).get("steps")
    if last is not None and isinstance(steps, int) and steps > max(x, default=0):
        return Course([*x, steps], [*y, last.value], [*spread, 0.0])
    return Course(x, y, spread)


@style_figure
def draw_calibration(view: RunView) -> Figure | None:
    """Accuracy over confidence, where the labels of the test points were kept."""
    labelled = [
        (set_name, place, labels)
        for set_name in view.sets
        for place in unique(p for s, _, p in view.predictions if s == set_name)
        if (labels := view.points(set_name, f"labels-{place}")) is not None
    ]
    if not labelled:
        return None
    methods = unique(
        method
        for s, place, _ in labelled
        for (t, method, p) in view.predictions
        if (t, p) == (s, place)
    )
    figure, axes = make_panels(len(labelled), most=3, width=3.3, height=2.6, legend=len(methods))
    for ax, (set_name, place, labels) in zip(axes, labelled, strict=True):
        ax.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8, linestyle="--")
        for method in methods:
            mean = view.predictions.get((set_name, method, place), {}).get("mean")
            if mean is not None:
                y = torch.from_numpy(labels)
                curve = calibration_curve(torch.from_numpy(mean), y, bins=10)
                points = (100 * curve.confidence).tolist(), (100 * curve.accuracy).tolist()
                plot_line(ax, method, *points, marker="o", **_choose_look(methods.index(method)))
        ax.set_title(f"Set {set_name}, {name_domain(place)}: accuracy, %")
    label_below(figure, "confidence, %")
    add_legend(figure, axes)
    return figure


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
        look = _choose_look(i)
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
