"""Training: the loss over steps and its terms, the distance over steps, calibration."""

from typing import Any

from stochens_lab.report.figures.courses import draw_calibration, draw_losses, draw_steps
from stochens_lab.report.page.parts import Heading, Note, Part
from stochens_lab.report.page.pictures import show_figure
from stochens_lab.report.tables import Cell, Head, Row, Table
from stochens_lab.report.text import format_number
from stochens_lab.report.view import View, unique

LOSS = (
    "The training KL loss: the expected negative log-likelihood of all the data, the L2 and "
    "stochasticity terms and those of a finite sigma. The constant of machine precision is left "
    "out, so a method with a finite sigma lies higher. Each panel is one method, the line its mean "
    "over members, the band their spread (one standard deviation); the other methods are grey "
    "behind it. The first steps reach above the panels. In the tables, “fluctuation” is how much a "
    "member's loss moves from step to step at the end of training."
)
STEPS = (
    "Shorter trainings of the same method, each run to the end of its own schedule; the right-most "
    "point is the method of the table. The set distance says how far apart a method's two "
    "parameter sets are: at 0 a member is a plain network."
)
KL_NAMES = {"l2": "L2"}


def show_training(view: View) -> list[Part]:
    parts: list[Part] = []
    for i, set_name in enumerate(view.sets):
        rows = view.run.training.get(set_name)
        if rows:
            label = f"Set {set_name}: KL loss over training steps, method by method"
            figure = draw_losses(view, set_name)
            shown = show_figure(figure, key=view.id("loss", i), label=label)
            parts += [Heading(f"Set {set_name}"), *shown, _build_terms(set_name, rows)]
    return [Note(LOSS), *parts] if parts else []


def _build_terms(set_name: str, rows: dict[str, dict[str, Any]]) -> Table:
    terms = unique(term for row in rows.values() for term in row.get("kl") or {})
    heads = ["method", "steps", "loss", "fluctuation", *(KL_NAMES.get(t, t) for t in terms)]
    lines = []
    for method, row in rows.items():
        kl = row.get("kl") or {}
        values = [row.get("steps"), row.get("loss"), row.get("loss_sd"), *map(kl.get, terms)]
        if any(value is not None for value in values):
            lines.append(Row(method, [Cell(format_number(value, 1)) for value in values]))
    caption = f"Set {set_name}: loss, fluctuation and KL terms, in nats"
    return Table(caption, [Head(word) for word in heads], lines)


def show_steps(view: View) -> list[Part]:
    label = "Distance to the reference over training steps"
    shown = show_figure(draw_steps(view), key=view.id("steps"), label=label)
    return [Note(STEPS), *shown] if shown else []


def show_calibration(view: View) -> list[Part]:
    label = "Accuracy over confidence"
    return show_figure(draw_calibration(view), key=view.id("calibration"), label=label)
