"""What a page is made of, as plain data: each part names the template that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from stochens_lab.report.tables import Table


@dataclass(frozen=True)
class Note:
    """A paragraph; `style` is a class of the style sheet."""

    template: ClassVar[str] = "note.html"
    text: str | Markup
    style: str = "note"


@dataclass(frozen=True)
class Heading:
    template: ClassVar[str] = "heading.html"
    text: str
    level: int = 4


@dataclass(frozen=True)
class Picture:
    template: ClassVar[str] = "picture.html"
    svg: Markup
    label: str


@dataclass(frozen=True)
class Definitions:
    """Terms and what they mean or are; `summary` folds them away."""

    template: ClassVar[str] = "definitions.html"
    items: Sequence[tuple[str, str | Markup]]
    style: str
    summary: str = ""


@dataclass(frozen=True)
class Troubles:
    """What the sampler warns of, for one set."""

    template: ClassVar[str] = "troubles.html"
    set_name: str
    troubles: Sequence[str]


@dataclass(frozen=True)
class SideBySide:
    """Parts side by side, where there is room."""

    template: ClassVar[str] = "side_by_side.html"
    columns: Sequence[Sequence["Part"]]


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


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]
    id: str = ""


def embolden(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)
