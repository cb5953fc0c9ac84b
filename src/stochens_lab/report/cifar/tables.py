"""The paper's Tables 2 and 3 with our rows and its own, and accuracy corruption by corruption."""

from collections.abc import Sequence
from typing import NamedTuple

from stochens.metrics import Interval
from stochens_lab.report.cifar.numbers import corrupted_values, intensities
from stochens_lab.report.cifar.rows import (
    OOD,
    ORDER,
    TEST_METRICS,
    Row,
    Rows,
    family,
    set_title,
    shown,
)
from stochens_lab.report.page.html import DASH, Html, join, listed, table, tag
from stochens_lab.report.page.run import unique
from stochens_lab.report.paper import (
    CIFAR,
    CIFAR_COLUMNS,
    CIFAR_ROWS,
    CORRUPTED,
    TEST,
    paper_value,
)

FURTHER = ("entropy error", "Brier", "AURC", "entropy", "MI")
DIGITS = {column.metric: column.digits for column in CIFAR_COLUMNS}
NARROW = 3  # columns that look lost across a page
Column = tuple[str, str]  # domain, metric


class Line(NamedTuple):
    """One line of a table: a row of ours, or the paper's row of that name."""

    row: Row | None
    paper: str = ""


def paper_text(set_name: str, name: str, domain: str, metric: str) -> str | None:
    """The paper's value with the paper's digits."""
    value = paper_value(CIFAR, set_name, name, domain, metric)
    return None if value is None else f"{value * shown(metric).scale:.{DIGITS[metric]}f}"


def lines(rows: Rows, domain: str) -> tuple[list[Line], list[Line]]:
    """The reference's lines and the methods', the paper's under ours of the same name.

    The table of several runs has all of the paper's rows, that of one run those that it has too.
    """
    wanted = list(CIFAR_ROWS) if rows.several else unique(family(row.method) for row in rows.all)
    if not rows.several and "HMC" not in wanted:
        wanted.append("HMC")
    papers = [
        name for name in wanted if paper_text(rows.set_name, name, domain, "accuracy") is not None
    ]
    apart = [Line(row) for row in rows.apart]
    apart += [Line(None, name) for name in papers if name == "HMC"]
    names = unique([*(family(row.method) for row in rows.methods), *papers])
    methods = []
    for name in sorted(names, key=lambda n: ORDER.index(n) if n in ORDER else len(ORDER)):
        methods += [Line(row) for row in rows.methods if family(row.method) == name]
        if name in papers and name != "HMC":
            methods.append(Line(None, name))
    return apart, methods


def table_2(rows: Rows) -> Html | None:
    if not rows.columns:
        return None
    title = f"Table 2: {set_title(rows.set_name)}, test images"
    return join([tag("p", *_legend(rows), class_="note"), _table(rows, rows.columns, TEST, title)])


def _legend(rows: Rows) -> list[object]:
    words: list[object] = []
    if any(rows.marks(*column) for column in rows.columns):
        words += [
            tag("b", "Bold"),
            " is the row closest to HMC, which is not always the highest or lowest: accuracy, NLL, "
            "ECE and OOD AUROC by the distance to HMC's own value, agreement and variance by the "
            "distance to 100 % and 0. A tint marks others whose 95 % interval comes as close. A "
            "column where HMC has no value has no mark. ",
        ]
    words.append("Small figures are the 95 % interval over the images. ")
    if made := _common(rows):
        words.append(f"{'Every method has' if len(rows.methods) > 1 else 'Made with'} {made}. ")
    if any(line.paper for part in lines(rows, TEST) for line in part):
        words.append(
            "Rows in italics are the paper's. Its agreement and variance are distances to its own "
            "HMC chains, and its one OOD figure does not say of which other set it is."
        )
    return words


