"""Files of figures: all that a run, or several, have the numbers for."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from stochens_lab.report.cifar.figures import cifar_figures
from stochens_lab.report.cifar.rows import is_cifar
from stochens_lab.report.figures import save_figure, uncertainty_figure
from stochens_lab.report.maps import map_figures
from stochens_lab.report.page.run import View
from stochens_lab.report.run_folder import FIGURES, Run


def save(run: Run, folder: Path | None = None) -> None:
    """Every figure that the run has the numbers for, as PNG and SVG; in the run's own folder if
    none is given."""
    of_images = cifar_figures([run]) if is_cifar(View(run, "")) else _image_figures(run)
    _save((*map_figures(run), *of_images), run.path / FIGURES if folder is None else folder)


def save_all(runs: Sequence[Run], images: Sequence[Run], folder: Path) -> None:
    """Of several runs; those of `images` share theirs, others have a folder each."""
    if images:
        _save(cifar_figures(images), folder)
    for run in runs:
        if run not in images:
            save(run, folder / run.name if len(runs) > 1 else folder)


def _save(figures: Iterable[tuple[str, Figure]], folder: Path) -> None:
    for name, figure in figures:
        for suffix in (".png", ".svg"):
            save_figure(figure, folder / (name + suffix))


def _image_figures(run: Run) -> Iterator[tuple[str, Figure]]:
    """Of images: what is unsure of inputs that are none of them, calibration, risk."""
    for set_name, rows in run.metrics.items():
        here, there, labels = "test", "photographs", f"{set_name}/points/labels-test"
        methods = [m for m in rows if f"{set_name}/{m}/{there}/mi" in run.arrays]
        if methods and labels in run.arrays:
            known, unknown = (
                {m: run.predictive((set_name, m, place)) for m in methods}
                for place in (here, there)
            )
            y = torch.from_numpy(run.arrays[labels])
            yield (
                f"uncertainty-{set_name}",
                uncertainty_figure(known, unknown, y, here=here, there=there),
            )
