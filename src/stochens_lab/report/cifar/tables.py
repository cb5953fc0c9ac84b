"""The paper's Tables 2 and 3 with our rows and its own, and accuracy corruption by corruption."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from stochens.metrics import Interval
from stochens.report.tables import BEST, Cell, Head, Table
from stochens.report.tables import Row as TableRow
from stochens.report.text import DASH, join_words
from stochens_lab.report.cifar.numbers import find_intensities, read_corrupted
from stochens_lab.report.cifar.rows import (
    OOD,
    ORDER,
    TEST_METRICS,
    Row,
    Rows,
    describe_metric,
    family,
    name_set,
)
from stochens_lab.report.page.parts import embolden
from stochens_lab.report.paper import (
    CIFAR,
    CIFAR_COLUMNS,
    CIFAR_ROWS,
    CORRUPTED,
    TEST,
    paper_value,
)
from stochens_lab.report.tables import FROM_PAPER
from stochens_lab.report.view import unique

FURTHER = ("entropy error", "Brier", "AURC", "entropy", "MI")
DIGITS = {column.metric: column.digits for column in CIFAR_COLUMNS}
NARROW = 3  # columns that look lost across a page
CLOSEST = (
    " is the row closest to HMC, which is not always the highest or lowest: accuracy, NLL, ECE and "
    "OOD AUROC by the distance to HMC's own value, agreement and variance by the distance to 100 % "
    "and 0. A tint marks others whose 95 % interval comes as close. A column where HMC has no "
    "value has no mark. "
)
Column = tuple[str, str]  # domain, metric


class Line(NamedTuple):
    """One line of a table: a row of ours, or the paper's row of that name."""

    row: Row | None
    paper: str = ""


def format_paper(set_name: str, name: str, domain: str, metric: str) -> str | None:
    """The paper's value with the paper's digits."""
    value = paper_value(CIFAR, set_name, name, domain, metric)
    return None if value is None else f"{value * describe_metric(metric).scale:.{DIGITS[metric]}f}"


def order_lines(rows: Rows, domain: str) -> tuple[list[Line], list[Line]]:
    """The reference's lines and the methods', the paper's under ours of the same name.

    The table of several runs has all of the paper's rows, that of one run those that it has too.
    """
    wanted = list(CIFAR_ROWS) if rows.several else unique(family(row.method) for row in rows.all)
    if not rows.several and "HMC" not in wanted:
        wanted.append("HMC")
    papers = [
        name for name in wanted if format_paper(rows.set_name, name, domain, "accuracy") is not None
    ]
    references = [Line(row) for row in rows.references]
    references += [Line(None, name) for name in papers if name == "HMC"]
    names = unique([*(family(row.method) for row in rows.methods), *papers])
    methods = []
    for name in sorted(names, key=lambda n: ORDER.index(n) if n in ORDER else len(ORDER)):
        methods += [Line(row) for row in rows.methods if family(row.method) == name]
        if name in papers and name != "HMC":
            methods.append(Line(None, name))
    return references, methods


def build_test_table(rows: Rows) -> Table | None:
    """Table 2."""
    title = f"Table 2: {name_set(rows.set_name)}, test images"
    return _build_table(rows, rows.columns, TEST, title)


def build_corrupted_table(rows: Rows) -> Table | None:
    """Table 3: the mean over the corrupted sets."""
    columns = rows.having([(CORRUPTED, name) for name in TEST_METRICS])
    title = f"Table 3: {name_set(rows.set_name)}, corrupted images"
    return _build_table(rows, columns, CORRUPTED, title)


def build_further_table(rows: Rows) -> Table | None:
    """What else was measured on test images."""
    columns = rows.having([(TEST, name) for name in FURTHER])
    title = f"{name_set(rows.set_name)}: further measures on test images"
    return _build_table(rows, columns, "", title)


def explain_test_table(rows: Rows) -> Markup:
    words: list[str | Markup] = []
    if any(rows.marks(*column) for column in rows.columns):
        words += [embolden("Bold"), CLOSEST]
    words.append("Small figures are the 95 % interval over the images. ")
    if recipe := _find_common_recipe(rows):
        have = "Every method has" if len(rows.methods) > 1 else "Made with"
        words.append(f"{have} {recipe}. ")
    if any(line.paper for part in order_lines(rows, TEST) for line in part):
        words.append(
            "Rows in italics are the paper's. Its agreement and variance are distances to its own "
            "HMC chains, and its one OOD figure does not say of which other set it is."
        )
    return Markup("").join(words)


def explain_corrupted_table(rows: Rows) -> str:
    sets = max(sum(map(len, read_corrupted(row, "accuracy").values())) for row in rows.all)
    over = f" over {sets} corrupted sets" if sets else ""
    words = f"The mean{over}, with its 95 % interval over corruptions. "
    if not any(rows.marks(CORRUPTED, name) for name in TEST_METRICS):
        words += (
            "Nothing is marked without HMC's predictions for these images. More accurate is not "
            "closer: in the paper HMC itself is the least accurate here. "
        )
    return words


