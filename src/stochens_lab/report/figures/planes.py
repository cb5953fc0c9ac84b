"""Maps of the plane: the paper's fig1, and every method beside the reference."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from stochens.figures.style import (
    COLOURS,
    PAGE_WIDTH,
    QUIET,
    RULE,
    set_class,
    style_figure,
)
from stochens.report.text import MINUS
from stochens_lab.report.view import RunView, name_domain, unique

MAP = "map-"  # how the name of a grid of points begins
QUANTITIES = {"entropy": "entropy", "mi": "mutual information"}
KINDS = ("mean", *QUANTITIES)  # what is needed of each method
ABREAST = 4  # methods side by side, each with its difference to the reference
SIDE = PAGE_WIDTH / (2 * ABREAST) / 1.06  # inches, of a map
FARTHEST = 0.98  # the share of points that the colours of differences reach
MOST_POINTS = 400  # training points drawn: more of them only hide each other


class Plane(NamedTuple):
    """The maps of one set and place: method -> kind -> [side, side], the reference first."""

    set_name: str
    domain: str
    low: tuple[float, float]
    high: tuple[float, float]
    side: int
    methods: dict[str, dict[str, np.ndarray]]

    @property
    def title(self) -> str:
        return f"Set {self.set_name}, {name_domain(self.domain)}"

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Of the image: grid points are the centres of its pixels."""
        half = [(b - a) / (self.side - 1) / 2 for a, b in zip(self.low, self.high, strict=True)]
        (x, y), (right, top) = self.low, self.high
        return x - half[0], right + half[0], y - half[1], top + half[1]


def find_planes(view: RunView) -> list[Plane]:
    """Every square grid in the plane that some method has a complete prediction for."""
    found = []
    for set_name in view.sets:
        for place in unique(p for s, _, p in view.predictions if s == set_name):
            points = view.points(set_name, place) if place.startswith(MAP) else None
            if points is None:
                continue
            side = round(len(points) ** 0.5)
            if methods := _find_methods(view, set_name, place, side):
                (x, y), (right, top) = points.min(0).tolist(), points.max(0).tolist()
                domain = place.removeprefix(MAP)
                found.append(Plane(set_name, domain, (x, y), (right, top), side, methods))
    return found


def _find_methods(
    view: RunView, set_name: str, place: str, side: int
) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for (s, method, p), kinds in view.predictions.items():
        if (s, p) != (set_name, place) or any(kind not in kinds for kind in KINDS):
            continue
        maps = {kind: kinds[kind] for kind in QUANTITIES} | {"mean": _one_class(kinds["mean"])}
        found[method] = {kind: np.nan_to_num(maps[kind]).reshape(side, side) for kind in KINDS}
    first = [name for name in found if name == view.reference]
    return {name: found[name] for name in unique([*first, *found])}


def _one_class(mean: np.ndarray) -> np.ndarray:
    """Of two classes the probability of class 1, of more that of the likeliest."""
    found: np.ndarray = mean[:, 1] if mean.shape[1] == 2 else mean.max(1)
    return found


def draw_plane_figures(view: RunView) -> Iterator[tuple[str, Figure]]:
    """Every figure of the plane that the run has the numbers for, with its name."""
    planes = find_planes(view)
    first = {plane.set_name: plane for plane in reversed(planes)}
    known = [first[s] for s in view.sets if s in first and view.reference in first[s].methods]
    if known:
        yield "fig1", draw_reference(view, known)
    for plane in planes:
        for quantity in QUANTITIES:
            name = f"{MAP}{plane.domain}-{plane.set_name}-{quantity}"
            yield name, draw_maps(view, plane, quantity)


@style_figure
def draw_reference(view: RunView, planes: Sequence[Plane]) -> Figure:
    """fig1: each training set with the reference's entropy and mutual information."""
    canvas = Canvas(columns=3, lines=len(planes), side=2.4)
    for line, plane in enumerate(planes):
        canvas.draw_points(view, plane, 0, line, f"set {plane.set_name}, training points")
        for column, (what, title) in enumerate(QUANTITIES.items(), 1):
            values = plane.methods[view.reference or ""][what]
            image = canvas.draw_map(values, column, line, math.log(2))
            canvas.write(f"{view.reference}, {title}", column, line)
    canvas.add_bar(image, "nats", 1)
    return canvas.figure


@style_figure
def draw_maps(view: RunView, plane: Plane, quantity: str) -> Figure:
    """Each method's map, and to its right by how much it differs from the reference's."""
    truth = plane.methods.get(view.reference or "", {}).get(quantity)
    all_maps = [maps[quantity] for maps in plane.methods.values()]
    top = max(float(values.max()) for values in all_maps) or 1e-3
    gaps = [] if truth is None else [np.abs(values - truth) for values in all_maps]
    far = max(float(np.quantile(gaps, FARTHEST)), 1e-3) if gaps else 1e-3
    columns = min(len(all_maps), ABREAST)
    canvas = Canvas(columns=2 * columns, lines=math.ceil(len(all_maps) / columns))
    difference = None
    for i, (method, maps) in enumerate(plane.methods.items()):
        line, column = divmod(i, columns)
        image = canvas.draw_map(maps[quantity], 2 * column, line, top)
        canvas.write(method, 2 * column, line)
        _draw_inner(canvas, view, plane, 2 * column, line)
        if method == view.reference:
            canvas.draw_points(view, plane, 2 * column + 1, line, "training points")
        elif truth is not None:
            gap = maps[quantity] - truth
            difference = canvas.draw_map(gap, 2 * column + 1, line, far, diverging=True)
    canvas.add_bar(image, f"{QUANTITIES[quantity]}, nats", 0)
    if difference is not None:
        canvas.add_bar(difference, f"difference to {view.reference}, nats", 2)
    return canvas.figure


