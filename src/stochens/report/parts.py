"""What a page is made of, as plain data: each part names the template that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from markupsafe import Markup


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
class SideBySide:
    """Parts side by side, where there is room."""

    template: ClassVar[str] = "side_by_side.html"
    columns: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Any]
    id: str = ""
