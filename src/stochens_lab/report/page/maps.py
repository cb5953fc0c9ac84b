"""Maps of the plane on the page: the figures, and what every method says at each of their points.

The values are kept to a thousandth, packed once, for the script to unpack and look up.
"""

import base64
import zlib
from typing import Any

import numpy as np

from stochens.report.parts import Note
from stochens.report.pictures import show_figure
from stochens_lab.report.figures.planes import KINDS, QUANTITIES, Plane, draw_maps, find_planes
from stochens_lab.report.page.parts import Map, Maps, Part
from stochens_lab.report.view import RunView, name_domain, unique

UNIT = 1000
NOTE = (
    "Each method's map, and to its right where it has more (red) or less (blue) than the "
    "reference. The square on the wider map is the narrower one. Point at a map, tap it, or focus "
    "it and use the arrow keys (with Shift, five steps at a time): the table says what every "
    "method predicts at that point."
)


def show_maps(view: RunView) -> list[Part]:
    planes = find_planes(view)
    if not planes:
        return []
    maps = []
    for i, plane in enumerate(planes):
        for quantity, name in QUANTITIES.items():
            label = f"{plane.title}: {name} of every method, and its difference to the reference"
            figure = draw_maps(view, plane, quantity)
            (picture,) = show_figure(figure, key=view.id("map", i, quantity), label=label)
            maps.append(Map(plane.set_name, plane.domain, quantity, picture))
    sets = [(name, name) for name in unique(plane.set_name for plane in planes)]
    domains = [(d, name_domain(d)) for d in unique(plane.domain for plane in planes)]
    switches = [("quantity", list(QUANTITIES.items())), ("set", sets), ("domain", domains)]
    return [Note(NOTE), Maps(view.key, switches, maps)]


def pack_maps(view: RunView) -> dict[str, Any] | None:
    """For the script: where each method's values lie among all of them."""
    planes = find_planes(view)
    if not planes:
        return None
    packed = [_pack(plane) for plane in planes]
    starts = np.cumsum([0, *(values.size for values in packed)]).tolist()
    raw = np.concatenate([values.ravel() for values in packed]).astype("<u2").tobytes()
    return {
        "reference": view.reference,
        "unit": UNIT,
        "planes": [
            {
                "set": plane.set_name,
                "domain": plane.domain,
                "side": plane.side,
                "low": plane.low,
                "high": plane.high,
                "methods": list(plane.methods),
                "at": start,
            }
            for plane, start in zip(planes, starts, strict=False)
        ],
        "values": base64.b64encode(zlib.compress(raw, 9)).decode(),
    }


def _pack(plane: Plane) -> np.ndarray:
    """[methods, kinds, side, side] in thousandths."""
    values = np.stack([[maps[kind] for kind in KINDS] for maps in plane.methods.values()])
    packed: np.ndarray = np.rint(np.clip(values, 0, 65) * UNIT)
    return packed
