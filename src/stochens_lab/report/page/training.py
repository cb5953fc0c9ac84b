"""Training: the loss over steps, its terms, the distance over steps, calibration."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from stochens.errors import InputError
from stochens.metrics import calibration_curve
from stochens_lab.report.charts import COLOURS, Axes, Line, chart, legend, shape
from stochens_lab.report.page.html import Html, join, number, table, tag
from stochens_lab.report.page.run import View, domain_name, metric, unique

SETTLED = 0.15  # the share of training after which the loss is worth its place on the axis
CURVE_METRIC = "variance"  # what "curve" in training.json holds
KL_NAMES = {"l2": "L2"}


def training(view: View) -> Html | None:
    parts = [_set(view, name) for name in view.sets if view.run.training.get(name)]
    if not parts:
        return None
    note = (
        "The training KL loss: the expected negative log-likelihood of all the data, the L2 and "
        "stochasticity terms and those of a finite sigma. The constant of machine precision is "
        "left out, so a method with a finite sigma lies higher. Each panel is one method, the line "
        "its mean over members, the band their spread (one standard deviation); the other methods "
        "are grey behind it. The first steps reach above the panels. In the tables, “fluctuation” "
        "is how much a member's loss moves from step to step at the end of training."
    )
    return join([tag("p", note, class_="note"), *parts])


def _set(view: View, set_name: str) -> Html:
    rows = view.run.training[set_name]
    return join(
        [tag("h4", f"Set {set_name}"), _courses(view, set_name, rows), _terms(set_name, rows)]
    )


def _courses(view: View, set_name: str, rows: dict[str, dict[str, Any]]) -> Html | None:
    lines = {
        method: Line(method, course["step"], course["loss"], course.get("sd", ()), dots=False)
        for method, row in rows.items()
        if (course := _known(row.get("course") or {})) and course["step"]
    }
    if not lines:
        return None
    settled = [
        y + sign * s
        for line in lines.values()
        for x, y, s in zip(line.x, line.y, line.spread or [0] * len(line.y), strict=True)
        if x >= SETTLED * line.x[-1]
        for sign in (-1, 1)
    ]
    low, high = min(settled), float(np.quantile(settled, 0.97))
    margin = 0.05 * (high - low)
    longest = max(line.x[-1] for line in lines.values())
    axes = Axes(x=(0, longest), y=(low - margin, high + margin), width=215, height=150)
    behind = view.id("loss", view.sets.index(set_name))
    panels = [
        tag(
            "figure",
            tag("figcaption", method),
            chart(
                [line],
                axes,
                title=f"Set {set_name}, {method}: KL loss over training steps",
                behind=behind,
            ),
        )
        for method, line in lines.items()
    ]
    return join(
        [shape(list(lines.values()), axes, name=behind), tag("div", *panels, class_="panels")]
    )


def _known(course: dict[str, Any]) -> dict[str, list[float]]:
    """Without the steps at which a loss was infinite."""
    names = [name for name in ("step", "loss", "sd") if course.get(name)]
    points = zip(*(course[name] for name in names), strict=True)
    known = [point for point in points if None not in point]
    return {name: [point[k] for point in known] for k, name in enumerate(names)}


def _terms(set_name: str, rows: dict[str, dict[str, Any]]) -> Html:
    terms = unique(term for row in rows.values() for term in row.get("kl") or {})
    heads = ["method", "steps", "loss", "fluctuation", *(KL_NAMES.get(t, t) for t in terms)]
    body = []
    for method, row in rows.items():
        kl = row.get("kl") or {}
        values = [row.get("steps"), row.get("loss"), row.get("loss_sd"), *map(kl.get, terms)]
        if all(value is None for value in values):
            continue
        cells = [tag("td", number(value, 1)) for value in values]
        body.append(tag("tr", tag("th", method, scope="row", class_="name"), *cells))
    head = tag("thead", tag("tr", *(tag("th", word, scope="col") for word in heads)))
    caption = f"Set {set_name}: loss, fluctuation and KL terms, in nats"
    return table(head, tag("tbody", *body), caption=caption)


def curves(view: View) -> Html | None:
    """Distance to the reference over training steps, with the distance of a method's two sets."""
    parts = []
    names: dict[str, str] = {}
    for set_name in view.sets:
        panels = [*_distances(view, set_name, names), *_apart(view, set_name, names)]
        if panels:
            parts += [tag("h4", f"Set {set_name}"), tag("div", *panels, class_="panels wide")]
    if not parts:
        return None
    note = (
        "Shorter trainings of the same method, each run to the end of its own schedule; the "
        "right-most point is the method of the table. The set distance says how far apart a "
        "method's two parameter sets are: at 0 a member is a plain network."
    )
    return join([tag("p", note, class_="note"), legend(names), *parts])


