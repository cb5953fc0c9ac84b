"""fig3, fig4 and fig5 of the paper, as inline SVG."""

from collections.abc import Sequence

import numpy as np

from stochens_lab.report.charts import LEFT, RIGHT, Axes, Line, chart, legend
from stochens_lab.report.cifar.numbers import (
    Box,
    box,
    calibration,
    distance,
    entropies,
    entropy_edges,
    highest,
    intensities,
    shares,
)
from stochens_lab.report.cifar.rows import Row, Rows, shown
from stochens_lab.report.page.html import Html, join, tag
from stochens_lab.report.paper import TEST

SMALL, LARGE = (250, 180), (330, 220)  # of a panel, in pixels
FEW = 3  # panels that fill a line
BOX, GAP, GROUP = 11, 4, 18  # pixels: a box, between boxes, between intensities
BOX_METRICS = ("accuracy", "NLL")


def entropy_panels(rows: Rows) -> Html | None:
    """fig3: the predictive entropy of test images, each method over the reference."""
    drawn = [row for row in rows.methods if entropies(row) is not None]
    if not drawn:
        return None
    edges = entropy_edges(rows.all)
    heights = {row.name: _shares(row, edges) for row in rows.all}
    top, cut = highest(heights.values())
    width, height = _size(len(drawn))
    axes = Axes(
        x=(0, float(edges[-1])),
        y=(0, 100 * top),
        x_label="entropy, nats",
        width=width,
        height=height,
    )
    panels = []
    for row in drawn:
        stairs = [_stairs(row.name, edges, heights[row.name], row.style)]
        caption: list[object] = [row.name]
        other = rows.reference_of(row)
        theirs = entropies(other) if other is not None else None
        if other is not None and theirs is not None:
            stairs.insert(0, _area(other.name, edges, heights[other.name]))
            apart = distance(_entropies(row), theirs)
            caption.append(tag("small", f" {apart:.3f} nats from {other.name}"))
            if cut:
                caption.append(tag("small", _first_bins((row, other), heights)))
        title = f"{row.name}: share of test images by predictive entropy, %"
        panels.append(figure_of(caption, chart(stairs, axes, title=title)))
    return panels_of(panels)


def _first_bins(pair: Sequence[Row], heights: dict[str, np.ndarray]) -> str:
    said = [f"{100 * heights[row.name][0]:.0f} % of {row.name}" for row in pair]
    return f"first bin: {', '.join(said)}"


def _entropies(row: Row) -> np.ndarray:
    found = entropies(row)
    assert found is not None
    return found


def _shares(row: Row, edges: np.ndarray) -> np.ndarray:
    found = entropies(row)
    return np.array([]) if found is None else shares(found, edges)


def _corners(edges: np.ndarray, heights: np.ndarray) -> tuple[list[float], list[float]]:
    x = np.repeat(edges, 2)[1:-1].tolist()
    return x, (100 * np.repeat(heights, 2)).tolist()


def _stairs(name: str, edges: np.ndarray, heights: np.ndarray, style: str) -> Line:
    x, y = _corners(edges, heights)
    return Line(name, x, y, style=style)


def _area(name: str, edges: np.ndarray, heights: np.ndarray) -> Line:
    x, y = _corners(edges, heights)
    return Line(name, [x[0], *x, x[-1]], [0.0, *y, 0.0], style="area")


def calibration_panels(rows: Rows) -> Html | None:
    """fig4: accuracy minus confidence over confidence, each method and the reference."""
    labels = next((y for row in rows.all if (y := row.labels(TEST)) is not None), None)
    found = {row.name: c for row in rows.all if (c := calibration(row, labels)) and c.confidence}
    drawn = [row for row in rows.methods if row.name in found]
    if not drawn:
        return None
    width, height = _size(len(drawn))
    gaps = [100 * gap for c in found.values() for gap in c.gap]
    margin = 0.08 * (max(gaps) - min(gaps)) + 0.5
    low = 100 * min(c.confidence[0] for c in found.values())
    axes = Axes(
        x=(min(low, 90) - 2, 101),
        y=(min([*gaps, 0]) - margin, max([*gaps, 0]) + margin),
        x_label="confidence, %",
        width=width,
        height=height,
    )
    panels = []
    for row in drawn:
        parts = [Line("calibrated", list(axes.x), [0, 0], style="ideal")]
        other = rows.reference_of(row)
        for one in (other, row):
            if one is not None and one.name in found:
                c = found[one.name]
                across, up = ([100 * v for v in values] for values in c)
                parts.append(Line(one.name, across, up, style=one.style, dots=True))
        title = f"{row.name}: accuracy minus confidence over confidence, %"
        panels.append(figure_of([row.name], chart(parts, axes, title=title)))
    return panels_of(panels)


