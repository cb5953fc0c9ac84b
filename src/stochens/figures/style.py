"""One look for all figures, and the two ways out: a file, or SVG inside a page.

The colours are those of a page's light theme (report/assets/page.css). Inside a page each becomes
the variable of that name, so that a figure follows the theme. The same figure always makes the same
bytes.
"""

import io
import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = (  # --c0 to --c7
    *("#1f5fb4", "#b4531a", "#00796b", "#7a4fb5"),
    *("#8a6d00", "#b0306a", "#4d5763", "#4f7a00"),
)
INK, QUIET, RULE, AREA = "#1b1f24", "#58616b", "#e1e4e8", "#c5cad0"
VARIABLES = {colour: f"--c{i}" for i, colour in enumerate(COLOURS)}
VARIABLES |= {INK: "--ink", QUIET: "--quiet", RULE: "--rule", AREA: "--area"}
DASHES = ("-", "--", ":", "-.")
LABEL = 9  # points: 12 pixels in the page
PAGE_WIDTH = 11.4  # inches: the widest figure that the page shows without scrolling
MARGIN = 0.62  # inches, left of the panels
LEGEND_COLUMNS, LEGEND_LINE = 4, 0.18  # inches
FONT = "DejaVu Sans"  # comes with matplotlib; a page has its own
FEW_LABELS = 3  # that any axis has room for beside its first
SALT = "stochens"
# matplotlib's own settings, so that a figure does not depend on what its user has set; not those of
# the program that shows figures
THEIRS = (
    *("animation", "backend", "date", "docstring", "figure.hooks", "interactive"),
    *("savefig.dir", "timezone", "tk.", "toolbar", "webagg"),
)
STYLE: dict[Any, Any] = {
    name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith(THEIRS)
} | {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": QUIET,
    "axes.labelsize": LABEL,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": LABEL,
    "font.sans-serif": [FONT],
    "font.size": LABEL,
    "grid.color": RULE,
    "image.composite_image": False,
    "legend.fontsize": LABEL,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "svg.hashsalt": SALT,
    "text.color": INK,
    "text.parse_math": False,  # names come from anybody's file, with $ in them or not
    "xtick.color": RULE,
    "xtick.labelcolor": QUIET,
    "xtick.labelsize": LABEL - 1,
    "ytick.color": RULE,
    "ytick.labelcolor": QUIET,
    "ytick.labelsize": LABEL - 1,
    "ytick.major.size": 0,
}
style_figure = matplotlib.rc_context(STYLE)  # a decorator of what draws a figure
TITLE, CLASS = "title:", "class:"  # how the id of a group begins that has a tooltip, or a class
NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML cannot have
METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def pick_colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def pick_dash(index: int) -> str:
    """A colour that comes a second time is dashed, then dotted."""
    return DASHES[min(index // len(COLOURS), len(DASHES) - 1)]


def make_panels(
    count: int,
    *,
    most: int,
    width: float,
    height: float,
    titles: int = 1,
    legend: int = 0,
    share: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A grid of `count` panels of `width` times `height` inches, at most so many side by side.

    `titles` is the number of lines above each panel, `legend` the number of entries below all of
    them; `share` gives all panels the same axes. Everything has its place beforehand: to measure
    text, as matplotlib's layouts do, takes as long as to draw it.
    """
    columns = min(count, most)
    lines = math.ceil(count / columns)
    above, below = 0.12 + 0.15 * titles, 0.3
    across, down = (0.22 if share else 0.55), above + below
    bottom = 0.55 + LEGEND_LINE * math.ceil(legend / LEGEND_COLUMNS)
    size = (
        MARGIN + columns * (width + across),
        above + lines * (height + down) - down + bottom,
    )
    figure = Figure(figsize=size)
    figure.set_layout_engine("none")  # whatever the user's settings say
    axes = list(figure.subplots(lines, columns, squeeze=False, sharex=share, sharey=share).flat)
    figure.subplots_adjust(
        left=MARGIN / size[0],
        right=1 - across / 2 / size[0],
        top=1 - above / size[1],
        bottom=bottom / size[1],
        wspace=across / width,
        hspace=down / height,
    )
    for ax in axes[count:]:
        ax.axis("off")
    for ax in axes[max(0, count - columns) : count]:
        ax.xaxis.set_tick_params(labelbottom=True)  # also where the line below is not full
    return figure, axes[:count]


def label_below(figure: Figure, text: str) -> None:
    """Of all panels, under the lowest."""
    at = figure.subplotpars.bottom - 0.36 / figure.get_figheight()
    middle = (figure.subplotpars.left + figure.subplotpars.right) / 2
    figure.text(middle, at, text, color=QUIET, ha="center", va="center")


def label_left(figure: Figure, text: str) -> None:
    middle = (figure.subplotpars.bottom + figure.subplotpars.top) / 2
    at = 0.1 / figure.get_figwidth()
    figure.text(at, middle, text, color=QUIET, ha="center", va="center", rotation=90)


def plot_line(
    ax: Axes,
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    spread: Sequence[float] = (),
    **options: Any,
) -> None:
    """A line whose tooltip is its name, and at each of its marks the value; `spread` is the
    half-height of a band around it."""
    (line,) = ax.plot(x, y, label=name, **options)
    if any(spread):
        low, high = np.subtract(y, spread), np.add(y, spread)
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.16, linewidth=0)
    points = [f"{name}: {b:.4g} at {a:.4g}" for a, b in zip(x, y, strict=True)]
    set_tooltip(line, name, points if options.get("marker") else [])


def set_tooltip(artist: Artist, name: str, points: Sequence[str] = ()) -> None:
    artist.set_gid(TITLE + json.dumps([name, *points]))


def set_class(artist: Artist, name: str) -> None:
    """For the page's style sheet and script."""
    artist.set_gid(CLASS + name)


def add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One entry for each name, below the panels."""
    entries: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(),
        entries,
        loc="lower left",
        bbox_to_anchor=(0, 0),
        ncols=LEGEND_COLUMNS,
        handlelength=2.4,
        borderaxespad=0,
    )


def format_ticks(ax: Axes, places: Iterable[float], ratio: float) -> None:
    """Of a logarithmic axis: plain numbers at those places that are apart by this ratio."""
    ticks = space_labels(places, ratio)
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def space_labels(places: Iterable[float], ratio: float) -> list[float]:
    """Those that have room for a label on a logarithmic axis.

    From the last, which a curve is read at, down; where all are near, the axis is wide for them.

    >>> space_labels([1, 2, 3, 5, 10], 1.9), space_labels([40, 60, 80], 1.9)
    ([1, 2, 5, 10], [40, 60, 80])
    """
    found = sorted(set(places), reverse=True)
    room = min(ratio, (found[0] / found[-1]) ** (1 / FEW_LABELS)) if found else ratio
    kept: list[float] = []
    for place in found:
        if not kept or place * room <= kept[-1]:
            kept.append(place)
    return kept[::-1]


def save_figure(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with matplotlib.rc_context(STYLE), _ignore_glyphs():
        figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


def embed_figure(figure: Figure, *, key: str, label: str) -> Markup:
    """SVG to stand in a page: its text as text, its colours as the page's variables.

    `key` makes its ids unlike those of other figures; `label` is what a screen reader says of it.
    """
    text = io.StringIO()
    page = {"svg.fonttype": "none", "svg.hashsalt": f"{SALT} {key}"}
    with matplotlib.rc_context(STYLE | page), _ignore_glyphs():
        figure.savefig(text, format="svg", facecolor="none", metadata=METADATA)
    root = ElementTree.fromstring(NO_XML.sub("\ufffd", text.getvalue()))
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)  # its style would be that of the whole page
    everything = list(root.iter())
    used = {name for e in everything for value in e.attrib.values() for name in _references(value)}
    for element in everything:
        _simplify(element, used)
    root.attrib |= {"role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _ignore_glyphs() -> warnings.catch_warnings:
    """A name may have letters that matplotlib's font has not; a browser finds them elsewhere."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _references(value: str) -> list[str]:
    """The ids that an attribute points to, by #ID or url(#ID)."""
    return re.findall(r"^#(.+)$", value) + re.findall(r"url\(#([^)]+)\)", value)


def _simplify(element: ElementTree.Element, used: set[str]) -> None:
    """Without namespaces, ids that nothing refers to, and white space between elements."""
    element.tag = element.tag.rpartition("}")[2]
    found = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    given = found.get("id", "")
    if given not in used:
        found.pop("id", None)
    if "d" in found:
        found["d"] = re.sub(r"(\.\d\d)\d+", r"\1", found["d"])  # hundredths of a point
    if "style" in found:
        found["style"] = _restyle(found["style"])
    if element.tag == "image":
        found.pop("style", None)  # it would forbid to smooth what is enlarged
    if found.get("transform", "").startswith("rotate(-0 "):
        del found["transform"]
    element.attrib.clear()
    element.attrib |= found
    element.tail = (element.tail or "").strip() or None
    if element.tag != "text" and not (element.text or "").strip():
        element.text = None
    if given.startswith(CLASS):
        element.set("class", given.removeprefix(CLASS))
    if given.startswith(TITLE):
        _add_titles(element, *json.loads(given.removeprefix(TITLE)))


def _restyle(style: str) -> str:
    style = re.sub(
        r"#[0-9a-f]{6}",
        lambda found: f"var({VARIABLES[found[0]]})" if found[0] in VARIABLES else found[0],
        style,
    )
    return re.sub(rf"'{FONT}'[^;]*", "var(--font)", style)


def _add_titles(group: ElementTree.Element, name: str, *points: str) -> None:
    marks = [e for e in group.iter() if e.tag.endswith("use")]
    for mark, point in zip(marks, points if len(points) == len(marks) else (), strict=False):
        ElementTree.SubElement(mark, "title").text = point
    title = ElementTree.Element("title")
    title.text = name
    group.insert(0, title)
