"""Figures as parts of the page. A file of its own: matplotlib is slow to import."""

from matplotlib.figure import Figure

from stochens_lab.report.figures.style import embed_figure
from stochens_lab.report.page.parts import Part, Picture


def show_figure(figure: Figure | None, *, key: str, label: str) -> list[Part]:
    """The figure as a part of the page; nothing where there is none."""
    if figure is None:
        return []
    return [Picture(embed_figure(figure, key=key, label=label), label)]
