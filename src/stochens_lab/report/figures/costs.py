"""What rows reach against what they take: NLL and accuracy over seconds of training."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from stochens.figures.style import (
    add_legend,
    label_below,
    make_panels,
    pick_colour,
    style_figure,
)
from stochens_lab.report.view import COST, RunView, describe_metric

SHOWN = ("NLL", "accuracy")
HERE, TIME = "test", "training"


@style_figure
def draw_costs(view: RunView, set_name: str) -> Figure | None:
    """A panel for each metric, a point with its 95 % interval for each row; None without times."""
    times = {
        method: time.value
        for method in view.methods(set_name)
        if (time := view.interval(set_name, method, COST, TIME)) is not None
    }
    shown = [name for name in SHOWN if HERE in view.columns(set_name).get(name, [])]
    if not times or not shown:
        return None
    figure, axes = make_panels(
        len(shown), most=2, width=4.6, height=3.0, legend=len(times), share=False
    )
    for name, ax in zip(shown, axes, strict=True):
        metric = describe_metric(name)
        ax.set_title(f"{metric.label}, {metric.unit}" if metric.unit else metric.label)
        for index, (method, seconds) in enumerate(times.items()):
            found = view.interval(set_name, method, HERE, name)
            if found is not None:
                value, low, high = (metric.scale * v for v in found)
                ends = [[value - low], [high - value]]
                colour = pick_colour(index)
                ax.errorbar([seconds], [value], yerr=ends, fmt="o", color=colour, label=method)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        ax.minorticks_off()
        ax.margins(0.1)
    label_below(figure, "seconds of training")
    add_legend(figure, axes)
    return figure
