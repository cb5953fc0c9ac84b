"""The parts of the page that CIFAR runs have: those of one run, and those of several together."""

from collections.abc import Callable, Sequence

from stochens_lab.report.cifar.charts import (
    box_panels,
    calibration_panels,
    entropy_panels,
)
from stochens_lab.report.cifar.claims_tables import claims_table
from stochens_lab.report.cifar.curves import curve_panels, trade_panels
from stochens_lab.report.cifar.rows import Rows, gather, set_title
from stochens_lab.report.cifar.tables import further, headline, heat, table_2, table_3
from stochens_lab.report.cifar.trade import NOTE as TRADE
from stochens_lab.report.page.details import reading, sampler, timings
from stochens_lab.report.page.html import Html, join, tag
from stochens_lab.report.page.run import View
from stochens_lab.report.page.training import training

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
    (
        "KL loss",
        "the paper uses its level and its fluctuation to foresee which method suits a task: lower "
        "and calmer is better, among methods that leave out the same constant.",
    ),
)
ENTROPY = (
    "The predictive entropy of the test images: the line is the method, the grey shape HMC. The "
    "distance is how far images would have to move, on average, to make one of the other. The "
    "first bin can reach above the panel."
)
CALIBRATION = (
    "Accuracy minus confidence in ten bins of confidence, in per cent: above 0 a method is less "
    "sure than it could be, below 0 it is too sure. The dark line is HMC."
)
CURVES = (
    "Smaller ensembles out of the same members, the mean over all that share none; and more "
    "inferences of each member. Dashed: HMC's own value, and for agreement and variance what the "
    "paper reports of SE1 with 50 members."
)
BOXES = (
    "Each box is over the corruptions of an intensity: the whole range, the quartiles and the "
    "median."
)
Part = Callable[[Rows], Html | None]


def cifar_lead(view: View) -> Html | None:
    said = [words for rows in gather([view]) if (words := headline(rows)) is not None]
    return join(said) if said else None


def cifar_sections(view: View) -> list[tuple[str, Html | None]]:
    """Title and content, None where there is nothing to show."""
    sets = gather([view])
    return [
        ("Results", _each(sets, _results)),
        ("Corruptions", _each(sets, _corruptions)),
        ("Members", _each(sets, curve_panels, CURVES)),
        ("Entropy", _each(sets, entropy_panels, ENTROPY)),
        ("Calibration", _each(sets, calibration_panels, CALIBRATION)),
        ("Training", training(view)),
        ("Sampler", sampler(view)),
        ("Time", timings(view)),
        ("How to read this", reading(READING)),
    ]


def cifar_together(views: Sequence[View]) -> Html:
    """The tables and figures of the paper, with the rows of all runs."""
    sets = gather(views)
    parts = []
    for rows in sets:
        said = headline(rows)
        parts += [None if said is None else tag("p", said, class_="lead")]
        for title, part, note in (
            ("Table 2: test images", table_2, ""),
            ("Table 3: corrupted images", table_3, ""),
            ("Claims", claims_table, ""),
            ("Predictive entropy", entropy_panels, ENTROPY),
            ("Calibration", calibration_panels, CALIBRATION),
            ("Corruptions by intensity", box_panels, BOXES),
            ("More members, more inferences", curve_panels, CURVES),
            ("More epochs", trade_panels, TRADE),
        ):
            content = part(rows)
            if content is not None:
                heading = f"{title}, {set_title(rows.set_name)}"
                told = tag("p", note, class_="note") if note else None
                parts += [tag("h3", heading), told, content]
    shown = [part for part in parts if part is not None]
    return join(shown) if shown else tag("p", "None of the runs has results yet.", class_="note")


def _each(sets: Sequence[Rows], part: Part, note: str = "") -> Html | None:
    """A part for each set; a run has one, as a rule, and then it needs no title."""
    found = [(rows, content) for rows in sets if (content := part(rows)) is not None]
    if not found:
        return None
    said = [tag("p", note, class_="note")] if note else []
    if len(found) == 1:
        return join([*said, found[0][1]])
    return join([*said, *(_titled(set_title(rows.set_name), content) for rows, content in found)])


def _results(rows: Rows) -> Html | None:
    more = further(rows)
    parts = [table_2(rows), None if more is None else _titled("Further measures", more)]
    return join(parts) if any(parts) else None


def _corruptions(rows: Rows) -> Html | None:
    boxes = box_panels(rows)
    note = tag("p", BOXES, class_="note")
    beside = [
        *map(heat, rows.all),
        None if boxes is None else tag("div", _titled("By intensity", note, boxes)),
    ]
    parts = [table_3(rows), tag("div", *beside, class_="row") if any(beside) else None]
    return join(parts) if any(parts) else None


def _titled(title: str, *content: Html) -> Html:
    return join([tag("h4", title), *content])
