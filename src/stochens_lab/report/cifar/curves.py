"""Distance to the reference over members, over inferences and over epochs, as inline SVG."""

from collections.abc import Mapping

from stochens_lab.report.charts import Axes, Line, chart, legend
from stochens_lab.report.cifar.charts import SMALL, figure_of, panels_of
from stochens_lab.report.cifar.numbers import CURVES, curve, curve_metrics, level, spaced
from stochens_lab.report.cifar.rows import Rows, shown
from stochens_lab.report.cifar.trade import METRICS, trade_table, trades
from stochens_lab.report.page.html import Html, join, tag

X_LABELS = {
    "members curve": "members, log scale",
    "inferences curve": "inferences per member, log scale",
}
Series = Mapping[str, tuple[str, tuple[list[float], list[float]]]]  # name -> style, x and y


def curve_panels(rows: Rows) -> Html | None:
    """Over the number of members, and of inferences per member."""
    parts: list[Html] = []
    names: dict[str, str] = {}
    for which in CURVES:
        panels = []
        for metric in curve_metrics(rows.methods, which):
            series = {
                row.name: (row.style, found)
                for row in rows.methods
                if (found := curve(row, which, metric)) is not None
            }
            if series:
                panels.append(_panel(rows, metric, series, X_LABELS[which], names))
        if panels:
            parts.append(panels_of(panels))
    return join([legend(names), *parts]) if parts else None


def trade_panels(rows: Rows) -> Html | None:
    """Over epochs, at the same number of members, and the table of it."""
    found, names = trades(rows), dict[str, str]()
    panels = []
    for metric in METRICS:
        series = {
            f"{trade.name}, {trade.members} members": (trade.style, trade.series(metric))
            for trade in found
            if trade.series(metric)[0]
        }
        if series:
            panels.append(_panel(rows, metric, series, "epochs, log scale", names))
    return (
        join([trade_table(rows), tag("div", legend(names), class_="after"), panels_of(panels)])
        if panels
        else None
    )


def _panel(rows: Rows, metric: str, series: Series, x_label: str, names: dict[str, str]) -> Html:
    width, height = SMALL
    scale = shown(metric).scale
    lines = []
    for name, (style, (x, y)) in series.items():
        names[name] = style
        lines.append(Line(name, x, [scale * v for v in y], style=style, dots=True))
    places = sorted({x for line in lines for x in line.x})
    ends = places[0] * 0.9, places[-1] * 1.12
    target = level(rows, metric)
    if target is not None:
        name, value = target.name, scale * target.value
        style = "ideal" if target.of_paper else "hmc level"
        names[name] = style
        lines.insert(0, Line(name, list(ends), [value, value], style=style))
    heights = [y for line in lines for y in line.y]
    margin = 0.08 * (max(heights) - min(heights)) or 0.5
    axes = Axes(
        x=ends,
        y=(min(heights) - margin, max(heights) + margin),
        log_x=True,
        x_ticks=spaced(places, 1.9),
        x_label=x_label,
        width=width,
        height=height,
    )
    unit = f", {shown(metric).unit}" if shown(metric).unit else ""
    title = f"{shown(metric).label}{unit}"
    over = f"{title} over {x_label.split(',')[0]}"
    return figure_of([title], chart(lines, axes, title=over))
