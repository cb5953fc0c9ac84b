"""Files of figures: all that a run, or several, have the numbers for."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from stochens.figures.style import save_figure
from stochens_lab.report.cifar.rows import is_cifar
from stochens_lab.report.figures.cifar import draw_cifar_figures
from stochens_lab.report.figures.costs import draw_costs
from stochens_lab.report.figures.courses import draw_steps, draw_uncertainty
from stochens_lab.report.figures.learning import draw_learning
from stochens_lab.report.figures.planes import draw_plane_figures
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.view import RunView

HERE, THERE = "test", "photographs"


def save_figures(runs: Sequence[SavedRun], folder: Path) -> None:
    """Every figure that the runs have the numbers for, as PNG and SVG. Runs of CIFAR share theirs;
    others have a folder each, where there are several."""
    views = [RunView(run, "") for run in runs]
    _save(draw_cifar_figures([view.run for view in views if is_cifar(view)]), folder)
    for view in views:
        if not is_cifar(view):
            _save(_draw_figures(view), folder / view.run.name if len(runs) > 1 else folder)


def _save(figures: Iterable[tuple[str, Figure]], folder: Path) -> None:
    for given, figure in figures:
        name = re.sub(r"[^\w.,+ -]+", "-", given)  # it has that of a set, from anybody's file
        for suffix in (".png", ".svg"):
            save_figure(figure, folder / (name + suffix))


def _draw_figures(view: RunView) -> Iterator[tuple[str, Figure]]:
    yield from draw_plane_figures(view)
    if (learning := draw_learning(view.run)) is not None:
        yield "learning", learning
    steps = draw_steps(view)
    if steps is not None:
        yield "steps", steps
    for set_name, rows in view.run.metrics.items():
        costs = draw_costs(view, set_name)
        if costs is not None:
            yield f"costs-{set_name}", costs
        labels = view.points(set_name, f"labels-{HERE}")
        methods = [m for m in rows if (set_name, m, THERE) in view.predictions]
        if methods and labels is not None:
            known, unknown = (
                {m: view.run.predictive((set_name, m, place)) for m in methods}
                for place in (HERE, THERE)
            )
            y = torch.from_numpy(labels)
            figure = draw_uncertainty(known, unknown, y, here=HERE, there=THERE)
            yield f"uncertainty-{set_name}", figure