def _style(names: dict[str, str], method: str) -> str:
    """One colour for each method, on all of the charts."""
    return names.setdefault(method, f"c{len(names) % COLOURS}")


def _distances(view: View, set_name: str, names: dict[str, str]) -> Iterable[Html]:
    rows = {m: r["curve"] for m, r in view.run.training.get(set_name, {}).items() if "curve" in r}
    shown = metric(CURVE_METRIC)
    for domain in unique(domain for curve in rows.values() for domain in curve):
        lines = []
        for method, curve in rows.items():
            if domain not in curve:
                continue
            found = curve[domain]
            x, y, s = list(found["step"]), list(found["mean"]), list(found["sd"])
            last = view.interval(set_name, method, domain, CURVE_METRIC)
            steps = view.training_of(set_name, method).get("steps")
            if last is not None and isinstance(steps, int) and steps > max(x, default=0):
                x, y, s = [*x, steps], [*y, last.value], [*s, 0.0]
            scaled = [shown.scale * v for v in y], [shown.scale * v for v in s]
            lines.append(Line(method, x, *scaled, style=_style(names, method), dots=True))
        title = f"{shown.label} {domain_name(domain)}, {shown.unit}"
        yield _panel(lines, f"Set {set_name}", title)


def _apart(view: View, set_name: str, names: dict[str, str]) -> Iterable[Html]:
    for method, row in view.run.training.get(set_name, {}).items():
        if "set distance" in row:
            found = row["set distance"]
            style = _style(names, method)
            line = Line(method, found["step"], found["mean"], found["sd"], style, dots=True)
            yield _panel([line], f"Set {set_name}", f"set distance of {method}")


def _panel(lines: list[Line], where: str, title: str) -> Html:
    steps = sorted({x for line in lines for x in line.x})
    tops = [
        y + s
        for line in lines
        for y, s in zip(line.y, line.spread or [0] * len(line.y), strict=True)
    ]
    axes = Axes(
        x=(min(steps, default=1) * 0.85, max(steps, default=2) * 1.15),
        y=(0, 1.08 * max(tops, default=1) or 1),
        width=330,
        height=210,
        log_x=True,
        x_ticks=_spaced(steps),
        x_label="training steps, log scale",
    )
    return tag("figure", tag("figcaption", title), chart(lines, axes, title=f"{where}: {title}"))


def _spaced(steps: list[float]) -> list[float]:
    """Those that can have a label without running into the one before."""
    kept: list[float] = []
    for step in steps:
        if not kept or step >= 1.6 * kept[-1]:
            kept.append(step)
    return kept


def calibration(view: View) -> Html | None:
    """Accuracy over confidence, where the labels of the test points were kept."""
    panels: list[Html] = []
    names: dict[str, str] = {}
    for set_name in view.sets:
        for place in unique(p for s, _, p in view.predictions if s == set_name):
            y = view.points(set_name, f"labels-{place}")
            if y is None:
                continue
            lines = [Line("perfect", [0, 100], [0, 100], style="ideal")]
            for (s, method, p), kinds in view.predictions.items():
                if (s, p) == (set_name, place) and len(kinds.get("mean", ())) == len(y):
                    style = _style(names, method)
                    lines.append(_calibrated(method, kinds["mean"], y, style))
            axes = Axes(x=(0, 100), y=(0, 100), width=330, height=280, x_label="confidence, %")
            title = f"Set {set_name}, {domain_name(place)}: accuracy, %"
            panels.append(tag("figure", tag("figcaption", title), chart(lines, axes, title=title)))
    if not panels:
        return None
    return join([legend(names), tag("div", *panels, class_="panels wide")])


def _calibrated(method: str, mean: np.ndarray, y: np.ndarray, style: str) -> Line:
    try:
        curve = calibration_curve(torch.from_numpy(mean), torch.from_numpy(y), bins=10)
    except InputError:  # labels and classes that do not go together are no reason for no page
        return Line(method, [], [], style=style)
    x, share = (100 * curve.confidence).tolist(), (100 * curve.accuracy).tolist()
    return Line(method, x, share, style=style, dots=True)
