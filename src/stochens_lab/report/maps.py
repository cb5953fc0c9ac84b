"""The paper's fig1 and the maps of every method beside the reference's, from a run of the toy."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stochens_lab.report.figures import COLOURS, LABEL
from stochens_lab.report.run_folder import Run

REFERENCE = "NUTS"
HALF_SIDES = {"map-in": 1.0, "map-out": 10.0}
QUANTITIES = {"entropy": "entropy", "mi": "mutual information"}
LN2 = float(np.log(2))  # the most that two classes can have of both


def map_figures(run: Run) -> Iterator[tuple[str, Figure]]:
    """Every figure of the plane that the run has the numbers for, with its name."""
    sets = [s for s in run.sampler if f"{s}/{REFERENCE}/map-in/mi" in run.arrays]
    if sets:
        yield "fig1", reference_figure(run, sets)
    for set_name in sets:
        for place in HALF_SIDES:
            yield f"{place}-{set_name}", methods_figure(run, set_name, place)
    curves = [s for s, rows in run.training.items() if "curve" in rows.get("SE3", {})]
    if curves:
        yield "steps", steps_figure(run, curves)


def reference_figure(run: Run, sets: list[str]) -> Figure:
    """fig1: each training set with the reference's entropy and mutual information."""
    figure = Figure(figsize=(8, 2.6 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), 3, squeeze=False)
    for row, set_name in zip(axes, sets, strict=True):
        _points(row[0], run, set_name)
        row[0].set_ylabel(f"set {set_name}", fontsize=LABEL + 1)
        for ax, (what, title) in zip(row[1:], QUANTITIES.items(), strict=True):
            image = _map(ax, run.arrays[f"{set_name}/{REFERENCE}/map-in/{what}"], 1.0, LN2)
            if set_name == sets[0]:
                ax.set_title(f"{REFERENCE}, {title}", fontsize=LABEL + 1)
    axes[0][0].set_title("training points", fontsize=LABEL + 1)
    figure.colorbar(image, ax=axes[:, 2], shrink=0.6, label="nats")
    return figure


def methods_figure(run: Run, set_name: str, place: str) -> Figure:
    """Entropy and mutual information of each method, each with its difference to the reference."""
    methods = [m for m in [REFERENCE, *run.metrics[set_name]] if _has(run, set_name, m, place)]
    figure = Figure(figsize=(1.7 * len(methods), 6.4), layout="constrained")
    axes = figure.subplots(4, len(methods), squeeze=False)
    side = HALF_SIDES[place]
    for column, method in enumerate(methods):
        axes[0][column].set_title(method, fontsize=LABEL)
        for k, what in enumerate(QUANTITIES):
            values = run.arrays[f"{set_name}/{method}/{place}/{what}"]
            truth = run.arrays[f"{set_name}/{REFERENCE}/{place}/{what}"]
            image = _map(axes[2 * k][column], values, side, LN2)
            below = axes[2 * k + 1][column]
            if method == REFERENCE:
                below.axis("off")
                continue
            difference = _map(below, values - truth, side, LN2 / 2, diverging=True)
    for k, title in enumerate(QUANTITIES.values()):
        axes[2 * k][0].set_ylabel(title, fontsize=LABEL)
        axes[2 * k + 1][min(1, len(methods) - 1)].set_ylabel("difference", fontsize=LABEL)
    figure.colorbar(image, ax=axes[:2, -1], shrink=0.8, label="nats")
    if len(methods) > 1:
        figure.colorbar(difference, ax=axes[2:, -1], shrink=0.8, label="difference, nats")
    figure.suptitle(f"set {set_name}, [-{side:g}, {side:g}]$^2$", fontsize=LABEL + 2)
    return figure


def _has(run: Run, set_name: str, method: str, place: str) -> bool:
    return f"{set_name}/{method}/{place}/mi" in run.arrays


def steps_figure(run: Run, sets: list[str]) -> Figure:
    """Distance to the reference over training steps, and the distance between SE3's two sets."""
    figure = Figure(figsize=(3.6 * len(sets), 5.2), layout="constrained")
    axes = figure.subplots(2, len(sets), squeeze=False, sharex=True)
    for column, set_name in enumerate(sets):
        rows, top, bottom = run.training[set_name], axes[0][column], axes[1][column]
        for colour, method in zip(COLOURS, ("regular", "SE3"), strict=False):
            for domain, style in (("in", "-"), ("out", "--")):
                curve = rows.get(method, {}).get("curve", {}).get(domain)
                if curve is None:
                    continue
                mean, sd = 100 * np.array(curve["mean"]), 100 * np.array(curve["sd"])
                top.errorbar(
                    curve["step"],
                    mean,
                    sd,
                    fmt=style,
                    marker="o",
                    markersize=3,
                    color=colour,
                    label=f"{method}, {domain}",
                )
        apart = rows.get("SE3", {}).get("set distance")
        if apart is not None:
            bottom.errorbar(apart["step"], apart["mean"], apart["sd"], marker="o", color=COLOURS[1])
        top.set_title(f"set {set_name}", fontsize=LABEL + 1)
        bottom.set_xlabel("training steps", fontsize=LABEL)
        bottom.set_ylim(bottom=0)
    axes[0][0].set_ylabel(f"variance to {REFERENCE}, 1e-2", fontsize=LABEL)
    axes[1][0].set_ylabel("distance of SE3's two sets", fontsize=LABEL)
    axes[0][0].legend(fontsize=LABEL - 2, frameon=False)
    return figure


def _map(
    ax: Axes, values: np.ndarray, side: float, top: float, *, diverging: bool = False
) -> AxesImage:
    steps = round(len(values) ** 0.5)
    low, colours = (-top, "RdBu_r") if diverging else (0.0, "magma")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax.imshow(
        values.reshape(steps, steps),
        origin="lower",
        extent=(-side, side, -side, side),
        vmin=low,
        vmax=top,
        cmap=colours,
    )


def _points(ax: Axes, run: Run, set_name: str) -> None:
    x, y = (run.arrays[f"{set_name}/points/{name}"] for name in ("train", "labels"))
    for label, colour in enumerate(COLOURS[:2]):
        ax.scatter(x[y == label, 0], x[y == label, 1], s=3, color=colour)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=[], yticks=[])
