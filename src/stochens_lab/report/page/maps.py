"""Maps of the plane: thousandths, packed once for the script to unpack, and the places to draw."""

import base64
import zlib
from typing import Any

import numpy as np

from stochens_lab.report.page.html import Html, join, tag
from stochens_lab.report.page.run import View, domain_name, unique

KINDS = ("mean", "entropy", "mi")
MAP = "map-"  # how the name of a grid of points begins
UNIT = 1000  # values are kept to a thousandth, which is what is shown of them
MOST_POINTS = 400  # training points drawn: more of them only hide the map


def map_data(view: View) -> dict[str, Any] | None:
    """What the script needs: where each map lies in the packed values."""
    packed: list[np.ndarray] = []
    at = 0
    sets = []
    for set_name in view.sets:
        domains = []
        for place in unique(p for s, _, p in view.predictions if s == set_name):
            grid = _grid(view, set_name, place)
            if grid is None:
                continue
            planes = _planes(view, set_name, place, len(grid))
            if not planes:
                continue
            domain = place.removeprefix(MAP)
            side = round(len(grid) ** 0.5)
            domains.append(
                {
                    "name": domain,
                    "label": domain_name(domain),
                    "side": side,
                    "low": [float(v) for v in grid.min(0)],
                    "high": [float(v) for v in grid.max(0)],
                    "at": at,
                    "methods": list(planes),
                }
            )
            for values in planes.values():
                packed.append(values)
                at += values.size
        if domains:
            sets.append({"name": set_name, "domains": domains, "train": _train(view, set_name)})
    if not sets:
        return None
    raw = np.concatenate([values.ravel() for values in packed]).astype("<u2").tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return {"reference": view.reference, "unit": UNIT, "sets": sets, "values": text}


def _grid(view: View, set_name: str, place: str) -> np.ndarray | None:
    """The points of a map, if they are a square grid in the plane."""
    points = view.points(set_name, place) if place.startswith(MAP) else None
    if points is None or points.ndim != 2 or points.shape[1] != 2:
        return None
    side = round(len(points) ** 0.5)
    return points if side > 1 and side * side == len(points) else None


def _planes(view: View, set_name: str, place: str, size: int) -> dict[str, np.ndarray]:
    """Method -> [3, size], the reference first."""
    found = {}
    for (s, method, p), kinds in view.predictions.items():
        if (s, p) != (set_name, place) or any(kind not in kinds for kind in KINDS):
            continue
        values = np.stack([_one_class(kinds["mean"]), kinds["entropy"], kinds["mi"]])
        if values.shape == (3, size):
            found[method] = np.rint(np.clip(np.nan_to_num(values), 0, 65) * UNIT)
    first = [name for name in found if name == view.reference]
    return {name: found[name] for name in unique([*first, *found])}


def _one_class(mean: np.ndarray) -> np.ndarray:
    """Of two classes the probability of class 1, of more that of the likeliest."""
    found: np.ndarray = mean[:, 1] if mean.shape[1] == 2 else mean.max(1)
    return found


def _train(view: View, set_name: str) -> list[list[float]]:
    x, labels = view.points(set_name, "train"), view.points(set_name, "labels")
    if x is None or labels is None or x.ndim != 2 or x.shape[1] != 2 or len(x) != len(labels):
        return []
    pairs = list(zip(x.tolist(), labels.tolist(), strict=True))[:MOST_POINTS]
    return [[round(a, 3), round(b, 3), int(label)] for (a, b), label in pairs]


def maps(view: View) -> Html:
    note = (
        "Each method's map, and beside it what it has more (orange) or less (blue) than the "
        "reference. Dots are training points, open and filled by class; the square on the wider "
        "map is the narrower one."
    )
    choices = [("entropy", "entropy"), ("mi", "mutual information")]
    controls = [_radios(view, "maps", "quantity", choices), *_where(view, "maps")]
    bars = [
        tag("figure", tag("canvas", "", class_="bar", aria_hidden="true"), tag("figcaption", ""))
        for _ in ("value", "difference")
    ]
    return join(
        [
            tag("p", note, class_="note"),
            tag(
                "div",
                tag("div", *controls, class_="controls"),
                tag("div", *bars, class_="bars"),
                tag("div", "", class_="cards"),
                class_="maps needs-script",
                data_run=view.key,
            ),
            _without_script(),
        ]
    )


def plane(view: View) -> Html:
    note = (
        "Point at the plane, tap it, or focus it and use the arrow keys (with Shift, five steps at "
        "a time): the table tells what every method says there."
    )
    choices = [("entropy", "entropy"), ("mi", "mutual information"), ("mean", "class 1")]
    controls = [
        *_where(view, "plane"),
        _radios(view, "plane", "quantity", choices),
        tag(
            "label",
            "Map of ",
            tag("select", class_="method", id=view.id("plane", "method")),
            class_="pick",
        ),
    ]
    heads = ("method", "p(class 1)", "entropy", "MI")
    numbers = tag(
        "table",
        tag("caption", "What every method says there"),
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody"),
        class_="there",
    )
    canvas = tag("canvas", "", tabindex=0, role="application", aria_label="The plane")
    return join(
        [
            tag("p", note, class_="note"),
            tag(
                "div",
                tag("div", *controls, class_="controls"),
                tag(
                    "div",
                    tag("div", canvas, tag("p", "", class_="axis"), class_="stage"),
                    tag(
                        "div",
                        tag("p", "", class_="spot", aria_live="polite"),
                        numbers,
                        class_="readout",
                    ),
                    class_="split",
                ),
                class_="plane needs-script",
                data_run=view.key,
            ),
            _without_script(),
        ]
    )


def _where(view: View, part: str) -> list[Html]:
    """Switches for set and domain; the script fills them from the maps that are there."""
    return [_radios(view, part, "set", []), _radios(view, part, "domain", [])]


def _radios(view: View, part: str, what: str, choices: list[tuple[str, str]]) -> Html:
    name = view.id(part, what)
    options = [
        tag(
            "label",
            tag("input", type="radio", name=name, value=value, checked=i == 0),
            tag("span", label),
        )
        for i, (value, label) in enumerate(choices)
    ]
    return tag(
        "fieldset", tag("legend", what), *options, class_="switch", data_what=what, data_name=name
    )


def _without_script() -> Html:
    return tag("noscript", tag("p", "The maps need JavaScript.", class_="note"))
