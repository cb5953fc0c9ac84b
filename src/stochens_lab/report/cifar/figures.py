"""fig3, fig4 and fig5 of the paper and the curves over members, as files, of one run or several."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stochens_lab.report.cifar.numbers import (
    CURVES,
    box,
    calibration,
    curve,
    curve_metrics,
    distance,
    entropies,
    entropy_edges,
    highest,
    intensities,
    level,
    shares,
    spaced,
)
from stochens_lab.report.cifar.rows import Row, Rows, gather, set_title, shown
from stochens_lab.report.cifar.trade import METRICS, trades
from stochens_lab.report.figures import COLOURS, LABEL
from stochens_lab.report.page.run import View
from stochens_lab.report.paper import TEST
from stochens_lab.report.run_folder import Run

REFERENCE_COLOUR = "0.15"
DASHES = ("-", "--", ":", "-.")
MOST_COLUMNS = 4
X_LABELS = {"members curve": "members", "inferences curve": "inferences per member"}


def cifar_figures(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """Every figure that these runs have the numbers for, with its name."""
    sets = gather([View(run, f"run{i}") for i, run in enumerate(runs)])
    for rows in sets:
        suffix = f"-{rows.set_name}" if len(sets) > 1 else ""
        for name, figure in (
            ("fig3", entropy_figure(rows)),
            ("fig4", calibration_figure(rows)),
            ("fig5", box_figure(rows)),
            *((which.split(" ")[0], curve_figure(rows, which)) for which in CURVES),
            ("epochs", trade_figure(rows)),
        ):
            if figure is not None:
                yield name + suffix, figure


def _colour(rows: Rows, row: Row) -> str:
    return (
        COLOURS[rows.methods.index(row) % len(COLOURS)] if row in rows.methods else REFERENCE_COLOUR
    )


def _dash(rows: Rows, row: Row) -> str:
    """A colour that comes a second time is dashed, then dotted."""
    times = rows.methods.index(row) // len(COLOURS) if row in rows.methods else 0
    return DASHES[min(times, len(DASHES) - 1)]


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, MOST_COLUMNS)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.3 * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    flat = list(axes.flat)
    for ax in flat[count:]:
        ax.axis("off")
    for ax in flat[max(0, count - columns) : count]:
        ax.xaxis.set_tick_params(labelbottom=True)  # also where the line below is not full
    return figure, flat[:count]


def entropy_figure(rows: Rows) -> Figure | None:
    """fig3: histograms of predictive entropy, each method over the reference."""
    drawn = [row for row in rows.methods if entropies(row) is not None]
    if not drawn:
        return None
    edges = entropy_edges(rows.all)
    figure, axes = _grid(len(drawn))
    found = [values for row in rows.all if (values := entropies(row)) is not None]
    top, cut = highest([shares(values, edges) for values in found])
    for ax, row in zip(axes, drawn, strict=True):
        own, other = entropies(row), rows.reference_of(row)
        assert own is not None
        title = row.name
        theirs = None if other is None else entropies(other)
        if other is not None and theirs is not None:
            ax.stairs(shares(theirs, edges), edges, fill=True, color="0.8", label=other.name)
            title += f"\n{distance(own, theirs):.3f} nats"
        colour = _colour(rows, row)
        ax.stairs(shares(own, edges), edges, color=colour, linewidth=1.4, label=row.name)
        ax.set_ylim(0, top)
        ax.set_title(title, fontsize=LABEL)
        ax.tick_params(labelsize=LABEL - 1)
    figure.supxlabel("predictive entropy, nats", fontsize=LABEL)
    axis = "share of test images" + (", first bin cut" if cut else "")
    figure.supylabel(axis, fontsize=LABEL)
    figure.suptitle(f"{set_title(rows.set_name)}: each method over HMC (grey)", fontsize=LABEL + 2)
    return figure


def calibration_figure(rows: Rows) -> Figure | None:
    """fig4: accuracy minus confidence, all methods and the reference."""
    labels = next((y for row in rows.all if (y := row.labels(TEST)) is not None), None)
    found = [(row, c) for row in rows.all if (c := calibration(row, labels)) and c.confidence]
    if not any(row in rows.methods for row, _ in found):
        return None
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = figure.subplots()
    ax.axhline(0, color="0.7", linewidth=1)
    for row, c in found:
        width = 1.4 if row in rows.methods else 2.4
        ax.plot(
            c.confidence,
            c.gap,
            marker="o",
            markersize=3,
            linewidth=width,
            color=_colour(rows, row),
            linestyle=_dash(rows, row),
            label=row.name,
        )
    ax.set_xlabel("confidence", fontsize=LABEL)
    ax.set_ylabel("accuracy \N{MINUS SIGN} confidence", fontsize=LABEL)
    ax.set_title(f"{set_title(rows.set_name)}: calibration on test images", fontsize=LABEL + 2)
    figure.legend(loc="outside right upper", fontsize=LABEL - 1, frameon=False)
    return figure


def box_figure(rows: Rows) -> Figure | None:
    """fig5: accuracy and NLL over the corruptions, by intensity, methods side by side."""
    levels = intensities(rows.all)
    drawn = [row for row in rows.all if any(box(row, "accuracy", level) for level in levels)]
    if not drawn:
        return None
    width = 0.8 / len(drawn)
    figure = Figure(figsize=(max(7.0, 0.75 * len(drawn) + 4), 5.6), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for ax, metric in zip(axes, ("accuracy", "NLL"), strict=True):
        for k, row in enumerate(drawn):
            _boxes(ax, rows, row, metric, levels, (k - (len(drawn) - 1) / 2) * width, width)
        ax.set_ylabel(shown(metric).label, fontsize=LABEL)
        ax.set_xticks(range(1, len(levels) + 1), [str(level) for level in levels])
        ax.grid(axis="y", color="0.9")
    axes[-1].set_xlabel("intensity of the corruption", fontsize=LABEL)
    axes[0].set_title(f"{set_title(rows.set_name)}: corrupted test images", fontsize=LABEL + 2)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside right upper",
        fontsize=LABEL - 1,
        frameon=False,
    )
    return figure


def _boxes(
    ax: Axes, rows: Rows, row: Row, metric: str, levels: Sequence[int], at: float, width: float
) -> None:
    colour, again = _colour(rows, row), _dash(rows, row) != "-"
    found = [(i, b) for i, level in enumerate(levels, 1) if (b := box(row, metric, level))]
    stats = [
        {"whislo": b.low, "q1": b.first, "med": b.median, "q3": b.third, "whishi": b.high}
        for _, b in found
    ]
    line = {"color": colour, "linewidth": 1.0}
    drawn = ax.bxp(
        stats,
        positions=[i + at for i, _ in found],
        widths=0.75 * width,
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "none" if again else colour, "edgecolor": colour},
        medianprops=line if again else line | {"color": "white"},
        whiskerprops=line,
    )
    if drawn["boxes"]:
        drawn["boxes"][0].set_label(row.name)


def curve_figure(rows: Rows, which: str) -> Figure | None:
    """Distance to the reference over the number of members, or of inferences of each."""
    found: Series = {}
    for metric in curve_metrics(rows.methods, which):
        for row in rows.methods:
            values = curve(row, which, metric)
            if values is not None:
                found.setdefault(metric, []).append((row.name, row, values))
    return _curves(rows, found, X_LABELS[which])


def trade_figure(rows: Rows) -> Figure | None:
    """The same over epochs, at the same number of members."""
    found: Series = {}
    for trade in trades(rows):
        name = f"{trade.name}, {trade.members} members"
        for metric in METRICS:
            values = trade.series(metric)
            if values[0]:
                found.setdefault(metric, []).append((name, trade.points[-1].row, values))
    return _curves(rows, found, "epochs of training")


Series = dict[str, list[tuple[str, Row, tuple[list[float], list[float]]]]]  # by metric


def _curves(rows: Rows, found: Series, x_label: str) -> Figure | None:
    if not found:
        return None
    figure = Figure(figsize=(3.0 * len(found) + 1.6, 2.9), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for ax, (metric, series) in zip(axes, found.items(), strict=True):
        for name, row, values in series:
            colour, dash = _colour(rows, row), _dash(rows, row)
            ax.plot(*values, marker="o", markersize=3, color=colour, linestyle=dash, label=name)
        target = level(rows, metric)
        if target is not None:
            colour = "0.5" if target.of_paper else REFERENCE_COLOUR
            ax.axhline(target.value, color=colour, linestyle=":", label=target.name)
        ax.set_xscale("log", base=2)
        ax.set_xticks(spaced([x for *_, (xs, _) in series for x in xs], 1.5))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_title(shown(metric).label, fontsize=LABEL)
        ax.set_xlabel(x_label, fontsize=LABEL)
        ax.tick_params(labelsize=LABEL - 1)
    entries: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(), entries, loc="outside right upper", fontsize=LABEL - 1, frameon=False
    )
    return figure
