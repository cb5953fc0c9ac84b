"""The parts of the page that CIFAR runs have: those of one run, and those of several together."""

from collections.abc import Callable, Sequence

from markupsafe import Markup
from matplotlib.figure import Figure

from stochens.report.parts import Definitions, Heading, Note, Section, SideBySide
from stochens.report.pictures import show_figure
from stochens_lab.report.cifar.claims import build_claims
from stochens_lab.report.cifar.numbers import CURVES
from stochens_lab.report.cifar.rows import Rows, gather, name_set
from stochens_lab.report.cifar.tables import (
    build_corrupted_table,
    build_further_table,
    build_heat_table,
    build_test_table,
    explain_corrupted_table,
    explain_test_table,
    summarise,
)
from stochens_lab.report.cifar.trade import NOTE as TRADE
from stochens_lab.report.cifar.trade import build_trade_table
from stochens_lab.report.figures.cifar import (
    draw_boxes,
    draw_calibration,
    draw_curves,
    draw_entropies,
    draw_trades,
)
from stochens_lab.report.page.details import KL_LOSS, show_sampler, show_timings, show_training
from stochens_lab.report.page.parts import Part
from stochens_lab.report.view import RunView

READING = (
    ("Agreement", "share of test images where a method and HMC choose the same class."),
    (
        "Variance",
        "mean total-variation distance between a method's mean prediction and HMC's; 0 is the same "
        "prediction everywhere.",
    ),
    (
        "ECE",
        "mean distance between confidence and accuracy, in 20 bins of equally many images. Images "
        "drawn more than once raise it, so its interval is that of the resamples less how much "
        "higher they lie on average.",
    ),
    (
        "OOD AUROC",
        "how often an image of the set that was learnt has a higher largest probability than one "
        "of the other set; 50 % is chance.",
    ),
    (
        "Rows",
        "regular is a deep ensemble, MultiSWA one of averaged weights, SE1 one with dropout, SE2 "
        "with DropConnect, SE3 with non-parametric dropout, cSGHMC a sampler with noisy gradients "
        "and cyclical steps, langevin draws that are each carried from the prior; the number is "
        "the drop rate.",
    ),
    (
        "Corrupted sets",
        "the test images under 16 corruptions at 5 intensities each, as in CIFAR-10-C.",
    ),
    KL_LOSS,
)
ENTROPY = (
    "The predictive entropy of the test images: the line is the method, the grey shape HMC. The "
    "distance is how far images would have to move, on average, to make one of the other. The "
    "first bin can reach above the panel."
)
CALIBRATION = (
    "Accuracy minus confidence in ten bins of confidence, in per cent: above 0 a method is less "
    "sure than it could be, below 0 it is too sure. HMC has the colour of the text."
)
MEMBERS = (
    "Smaller ensembles out of the same members, the mean over all that share none; and more "
    "inferences of each member. Dotted: HMC's own value, and for agreement and variance what the "
    "paper reports of SE1 with 50 members."
)
BOXES = (
    "Each box is over the corruptions of an intensity: the whole range, the quartiles and the "
    "median."
)
Show = Callable[[Rows, str], list[Part]]  # of a set's rows, and the key of its figures


def summarise_cifar(view: RunView) -> Markup | None:
    return next((summarise(rows) for rows in gather([view])), None)


def show_cifar_run(view: RunView) -> list[Section]:
    sets = gather([view])

    def show(title: str, of_set: Show) -> Section:
        """A run has one set, or nothing yet."""
        shown = [of_set(rows, f"{view.key}-{i}") for i, rows in enumerate(sets)]
        return Section(title, [part for parts in shown for part in parts])

    return [
        show("Results", _show_results),
        show("Corruptions", _show_corruptions),
        show("Members", _show_members),
        show("Entropy", _show_entropies),
        show("Calibration", _show_calibration),
        Section("Training", show_training(view)),
        Section("Sampler", show_sampler(view)),
        Section("Time", show_timings(view)),
        Section("How to read this", [Definitions(READING, "reading")]),
    ]


def show_cifar_runs(views: Sequence[RunView]) -> list[Part]:
    """The tables and figures of the paper, with the rows of all runs."""
    parts: list[Part] = []
    for i, rows in enumerate(gather(views)):
        said = summarise(rows)
        parts += [] if said is None else [Note(said, "lead")]
        shown: tuple[tuple[str, Show], ...] = (
            ("Table 2: test images", _show_test_table),
            ("Table 3: corrupted images", _show_corrupted_table),
            ("Claims", lambda rows, _: build_claims(rows)),
            ("Predictive entropy", _show_entropies),
            ("Calibration", _show_calibration),
            ("Corruptions by intensity", _show_boxes),
            ("More members, more inferences", _show_members),
            ("More epochs", _show_trades),
        )
        for title, show in shown:
            content = show(rows, f"all-{i}")
            if content:
                parts += [Heading(f"{title}, {name_set(rows.set_name)}", 3), *content]
    return parts or [Note("None of the runs has results yet.")]


def _show_results(rows: Rows, key: str) -> list[Part]:
    further = build_further_table(rows)
    more: list[Part] = [] if further is None else [Heading("Further measures"), further]
    return [*_show_test_table(rows, key), *more]


def _show_test_table(rows: Rows, _: str) -> list[Part]:
    table = build_test_table(rows)
    return [] if table is None else [Note(explain_test_table(rows)), table]


def _show_corrupted_table(rows: Rows, _: str) -> list[Part]:
    table = build_corrupted_table(rows)
    return [] if table is None else [Note(explain_corrupted_table(rows)), table]


def _show_corruptions(rows: Rows, key: str) -> list[Part]:
    heats = [(row, heat) for row in rows.all if (heat := build_heat_table(row)) is not None]
    columns: list[list[Part]] = [[Heading(f"{r.name}: accuracy, %"), heat] for r, heat in heats]
    if boxes := _show_boxes(rows, key):
        columns.append([Heading("By intensity"), *boxes])
    return [*_show_corrupted_table(rows, key), *([SideBySide(columns)] if columns else [])]


def _show_members(rows: Rows, key: str) -> list[Part]:
    shown: list[Part] = []
    for which, over in CURVES.items():
        label = f"Distance to the reference over {over}"
        shown += show_figure(draw_curves(rows, which), key=f"{key}-{over}", label=label)
    return [Note(MEMBERS), *shown] if shown else []


def _show_trades(rows: Rows, key: str) -> list[Part]:
    table = build_trade_table(rows)
    label = "Distance to the reference over epochs"
    shown = show_figure(draw_trades(rows), key=f"{key}-epochs", label=label)
    return [] if table is None else [Note(TRADE), table, *shown]


def _show_drawn(name: str, note: str, draw: Callable[[Rows], Figure | None], label: str) -> Show:
    """What shows a figure under its note."""

    def show(rows: Rows, key: str) -> list[Part]:
        shown = show_figure(draw(rows), key=f"{key}-{name}", label=label)
        return [Note(note), *shown] if shown else []

    return show


_show_boxes = _show_drawn(
    "boxes", BOXES, draw_boxes, "Accuracy and NLL by intensity: boxes over the corruptions"
)
_show_entropies = _show_drawn(
    "entropies",
    ENTROPY,
    draw_entropies,
    "Share of test images by predictive entropy, each method over the reference",
)
_show_calibration = _show_drawn(
    "calibration",
    CALIBRATION,
    draw_calibration,
    "Accuracy minus confidence over confidence, each method and the reference",
)
