"""What a run's page has beside the parts of every page, which are in stochens/report/parts.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from stochens.report.parts import Definitions, Heading, Note, Picture, SideBySide
from stochens.report.tables import Table


@dataclass(frozen=True)
class Troubles:
    """What the sampler warns of, for one set."""

    template: ClassVar[str] = "troubles.html"
    set_name: str
    troubles: Sequence[str]


@dataclass(frozen=True)
class Map:
    """One of the figures to switch between."""

    set_name: str
    domain: str
    quantity: str
    picture: Picture


@dataclass(frozen=True)
class Maps:
    """Figures of the plane, switches between them, and a table that says what is at a point."""

    template: ClassVar[str] = "maps.html"
    key: str
    switches: Sequence[tuple[str, Sequence[tuple[str, str]]]]  # what -> value and label of each
    maps: Sequence[Map]


Part = Note | Heading | Picture | Definitions | Troubles | SideBySide | Maps | Table


def embolden(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)