class Canvas:
    """Squares in lines and columns, all in one Axes: to draw many Axes takes long.

    A square is 1 wide and 1 high, `side` inches each; columns are `GAP` apart, and lines have room
    for a title above.
    """

    GAP = 0.06

    def __init__(self, *, columns: int, lines: int, side: float = SIDE) -> None:
        inch, self.title = side, 0.27 / side
        width, height = columns * (1 + self.GAP), lines * (1 + self.title)
        below = 0.5 / inch  # for the bars of colours
        self.figure = Figure(figsize=(width * inch, (height + below) * inch))
        self.ax = self.figure.add_axes((0, 0, 1, 1))
        self.ax.set(xlim=(0, width), ylim=(-height - below, 0))
        self.ax.axis("off")
        self.ax.autoscale(False)
        self.bottom, self.inch = -height, inch

    def place(self, column: int, line: int) -> tuple[float, float]:
        """The lower left corner of a square."""
        return column * (1 + self.GAP), -(line + 1) * (1 + self.title)

    def write(self, text: str, column: int, line: int) -> None:
        x, y = self.place(column, line)
        self.ax.text(x, y + 1 + 0.05 / self.inch, text)

    def draw_map(
        self, values: np.ndarray, column: int, line: int, top: float, *, diverging: bool = False
    ) -> AxesImage:
        x, y = self.place(column, line)
        image = self.ax.imshow(
            values,
            origin="lower",
            extent=(x, x + 1, y, y + 1),
            vmin=-top if diverging else 0.0,
            vmax=top,
            cmap="RdBu_r" if diverging else "viridis",
            interpolation="none",
            aspect="auto",
        )
        set_class(image, "plane")
        return image

    def scale(self, plane: Plane, points: np.ndarray, column: int, line: int) -> np.ndarray:
        """Points of the plane [N, 2] to where they are drawn."""
        left, right, low, high = plane.extent
        spans = np.array([right - left, high - low])
        found: np.ndarray = self.place(column, line) + (points - [left, low]) / spans
        return found

    def draw_points(self, view: RunView, plane: Plane, column: int, line: int, title: str) -> None:
        self.write(title, column, line)
        found, labels = (view.points(plane.set_name, what) for what in ("train", "labels"))
        if found is not None and labels is not None:
            points = self.scale(plane, found[:MOST_POINTS], column, line)
            labels = labels[:MOST_POINTS]
            inside = (np.floor(points - self.place(column, line)) == 0).all(1)
            for colour, label in zip(COLOURS, np.unique(labels), strict=False):
                x, y = points[inside & (labels == label)].T
                self.ax.plot(x, y, "o", color=colour, markersize=1.8, markeredgewidth=0)
        self.draw_square(np.add(self.place(column, line), [[0, 0], [1, 1]]), RULE)

    def draw_square(self, corners: np.ndarray, colour: str) -> None:
        """From the lower left to the upper right corner [2, 2]."""
        (x, y), (right, top) = corners
        self.ax.plot([x, right, right, x, x], [y, y, top, top, y], color=colour, linewidth=0.8)

    def add_bar(self, image: AxesImage, label: str, column: int) -> None:
        """The colours and their numbers, below the squares."""
        x, y = self.place(column, 0)[0], self.bottom - 0.1 / self.inch
        low, high = image.get_clim()
        width, height = 2 + self.GAP, 0.08 / self.inch
        colours = np.linspace(low, high, 128)[None]
        extent = (x, x + width, y - height, y)
        bar = self.ax.imshow(
            colours, image.get_cmap(), extent=extent, interpolation="none", aspect="auto"
        )
        bar.set_clim(low, high)
        below = y - height - 0.04 / self.inch
        ends = (f"{low:.2f}", f"{high:.2f}") if low >= 0 else (f"≤ {low:.2f}", f"≥ +{high:.2f}")
        self.ax.text(x, below, ends[0].replace("-", MINUS), va="top", color=QUIET)
        self.ax.text(x + width / 2, below, label, va="top", ha="center", color=QUIET)
        self.ax.text(x + width, below, ends[1], va="top", ha="right", color=QUIET)


def _draw_inner(canvas: Canvas, view: RunView, plane: Plane, column: int, line: int) -> None:
    """The square of a narrower map of the same set."""
    width = plane.high[0] - plane.low[0]
    places = unique(p for s, _, p in view.predictions if s == plane.set_name)
    for points in (view.points(plane.set_name, p) for p in places if p.startswith(MAP)):
        if points is not None and np.ptp(points[:, 0]) < 0.99 * width:
            corners = np.stack([points.min(0), points.max(0)])
            canvas.draw_square(canvas.scale(plane, corners, column, line), "white")
