"""The examples that are worth a look: the most uncertain, and the most confidently wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from stochens.figures.style import COLOURS
from stochens.figures.views import Ranking, name_of
from stochens.report.content import Content
from stochens.report.images import IGNORED, Image, Shown, show_input, show_map
from stochens.report.parts import Heading, Note
from stochens.report.tables import Cell, Head, Row, Table

SHOWN = 8  # of each ranking


@dataclass(frozen=True)
class Card:
    """An example: its pictures or its text, and what is said of it."""

    number: int  # its row in the data
    caption: str
    images: Sequence[Image]
    text: str = ""


@dataclass(frozen=True)
class Cards:
    template: ClassVar[str] = "cards.html"
    cards: Sequence[Card]

    @property
    def wide(self) -> bool:
        return any(len(card.images) > 1 for card in self.cards)


def show_examples(content: Content) -> list[object]:
    """A few of each ranking, by their rows in the data, counted from 0."""
    parts: list[object] = _legend(content)
    for ranking in content.p.views.rankings(content.y):
        rows = _highest(ranking)
        parts.append(Heading(ranking.title, 3))
        if rows:
            parts += [Note(ranking.reading), _show(content, rows)]
        else:
            parts.append(Note("There is none."))
    return parts


def _legend(content: Content) -> list[object]:
    """Which colour is which class, where classes have maps and there are enough colours."""
    views = content.p.views
    if not views.maps(0, content.y) or views.width() > len(COLOURS):
        return []
    swatch = Markup('<span class="swatch" style="background:{}"></span>{}')
    each = [
        swatch.format(colour, name_of(k, content.names))
        for k, colour in zip(range(views.width()), COLOURS, strict=False)
    ]
    none = swatch.format(IGNORED, "no label")
    return [Note(Markup("Colours of the maps:") + Markup("").join([*each, none]))]


def _highest(ranking: Ranking) -> list[int]:
    score = ranking.score.double().cpu()
    order = score.argsort(descending=True, stable=True)
    return [int(k) for k in order[:SHOWN] if score[k] > 0]


def _show(content: Content, rows: list[int]) -> Cards | Table:
    views = content.p.views
    shown = [show_input(x, content.features, content.show) for x in content.pick(rows)]
    said = [views.say(row, content.y, content.names) for row in rows]
    maps = [[show_map(one) for one in views.maps(row, content.y)] for row in rows]
    if all(one.cells for one in shown) and not any(maps):
        return _rows(rows, said, shown)
    return Cards(
        [
            Card(row, words, _pictures(one, more), one.text)
            for row, words, one, more in zip(rows, said, shown, maps, strict=True)
        ]
    )


def _pictures(shown: Shown, maps: list[Image]) -> list[Image]:
    return maps if shown.image is None else [shown.image, *maps]


def _rows(rows: list[int], said: list[str], shown: list[Shown]) -> Table:
    names = list(dict.fromkeys(name for one in shown for name in one.cells))
    found = [
        Row(str(row), [Cell(words, mark="words"), *(Cell(one.cells.get(n, "")) for n in names)])
        for row, words, one in zip(rows, said, shown, strict=True)
    ]
    heads = [*map(Head, ("example", "prediction", *names))]
    return Table("examples", heads, found, style="results examples")
