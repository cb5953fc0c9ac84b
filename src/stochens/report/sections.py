"""The parts of a report, in their order; each where the prediction has something to show."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from stochens.comparison import compare
from stochens.figures.plots import IN, OUT
from stochens.figures.views import PartTable, Reliability
from stochens.likelihoods import Predicted
from stochens.metrics import Interval
from stochens.report import drawings
from stochens.report.content import Content
from stochens.report.examples import show_examples
from stochens.report.parts import Heading, Note, Section, SideBySide
from stochens.report.pictures import show_figure
from stochens.report.tables import Cell, Head, Row, Table, interval_text, number
from stochens.report.words import MEANINGS

MOST_PARTS = 200  # rows of a table of classes


def measure(content: Content) -> dict[str, Interval]:
    """As `stochens.compare` has it, with how well other inputs are told apart where the kind of
    prediction states that."""
    p, far = content.p, content.far
    stated = far is not None and type(p).apart is not Predicted.apart
    ood = {"p": far} if far is not None and stated else None
    found = compare(
        {"p": p}, content.y, ood=ood, resamples=content.resamples, seed=content.seed, show=False
    )
    return found.rows["p"]


def list_sections(content: Content, rows: dict[str, Interval]) -> list[Section]:
    """Those that have something to show."""
    reliability = content.p.views.reliability(content.y)
    table = content.p.views.parts(content.y, content.names)
    made = [
        ("Measures", show_measures(rows)),
        ("Calibration", show_calibration(content, reliability)),
        ("Uncertainty", show_uncertainty(content)),
        ("Examples", show_examples(content)),
        ("Parts", show_parts(table)),
        ("Members", show_members(content, rows)),
        ("Training", show_training(content)),
    ]
    titles = {"Parts": "" if table is None else f"By {table.kind}"}
    if any(name.startswith("chain") for name in content.alone):
        titles["Members"] = "Chains"
    return [Section(titles.get(name, name), parts, name.lower()) for name, parts in made if parts]


def show_measures(rows: dict[str, Interval]) -> list[object]:
    found = [
        Row(
            name,
            [
                number(interval.value),
                Cell(interval_text(interval)),
                Cell(MEANINGS.get(name, ""), mark="words"),
            ],
        )
        for name, interval in rows.items()
    ]
    note = "Intervals are 95 % bootstrap intervals over the examples."
    if "ECE" in rows:
        note += (
            " That of ECE allows for what chance adds to it, and begins at 0 where the model may "
            "be calibrated."
        )
    heads = [*map(Head, ("measure", "value", "95 % interval", "what it says"))]
    return [Table("measures", heads, found, style="results measures"), Note(note)]


def show_calibration(content: Content, kept: Reliability | None) -> list[object]:
    """Reliability, risk and coverage, and numbers beside the truth."""
    views, y = content.p.views, content.y
    columns: list[list[object]] = []
    if kept is not None:
        label = f"{kept.outcome} over {kept.promise}"
        columns.append(
            [
                Heading("Reliability", 3),
                *show_figure(drawings.figure_reliability(kept), key="reliability", label=label),
                Note(kept.reading),
            ]
        )
    if (risk := views.risk(y)) is not None:
        label = f"{risk.label} over the share answered"
        columns.append(
            [
                Heading("Risk and coverage", 3),
                *show_figure(drawings.figure_risk(risk), key="risk", label=label),
                Note(risk.reading),
            ]
        )
    for k, scatter in enumerate(views.scatters(y, content.names)):
        reading = (
            "Predictions over the truth, with one standard deviation to either side; on the "
            "dashed line they are right."
        )
        label = f"predicted over true {scatter.name}"
        figure = drawings.figure_scatter(scatter)
        columns.append(
            [
                Heading(f"Predicted and true {scatter.name}", 3),
                *show_figure(figure, key=f"scatter{k}", label=label),
                Note(reading),
            ]
        )
    return [SideBySide(columns)] if columns else []


def show_uncertainty(content: Content) -> list[object]:
    """Histograms in domain, and out of domain where there are such inputs."""
    here = content.p.views.amounts(content.y, content.names)
    there = {} if content.far is None else content.far.views.amounts(None, content.names)
    columns = []
    for k, (name, amount) in enumerate(here.items()):
        if not bool(amount.values.isfinite().any()):
            continue
        both = {IN: amount} | ({OUT: there[name]} if name in there else {})
        reading = amount.reading
        if OUT in both:
            reading += " Inputs of another kind should lie further to the right."
        figure = drawings.figure_amounts(both)
        columns.append(
            [
                Heading(_sentence(amount.label.split(",")[0]), 3),
                *show_figure(figure, key=f"amount{k}", label=f"histogram of {name}"),
                Note(reading),
            ]
        )
    return [SideBySide(columns)] if columns else []


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def show_parts(table: PartTable | None) -> list[object]:
    if table is None:
        return []
    shown = range(min(len(table.names), MOST_PARTS))
    rows = [
        Row(table.names[k], [_score(column[k]) for column in table.columns.values()]) for k in shown
    ]
    heads = [*map(Head, (table.kind, *table.columns))]
    parts: list[object] = [
        Note(table.reading),
        Table(f"scores of each {table.kind}", heads, rows, style="results narrow"),
    ]
    if len(table.names) > MOST_PARTS:
        parts.append(Note(f"The first {MOST_PARTS} of {len(table.names)}."))
    if table.confusion is not None:
        parts += [
            Heading("Confusion", 3),
            Note("How often the label of a row was predicted as the class of a column."),
            _confusion(table.confusion, table.names),
        ]
    return parts


def _score(value: Tensor) -> Cell:
    return Cell() if bool(value.isnan()) else number(float(value))


def _confusion(counts: Tensor, names: list[str]) -> Table:
    shares = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    rows = [
        Row(
            names[i],
            [
                Cell(f"{int(counts[i, j]):,}", float(counts[i, j]), share=float(shares[i, j]))
                for j in range(len(counts))
            ],
        )
        for i in range(len(counts))
    ]
    heads = [*map(Head, ("label", *names))]
    return Table("labels and what was predicted", heads, rows, style="heat")


def show_members(content: Content, together: dict[str, Interval]) -> list[object]:
    """Each member's measures beside those of all together."""
    if len(content.alone) < 2:
        return []
    each = {name: _values(p, content.y) for name, p in content.alone.items()}
    names = [n for n in next(iter(each.values())) if n in together]
    columns = {n: torch.tensor([own[n] for own in each.values()]).double() for n in names}
    summary: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("mean of them alone", torch.mean),
        ("lowest", torch.amin),
        ("highest", torch.amax),
    ]
    first = [
        Cell(number(together[n].value).text, together[n].value, interval_text(together[n]))
        for n in names
    ]
    rows = [Row("all together", first, style="together-row")]
    rows += [Row(word, [number(float(f(columns[n]))) for n in names]) for word, f in summary]
    alone = [Row(name, [number(own[n]) for n in names]) for name, own in each.items()]
    kind = next(iter(each)).split()[0]
    reading = (
        f"What all predict together, beside each {kind} alone. Together they are usually better "
        "than almost all of them, most of all in NLL."
    )
    heads = [*map(Head, ("", *names))]
    return [
        Note(reading),
        Table("all together and alone", heads, rows, style="results"),
        Table(f"each {kind}", heads, alone, style="results", summary=f"Each {kind}"),
    ]


def _values(p: Predicted, y: Tensor) -> dict[str, float]:
    return {name: float(metric(*given)) for name, (metric, *given) in p.measures(y).items()}


def show_training(content: Content) -> list[object]:
    if content.history is None:
        return []
    figure = drawings.figure_training(content.history)
    label = "NLL over epochs"
    reading = "The mean over members, and from the lowest to the highest of them."
    if len(content.history.validation):
        reading += (
            " Where validation rises while training falls, members learn the noise of their data."
        )
    kept = content.history.kept
    if len(content.history.validation) and math.isfinite(float(kept.double().mean())):
        reading += f" Members kept the state of epoch {_span(kept + 1)}."
    return [*show_figure(figure, key="training", label=label), Note(reading)] if figure else []


def _span(values: Tensor) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"