def table_3(rows: Rows) -> Html | None:
    """The mean over the corrupted sets."""
    columns = rows.having([(CORRUPTED, name) for name in TEST_METRICS])
    if not columns:
        return None
    sets = max(sum(map(len, corrupted_values(row, "accuracy").values())) for row in rows.all)
    over = f" over {sets} corrupted sets" if sets else ""
    title = f"Table 3: {set_title(rows.set_name)}, corrupted images"
    words = f"The mean{over}, with its 95 % interval over corruptions. "
    if not any(rows.marks(*column) for column in columns):
        words += (
            "Nothing is marked without HMC's predictions for these images. More accurate is not "
            "closer: in the paper HMC itself is the least accurate here. "
        )
    return join([tag("p", words, class_="note"), _table(rows, columns, CORRUPTED, title)])


def further(rows: Rows) -> Html | None:
    """What else was measured on test images."""
    columns = rows.having([(TEST, name) for name in FURTHER])
    if not columns:
        return None
    title = f"{set_title(rows.set_name)}: further measures on test images"
    return _table(rows, columns, "", title)


def _table(rows: Rows, columns: Sequence[Column], paper_domain: str, title: str) -> Html:
    marks = {column: rows.marks(*column) for column in columns}
    apart, methods = (
        [line for line in part if line.row is None or _has_any(line.row, columns)]
        for part in lines(rows, paper_domain)
    )
    heads = [tag("th", "method", scope="col", class_="name"), *map(_head, columns)]
    bodies = [
        tag("tbody", *(_line(rows, line, columns, marks, paper_domain) for line in part), class_=c)
        for part, c in ((apart, "apart"), (methods, None))
        if part
    ]
    width = "results" if len(columns) > NARROW else "results narrow"
    return table(tag("thead", tag("tr", *heads)), *bodies, caption=title, class_=width)


def _has_any(row: Row, columns: Sequence[Column]) -> bool:
    return any(row.interval(*column) is not None for column in columns)


def _head(column: Column) -> Html:
    domain, name = column
    metric = shown(name)
    below = [metric.unit, set_title(domain) if name == OOD else ""]
    small = tag("small", ", ".join(filter(None, below)))
    return tag("th", metric.label, small, scope="col")


def _line(
    rows: Rows,
    line: Line,
    columns: Sequence[Column],
    marks: dict[Column, dict[str, str]],
    paper_domain: str,
) -> Html:
    row = line.row
    if row is None:
        return _paper_line(rows, line.paper, columns, paper_domain)
    cells = [tag("th", row.name, _note(rows, row), scope="row", class_="name")]
    cells += [_cell(rows, row, column, marks[column].get(row.name)) for column in columns]
    return tag("tr", *cells)


def _note(rows: Rows, row: Row) -> Html | None:
    if row in rows.apart:
        return tag("small", "the reference") if row is rows.reference_of(row) else None
    words = [] if _common(rows) else [row.about]
    if rows.several and row.views[0].run.name not in row.name:
        words.insert(0, row.views[0].run.name)
    said = ": ".join(filter(None, words))
    return tag("small", said) if said else None


def _common(rows: Rows) -> str:
    """How all rows were made, if that is the same: said once, and not in every row."""
    made = {row.about for row in rows.methods}
    return made.pop() if len(made) == 1 else ""


def _cell(rows: Rows, row: Row, column: Column, mark: str | None) -> Html:
    interval, metric = row.interval(*column), shown(column[1])
    if interval is None:
        known = rows.by_definition(row, *column)
        if known is None:
            return tag("td", DASH)
        return tag("td", f"{known * metric.scale:g}", tag("small", "by definition"))
    value = tag("data", metric.text(interval.value), value=repr(interval.value))
    unseen = tag("span", " (closest)", class_="unseen") if mark == "best" else None
    low, high = metric.text(interval.low), metric.text(interval.high)
    small = tag("small", f"{low} to {high}") if interval.low < interval.high else None
    return tag("td", value, unseen, small, class_=mark)


