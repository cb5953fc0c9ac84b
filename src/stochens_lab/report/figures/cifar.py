"""fig3, fig4 and fig5 of the paper and the curves over members, of one run or several."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stochens.figures.style import (
    AREA,
    INK,
    PAGE_WIDTH,
    QUIET,
    add_legend,
    format_ticks,
    label_below,
    label_left,
    make_panels,
    pick_colour,
    pick_dash,
    plot_line,
    set_tooltip,
    style_figure,
)
from stochens_lab.report.cifar.numbers import (
    CURVES,
    choose_height,
    compute_calibration,
    compute_edges,
    compute_entropies,
    compute_shares,
    find_intensities,
    find_level,
    list_corrupted,
    list_curve_metrics,
    measure_distance,
    read_curve,
)
from stochens_lab.report.cifar.rows import Row, Rows, describe_metric, gather
from stochens_lab.report.cifar.trade import METRICS, find_trades
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.view import RunView

X_LABELS = {
    "members curve": "members, log scale",
    "inferences curve": "inferences per member, log scale",
}
BOX_METRICS = ("accuracy", "NLL")
Series = dict[str, list[tuple[str, Row, tuple[list[float], list[float]]]]]  # by metric


def draw_cifar_figures(runs: Sequence[SavedRun]) -> Iterator[tuple[str, Figure]]:
    """Every figure that these runs have the numbers for, with its name."""
    sets = gather([RunView(run, f"run{i}") for i, run in enumerate(runs)])
    for rows in sets:
        suffix = f"-{rows.set_name}" if len(sets) > 1 else ""
        for name, figure in (
            ("fig3", draw_entropies(rows)),
            ("fig4", draw_calibration(rows)),
            ("fig5", draw_boxes(rows)),
            *((which.split(" ")[0], draw_curves(rows, which)) for which in CURVES),
            ("epochs", draw_trades(rows)),
        ):
            if figure is not None:
                yield name + suffix, figure


def _choose_colour(rows: Rows, row: Row) -> str:
    return pick_colour(rows.distinct.index(row)) if row in rows.distinct else INK


def _choose_dash(rows: Rows, row: Row) -> str:
    return pick_dash(rows.distinct.index(row)) if row in rows.distinct else "-"


@style_figure
def draw_entropies(rows: Rows) -> Figure | None:
    """fig3: histograms of predictive entropy, each method over the reference."""
    found = {r.name: values for r in rows.all if (values := compute_entropies(r)) is not None}
    drawn = [row for row in rows.distinct if row.name in found]
    if not drawn:
        return None
    edges = compute_edges(rows.all)
    heights = {name: 100 * compute_shares(values, edges) for name, values in found.items()}
    top, cut = choose_height(heights.values())
    figure, axes = make_panels(len(drawn), most=4, width=2.4, height=1.6, titles=3 if cut else 2)
    for ax, row in zip(axes, drawn, strict=True):
        title, other = [row.name], rows.reference_of(row)
        if other is not None and other.name in found:
            area = ax.stairs(heights[other.name], edges, fill=True, color=AREA)
            set_tooltip(area, other.name)
            gap = measure_distance(found[row.name], found[other.name])
            title.append(f"{gap:.3f} nats from {other.name}")
            if cut:
                own, theirs = (heights[one.name][0] for one in (row, other))
                title.append(f"first bin: {own:.0f} %, {other.name} {theirs:.0f} %")
        line = ax.stairs(heights[row.name], edges, color=_choose_colour(rows, row), linewidth=1.4)
        set_tooltip(line, row.name)
        ax.set_ylim(0, top)
        ax.set_title("\n".join(title))
    label_below(figure, "predictive entropy, nats")
    label_left(figure, "share of test images, %")
    return figure


@style_figure
def draw_calibration(rows: Rows) -> Figure | None:
    """fig4: accuracy minus confidence over confidence, each method and the reference."""
    found = {
        row.name: curve
        for row in rows.all
        if (curve := compute_calibration(row)) and curve.confidence
    }
    drawn = [row for row in rows.distinct if row.name in found]
    if not drawn:
        return None
    figure, axes = make_panels(len(drawn), most=4, width=2.4, height=1.5)
    for ax, row in zip(axes, drawn, strict=True):
        ax.axhline(0, color=QUIET, linewidth=0.8, linestyle="--")
        for one in (rows.reference_of(row), row):
            if one is not None and one.name in found:
                points = [[100 * v for v in values] for values in found[one.name]]
                plot_line(ax, one.name, *points, marker="o", color=_choose_colour(rows, one))
        ax.set_title(row.name)
    label_below(figure, "confidence, %")
    label_left(figure, "accuracy \N{MINUS SIGN} confidence, %")
    return figure


@style_figure
def draw_boxes(rows: Rows) -> Figure | None:
    """fig5: accuracy and NLL over the corruptions, by intensity, methods side by side."""
    levels = find_intensities(rows.all)
    drawn = [row for row in rows.all if any(list_corrupted(row, "accuracy", i) for i in levels)]
    if not drawn:
        return None
    width = 0.8 / len(drawn)
    wide = PAGE_WIDTH - 1 if len(drawn) > 2 else 4.6
    figure, axes = make_panels(2, most=1, width=wide, height=2.1, share=False, legend=len(drawn))
    for ax, name in zip(axes, BOX_METRICS, strict=True):
        for k, row in enumerate(drawn):
            _draw_row(ax, rows, row, name, levels, (k - (len(drawn) - 1) / 2) * width, width)
        metric = describe_metric(name)
        ax.set_title(f"{metric.label}, {metric.unit}")
        ax.set_xticks(range(1, len(levels) + 1), [str(level) for level in levels])
    label_below(figure, "intensity of the corruption")
    add_legend(figure, axes)
    return figure


def _draw_row(
    ax: Axes, rows: Rows, row: Row, name: str, levels: Sequence[int], at: float, width: float
) -> None:
    """A box for each intensity, with lines to the lowest and highest; hollow where its colour comes
    a second time."""
    colour, again = _choose_colour(rows, row), _choose_dash(rows, row) != "-"
    metric = describe_metric(name)
    found = {
        i: known for i, level in enumerate(levels, 1) if (known := list_corrupted(row, name, level))
    }
    if not found:
        return
    line = {"color": colour, "linewidth": 1.0}
    drawn = ax.boxplot(
        [[metric.scale * value for value in values] for values in found.values()],
        whis=(0, 100),
        positions=[i + at for i in found],
        widths=0.75 * width,
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour, "edgecolor": colour},
        medianprops=line | {"linewidth": 1.6},
        whiskerprops=line,
    )
    for patch, (i, values) in zip(drawn["boxes"], found.items(), strict=True):
        patch.set_facecolor((*patch.get_facecolor()[:3], 0.0 if again else 0.3))
        median = metric.text(float(np.median(values)))
        set_tooltip(patch, f"{row.name}, intensity {levels[i - 1]}: median {median}")
    drawn["boxes"][0].set_label(row.name)


def draw_curves(rows: Rows, which: str) -> Figure | None:
    """Distance to the reference over the number of members, or of inferences of each."""
    found: Series = {}
    for metric in list_curve_metrics(rows.distinct, which):
        for row in rows.distinct:
            values = read_curve(row, which, metric)
            if values is not None:
                found.setdefault(metric, []).append((row.name, row, values))
    return _draw_series(rows, found, X_LABELS[which])


def draw_trades(rows: Rows) -> Figure | None:
    """The same over epochs, at the same number of members."""
    found: Series = {}
    for trade in find_trades(rows):
        name = f"{trade.name}, {trade.members} members"
        for metric in METRICS:
            values = trade.series(metric)
            if values[0]:
                found.setdefault(metric, []).append((name, trade.points[-1].row, values))
    return _draw_series(rows, found, "epochs of training, log scale")


@style_figure
def _draw_series(rows: Rows, found: Series, x_label: str) -> Figure | None:
    if not found:
        return None
    names = {name for series in found.values() for name, *_ in series}
    figure, axes = make_panels(
        len(found), most=4, width=2.1, height=1.8, share=False, legend=len(names) + 2
    )
    for ax, (name, series) in zip(axes, found.items(), strict=True):
        metric = describe_metric(name)
        for label, row, (x, y) in series:
            scaled, dash = [metric.scale * v for v in y], _choose_dash(rows, row)
            colour = _choose_colour(rows, row)
            plot_line(ax, label, x, scaled, marker="o", color=colour, linestyle=dash)
        target = find_level(rows, name)
        if target is not None:
            colour = QUIET if target.of_paper else INK
            level = metric.scale * target.value
            ax.axhline(level, color=colour, linestyle=":", linewidth=1.2, label=target.name)
        format_ticks(ax, [x for *_, (xs, _) in series for x in xs], 1.9)
        ax.set_title(", ".join(filter(None, [metric.label, metric.unit])))
    label_below(figure, x_label)
    add_legend(figure, axes)
    return figure
