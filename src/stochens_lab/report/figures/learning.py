"""How accuracy grows with labels, by who asks for them."""

from matplotlib.figure import Figure

from stochens.figures.style import (
    add_legend,
    label_below,
    label_left,
    make_panels,
    pick_colour,
    plot_line,
    style_figure,
)
from stochens_lab.report.run_folder import SavedRun

LABELS = " labels"


@style_figure
def draw_learning(run: SavedRun) -> Figure | None:
    """A line for each strategy with its interval, where a run has numbers at so many labels."""
    if run.about.get("experiment") != "active" or not run.metrics:
        return None
    rows = next(iter(run.metrics.values()))
    figure, (ax,) = make_panels(1, most=1, width=5.2, height=3.0, titles=0, legend=len(rows))
    for k, (name, places) in enumerate(rows.items()):
        counts = [float(place.removesuffix(LABELS)) for place in places]
        found = [place["accuracy"] for place in places.values()]
        plot_line(
            ax,
            name,
            counts,
            [100 * one["value"] for one in found],
            spread=[100 * (one["high"] - one["value"]) for one in found],
            color=pick_colour(k),
            marker="o",
        )
    label_below(figure, "labels")
    label_left(figure, "test accuracy, %")
    add_legend(figure, [ax])
    return figure
