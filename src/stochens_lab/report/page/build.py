"""One HTML page from one or several run folders."""

from collections.abc import Sequence

from stochens.report.parts import Definitions, Note, Section
from stochens.report.shell import dress, open_templates, read_asset
from stochens.report.text import join_words
from stochens_lab.report.cifar.page import show_cifar_run, show_cifar_runs, summarise_cifar
from stochens_lab.report.cifar.rows import is_cifar
from stochens_lab.report.page.details import (
    READING,
    show_calibration,
    show_facts,
    show_sampler,
    show_steps,
    show_timings,
    show_training,
)
from stochens_lab.report.page.maps import pack_maps, show_maps
from stochens_lab.report.page.parts import Part
from stochens_lab.report.page.results import show_claims, show_results, show_runs, summarise
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.view import RunView, unique

HERE = "stochens_lab.report.page"
NAMES = {"cifar": "CIFAR", "imdb": "IMDB"}
TEMPLATES = open_templates(HERE)


def build_page(runs: Sequence[SavedRun]) -> str:
    """The page of these runs, as text."""
    views = [RunView(run, f"run{i}") for i, run in enumerate(runs)]
    packed = {view.key: pack_maps(view) for view in views}
    return TEMPLATES.get_template("page.html").render(
        title=_choose_title(views),
        **dress(styles=[read_asset(HERE, "runs.css")], scripts=[read_asset(HERE, "page.js")]),
        data={key: maps for key, maps in packed.items() if maps is not None},
        together=_show_together(views) if len(views) > 1 else [],
        runs=[(view.key, view.run.name, _open_run(view), _list_sections(view)) for view in views],
    )


def _choose_title(views: Sequence[RunView]) -> str:
    if not views:
        return "No run"
    experiments = join_words(NAMES.get(name, name) for name in unique(v.experiment for v in views))
    if len(views) > 1:
        return f"{len(views)} runs: {experiments}"
    reference = views[0].reference
    closing = f": how close to {reference}?" if reference else ""
    return f"{experiments[:1].upper()}{experiments[1:]} experiment{closing}"


def _show_together(views: Sequence[RunView]) -> list[Part]:
    """The tables of all runs."""
    images = [view for view in views if is_cifar(view)]
    others = [view for view in views if not is_cifar(view)]
    parts = show_cifar_runs(images) if images else []
    return [*parts, *(show_runs(others) if others else [])]


def _open_run(view: RunView) -> list[Part]:
    """What stands above the sections of a run: whether it is whole, who is closest, what it is."""
    said = summarise_cifar(view) if is_cifar(view) else summarise(view)
    lead = [] if said is None else [Note(said, "lead")]
    state = [] if view.complete else [Note(_tell_state(view), "stopped")]
    return [*state, *lead, *show_facts(view)]


def _list_sections(view: RunView) -> list[Section]:
    sections = show_cifar_run(view) if is_cifar(view) else _show_run(view)
    return [
        Section(s.title, s.parts, view.id(s.title.split()[0].lower())) for s in sections if s.parts
    ]


def _show_run(view: RunView) -> list[Section]:
    return [
        Section("Results", show_results(view)),
        Section("Claims", show_claims(view)),
        Section("Maps", show_maps(view)),
        Section("Training", show_training(view)),
        Section("Over steps", show_steps(view)),
        Section("Calibration", show_calibration(view)),
        Section("Sampler", show_sampler(view)),
        Section("Time", show_timings(view)),
        Section("How to read this", [Definitions(READING, "reading")]),
    ]


def _tell_state(view: RunView) -> str:
    words = "This run is not complete: it was stopped, or was still running when this was written. "
    planned = view.config.get("sets")
    begun = [name for name in view.sets if view.run.metrics.get(name)]
    if isinstance(planned, list) and planned:
        words += (
            f"It has results of {len(begun)} of its {len(planned)} sets, the last perhaps in part."
        )
    elif not begun:
        words += "It has no results yet."
    return words
