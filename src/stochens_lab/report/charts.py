"""Line charts as inline SVG: no script, no library, colours from the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from stochens_lab.report.page.html import MINUS, Html, join, number, tag

LEFT, RIGHT, TOP, BOTTOM = 40, 10, 10, 34  # room for the axes, in pixels
COLOURS = 8  # classes c0 to c7 of the style sheet


@dataclass(frozen=True)
class Line:
    """y over x; `spread` is drawn as a band of that half-height."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    style: str = "c0"
    dots: bool = False


@dataclass(frozen=True)
class Axes:
    """Where numbers lie on the picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 240
    height: int = 170
    log_x: bool = False
    x_label: str = "training steps"
    x_ticks: Sequence[float] = field(default=())

    def across(self, value: float) -> float:
        low, high, at = self.x[0], self.x[1], value
        if self.log_x:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(LEFT + share * (self.width - LEFT - RIGHT), 1)

    def up(self, value: float) -> float:
        low, high = self.y
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.height - BOTTOM - share * (self.height - TOP - BOTTOM), 1)


def ticks(low: float, high: float, *, about: int = 4) -> list[float]:
    """Round numbers from low to high.

    >>> ticks(0, 100)
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def chart(lines: Sequence[Line], axes: Axes, *, title: str, behind: str | None = None) -> Html:
    """An SVG figure; `behind` is the id of a shape made by `shape`, drawn under the lines."""
    wide, high = axes.width - LEFT - RIGHT, axes.height - TOP - BOTTOM
    drawn: list[Html] = []
    if behind is not None:
        drawn.append(tag("use", href=f"#{behind}", class_="behind"))
    for line in lines:
        drawn += _drawn(line, axes)
    return tag(
        "svg",
        tag("title", title),
        *_grid(axes),
        # An svg inside another is cut at its edge, which needs no id.
        tag(
            "svg",
            *drawn,
            x=LEFT,
            y=TOP,
            width=wide,
            height=high,
            viewBox=f"{LEFT} {TOP} {wide} {high}",
        ),
        viewBox=f"0 0 {axes.width} {axes.height}",
        role="img",
        class_="chart",
        width=axes.width,
        height=axes.height,
    )


def shape(lines: Sequence[Line], axes: Axes, *, name: str) -> Html:
    """Lines without axes, kept once in the page and drawn in many charts."""
    paths = [tag("path", d=_path(line.x, line.y, axes)) for line in lines if line.x]
    return tag(
        "svg",
        tag("defs", tag("g", *paths, id=name)),
        class_="defs",
        width=0,
        height=0,
        aria_hidden="true",
    )


def legend(names: dict[str, str]) -> Html:
    """What is drawn -> its style class."""
    items = [
        tag("li", tag("span", "", class_=f"swatch {style}"), name) for name, style in names.items()
    ]
    return tag("ul", *items, class_="legend")


def _path(x: Sequence[float], y: Sequence[float], axes: Axes) -> str:
    return "M" + "L".join(f"{axes.across(a)},{axes.up(b)}" for a, b in zip(x, y, strict=True))


def _drawn(line: Line, axes: Axes) -> list[Html]:
    if not line.x:
        return []
    parts = []
    if any(line.spread):
        high = [y + s for y, s in zip(line.y, line.spread, strict=True)]
        low = [y - s for y, s in zip(line.y, line.spread, strict=True)]
        edge = _path([*line.x, *reversed(line.x)], [*high, *reversed(low)], axes)
        parts.append(tag("path", d=edge + "Z", class_=f"band {line.style}"))
    path = tag("path", tag("title", line.name), d=_path(line.x, line.y, axes))
    parts.append(tag("g", path, class_=f"line {line.style}"))
    if line.dots:
        places = zip(line.x, line.y, strict=True)
        dots = [
            tag(
                "circle",
                tag("title", f"{line.name}: {number(y)} at {number(x, 0)}"),
                cx=axes.across(x),
                cy=axes.up(y),
                r=3,
            )
            for x, y in places
        ]
        parts.append(tag("g", *dots, class_=f"dots {line.style}"))
    return parts


def _grid(axes: Axes) -> list[Html]:
    bottom, right = axes.height - BOTTOM, axes.width - RIGHT
    parts = []
    for value in ticks(*axes.y, about=3):
        y = axes.up(value)
        parts.append(tag("path", d=f"M{LEFT},{y}H{right}", class_="grid"))
        label = tag("text", _short(value), x=LEFT - 6, y=y + 3.5, text_anchor="end")
        parts.append(label)
    across = axes.x_ticks or ticks(*axes.x, about=3)
    for value in across:
        x = axes.across(value)
        parts.append(tag("path", d=f"M{x},{bottom}v4", class_="grid"))
        anchor = "end" if x > right - 12 else "middle"
        parts.append(tag("text", _short(value), x=x, y=bottom + 15, text_anchor=anchor))
    if axes.x_label:
        middle = (LEFT + right) / 2
        words = tag("text", axes.x_label, x=middle, y=axes.height - 4, text_anchor="middle")
        parts.append(words)
    return [join(parts)]


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}".replace("-", MINUS)