def _paper_line(rows: Rows, name: str, columns: Sequence[Column], domain: str) -> Html:
    cells = [tag("th", f"{name}, paper", scope="row", class_="name")]
    for _, metric in (column for column in columns if column[1] != OOD):
        cells.append(tag("td", paper_text(rows.set_name, name, domain, metric) or DASH))
    sets = sum(metric == OOD for _, metric in columns)
    if sets:
        value = paper_text(rows.set_name, name, domain, OOD) or DASH
        cells.append(tag("td", value, colspan=sets, class_="spread" if sets > 1 else None))
    return tag("tr", *cells, class_="paper")


def heat(row: Row) -> Html | None:
    """Accuracy by corruption and intensity; the tint is how much of the clean accuracy is lost."""
    found = corrupted_values(row, "accuracy")
    if not found:
        return None
    levels = intensities([row])
    clean = row.interval(TEST, "accuracy")
    top = clean.value if clean else max(v for values in found.values() for v in values.values())
    metric = shown("accuracy")
    body = []
    for name in sorted(found):
        cells = [tag("th", name.replace("_", " "), scope="row", class_="name")]
        for level in levels:
            value = found[name].get(level)
            if value is None:
                cells.append(tag("td", DASH))
                continue
            lost = min(max(1 - value / top, 0), 1) if top > 0 else 0
            text = f"{value * metric.scale:.1f}"
            cells.append(tag("td", text, style=f"--share:{lost:.3f}"))
        body.append(tag("tr", *cells))
    heads = [tag("th", "intensity", scope="col", class_="name")]
    heads += [tag("th", level, scope="col") for level in levels]
    caption = f"{row.name}: accuracy by corruption and intensity, %"
    shown_table = table(
        tag("thead", tag("tr", *heads)), tag("tbody", *body), caption=caption, class_="heat"
    )
    return tag("div", tag("h4", f"{row.name}: accuracy, %"), shown_table)


def headline(rows: Rows) -> Html | None:
    """In one sentence: how close, or who is closest."""
    if len(rows.methods) > 1:
        return _closest(rows)
    for row in rows.methods:
        agreement, variance = (row.interval(TEST, name) for name in ("agreement", "variance"))
        reference = rows.reference_of(row)
        if agreement is None or variance is None or reference is None:
            continue
        words: list[object] = [
            tag("b", row.name),
            f" agrees with {reference.method} on {_with_unit('agreement', agreement)} of the "
            f"{set_title(rows.set_name)} test images, at a variance of "
            f"{_with_unit('variance', variance)}.",
        ]
        paper = [
            paper_text(rows.set_name, family(row.method), TEST, name)
            for name in ("agreement", "variance")
        ]
        if all(paper):
            words.append(f" The paper's {family(row.method)}: {paper[0]} % and {paper[1]}.")
        return join(words)
    return None


def _closest(rows: Rows) -> Html | None:
    winners: dict[str, list[str]] = {}
    for name in ("agreement", "variance", "accuracy", "NLL"):
        for row in rows.methods:
            interval = row.interval(TEST, name)
            if interval is not None and rows.marks(TEST, name).get(row.name) == "best":
                said = f"{shown(name).label} ({_with_unit(name, interval)})"
                winners.setdefault(row.name, []).append(said)
    if not winners:
        return None
    parts: list[object] = [f"Closest to HMC on {set_title(rows.set_name)}: "]
    for i, (name, by) in enumerate(winners.items()):
        parts += ["; " if i else "", tag("b", name), f" by {listed(by)}"]
    return join([*parts, "."])


def _with_unit(name: str, interval: Interval) -> str:
    metric = shown(name)
    if metric.unit == "%":
        return f"{metric.text(interval.value)}\u00a0%"
    gap = "\u00a0·\u00a0" if metric.unit.startswith("10") else " "
    return f"{metric.text(interval.value)}{gap}{metric.unit}".rstrip()