def _build_table(
    rows: Rows, columns: Sequence[Column], paper_domain: str, title: str
) -> Table | None:
    if not columns:
        return None
    references, methods = (
        [
            _build_row(rows, line, columns, paper_domain)
            for line in part
            if line.row is None or any(line.row.interval(*column) for column in columns)
        ]
        for part in order_lines(rows, paper_domain)
    )
    style = "results" if len(columns) > NARROW else "results narrow"
    heads = [Head("method"), *map(_build_head, columns)]
    return Table(title, heads, methods, references, style=style, best="closest")


def _build_head(column: Column) -> Head:
    domain, name = column
    metric = describe_metric(name)
    return Head(metric.label, metric.unit, name_set(domain) if name == OOD else "")


def _build_row(rows: Rows, line: Line, columns: Sequence[Column], paper_domain: str) -> TableRow:
    row = line.row
    if row is None:
        return _build_paper_row(rows, line.paper, columns, paper_domain)
    return TableRow(row.name, [_build_cell(rows, row, c) for c in columns], _note_row(rows, row))


def _note_row(rows: Rows, row: Row) -> str:
    if row in rows.references:
        return "the reference" if row is rows.reference_of(row) else ""
    words = [] if _find_common_recipe(rows) else [row.recipe]
    if rows.several and row.views[0].run.name not in row.name:
        words.insert(0, row.views[0].run.name)
    return ": ".join(filter(None, words))


def _find_common_recipe(rows: Rows) -> str:
    """How all rows were made, if that is the same: said once, and not in every row."""
    recipes = {row.recipe for row in rows.methods}
    return recipes.pop() if len(recipes) == 1 else ""


def _build_cell(rows: Rows, row: Row, column: Column) -> Cell:
    interval, metric = row.interval(*column), describe_metric(column[1])
    known = rows.by_definition(row, *column)
    if known is not None:
        return Cell(f"{known * metric.scale:g}", notes=("by definition",))
    return metric.cell(interval, mark=rows.marks(*column).get(row.name, ""))


def _build_paper_row(rows: Rows, name: str, columns: Sequence[Column], domain: str) -> TableRow:
    """Its one OOD figure stands under all of those columns, which are the last."""
    metrics = [metric for _, metric in columns if metric != OOD]
    sets = len(columns) - len(metrics)
    texts = {m: format_paper(rows.set_name, name, domain, m) or DASH for m in (*metrics, OOD)}
    cells = [Cell(texts[metric]) for metric in metrics]
    if sets:
        cells.append(Cell(texts[OOD], columns=sets, mark="spread" if sets > 1 else ""))
    return TableRow(f"{name}, paper", cells, style=FROM_PAPER)


def build_heat_table(row: Row) -> Table | None:
    """Accuracy by corruption and intensity; the tint is how much of the clean accuracy is lost."""
    found = read_corrupted(row, "accuracy")
    if not found:
        return None
    levels = find_intensities([row])
    clean = row.interval(TEST, "accuracy")
    top = clean.value if clean else max(v for values in found.values() for v in values.values())
    lines = [
        TableRow(name.replace("_", " "), [_tint(found[name].get(level), top) for level in levels])
        for name in sorted(found)
    ]
    heads = [Head("intensity"), *(Head(str(level)) for level in levels)]
    caption = f"{row.name}: accuracy by corruption and intensity, %"
    return Table(caption, heads, lines, style="heat")


def _tint(value: float | None, top: float) -> Cell:
    if value is None:
        return Cell()
    lost = min(max(1 - value / top, 0), 1) if top > 0 else 0
    return Cell(f"{value * describe_metric('accuracy').scale:.1f}", share=lost)


def summarise(rows: Rows) -> Markup | None:
    """In one sentence: how close, or who is closest."""
    if len(rows.methods) > 1:
        return _name_closest(rows)
    for row in rows.methods:
        agreement, variance = (row.interval(TEST, name) for name in ("agreement", "variance"))
        reference = rows.reference_of(row)
        if agreement is None or variance is None or reference is None:
            continue
        said = (
            f" agrees with {reference.method} on {_add_unit('agreement', agreement)} of the "
            f"{name_set(rows.set_name)} test images, at a variance of "
            f"{_add_unit('variance', variance)}."
        )
        name = family(row.method)
        paper = [format_paper(rows.set_name, name, TEST, m) for m in ("agreement", "variance")]
        if all(paper):
            said += f" The paper's {name}: {paper[0]} % and {paper[1]}."
        return embolden(row.name) + said
    return None


def _name_closest(rows: Rows) -> Markup | None:
    winners: dict[str, list[str]] = {}
    for name in ("agreement", "variance", "accuracy", "NLL"):
        for row in rows.methods:
            interval = row.interval(TEST, name)
            if interval is not None and rows.marks(TEST, name).get(row.name) == BEST:
                said = f"{describe_metric(name).label} ({_add_unit(name, interval)})"
                winners.setdefault(row.name, []).append(said)
    if not winners:
        return None
    said_of = [embolden(name) + f" by {join_words(by)}" for name, by in winners.items()]
    return Markup("Closest to HMC on {}: {}.").format(
        name_set(rows.set_name), Markup("; ").join(said_of)
    )


def _add_unit(name: str, interval: Interval) -> str:
    metric = describe_metric(name)
    if metric.unit == "%":
        return f"{metric.text(interval.value)}\u00a0%"
    gap = "\u00a0·\u00a0" if metric.unit.startswith("10") else " "
    return f"{metric.text(interval.value)}{gap}{metric.unit}".rstrip()