def box_panels(rows: Rows) -> Html | None:
    """fig5: accuracy and NLL over the corruptions, by intensity."""
    levels = intensities(rows.all)
    charts = [one for metric in BOX_METRICS if (one := _boxes(rows, metric, levels)) is not None]
    if not charts:
        return None
    drawn = {row.name: row.style for row in rows.all if _has_box(row, levels)}
    names = legend(drawn) if len(drawn) > 1 else None
    return join([names, tag("div", *charts, class_="row")])


def _has_box(row: Row, levels: Sequence[int]) -> bool:
    return any(box(row, metric, level) for metric in BOX_METRICS for level in levels)


def _boxes(rows: Rows, metric: str, levels: Sequence[int]) -> Html | None:
    drawn = [row for row in rows.all if any(box(row, metric, level) for level in levels)]
    if not drawn:
        return None
    group = len(drawn) * (BOX + GAP) + GROUP  # pixels
    width = LEFT + RIGHT + max(group * len(levels), 220)
    scale = shown(metric).scale
    found = [
        (i, k, Box(*(scale * v for v in b)))
        for i in range(len(levels))
        for k, row in enumerate(drawn)
        if (b := box(row, metric, levels[i])) is not None
    ]
    low, high = min(b.low for *_, b in found), max(b.high for *_, b in found)
    margin = 0.05 * (high - low) or 1
    axes = Axes(
        x=(0.5, len(levels) + 0.5),
        y=(low - margin, high + margin),
        width=width,
        height=230,
        x_ticks=range(1, len(levels) + 1),
        x_label="intensity of the corruption",
    )
    half = BOX / 2 / group
    lines = []
    for i, k, b in found:
        centre = i + 1 + ((k - (len(drawn) - 1) / 2) * (BOX + GAP)) / group
        said = f"{drawn[k].name}, intensity {levels[i]}: median {_median(metric, b)}"
        lines.append(_box_line(said, centre, half, b, drawn[k].style))
    unit = shown(metric).unit
    title = f"{shown(metric).label}, {unit}, by intensity"
    picture = chart(lines, axes, title=f"{title}: boxes over the corruptions")
    place = tag(
        "div", picture, class_="scroll", tabindex=0, role="region", aria_label=f"Chart: {title}"
    )
    return tag("figure", tag("figcaption", title), place, class_="natural")


def _median(metric: str, b: Box) -> str:
    return f"{b.median:.{1 if shown(metric).scale == 100 else 3}f}"


def _box_line(name: str, centre: float, half: float, b: Box, style: str) -> Line:
    """Whiskers, box and median in one stroke, so that it is a line like others."""
    left, right = centre - half, centre + half
    x = [centre, centre, left, left, right, left, left, centre, centre, centre, right, right]
    y = [b.low, b.first, b.first, b.median, b.median, b.median, b.third, b.third, b.high]
    y += [b.third, b.third, b.first]
    return Line(name, [*x, centre], [*y, b.first], style=f"box {style}")


def _size(count: int) -> tuple[int, int]:
    return SMALL if count > FEW else LARGE


def panels_of(panels: Sequence[Html]) -> Html:
    """Larger where there are few."""
    return tag("div", *panels, class_="panels charts" if len(panels) > FEW else "panels wide")


def figure_of(caption: Sequence[object], picture: Html) -> Html:
    return tag("figure", tag("figcaption", *caption), picture)
