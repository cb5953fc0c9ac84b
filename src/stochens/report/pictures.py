"""Figures as parts of a page."""

from matplotlib.figure import Figure

from stochens.figures.style import embed_figure
from stochens.report.parts import Picture


def show_figure(figure: Figure | None, *, key: str, label: str) -> list[Picture]:
    """The figure as a part of the page; nothing where there is none."""
    if figure is None:
        return []
    return [Picture(embed_figure(figure, key=key, label=label), label)]
