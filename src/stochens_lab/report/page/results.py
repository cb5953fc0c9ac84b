"""How close each method comes: one table for each set, and one over several runs; and what
the paper says of its toy experiment, and whether this run bears it out."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from stochens.metrics import Interval
from stochens.report.parts import Heading, Note
from stochens.report.tables import BEST, Cell, Group, Head, Row, Table
from stochens.report.text import MINUS, join_words
from stochens_lab.report.page.parts import Part, embolden
from stochens_lab.report.paper import EXPERIMENT, paper_value
from stochens_lab.report.view import (
    CONTROL_SUFFIX,
    HALVES,
    HEADLINE,
    RunView,
    describe_metric,
    name_domain,
    phrase_domain,
    unique,
)

MOST_COLUMNS = 12  # what a laptop shows without scrolling
Columns = dict[str, list[str]]  # metric -> its domains


def show_results(view: RunView) -> list[Part]:
    parts: list[Part] = []
    for set_name in view.sets:
        if view.run.metrics.get(set_name):
            for title, columns in _divide_columns(set_name, view.columns(set_name)):
                parts += [Heading(title), _build_table(view, set_name, title, columns)]
    return [Note(_explain(view)), *parts] if parts else []


def _explain(view: RunView) -> Markup:
    words = (
        " is the best of a column; a tint marks the others whose 95 % interval reaches it. Small "
        "figures are the interval"
    )
    replicates = view.config.get("draws", 1), view.config.get("seeds", 1)
    counted = any(isinstance(count, int) and count > 1 for count in replicates)
    many = counted and view.experiment == "toy"  # elsewhere draws are inferences of a member
    words += " over data draws and seeds. " if many else " over the test points. "
    if _has_paper(view):
        words += (
            "“paper” is the value of its Table 1, turned into nats where it counts tenths of a "
            "nat. Its training sets are not published, so compare orders and sizes, not digits."
        )
    return embolden("Bold") + words


def _has_paper(view: RunView) -> bool:
    return any(
        paper_value(view.experiment, set_name, method, domain, name) is not None
        for set_name in view.sets
        for name, domains in view.columns(set_name).items()
        for domain in domains
        for method in view.methods(set_name)
    )


def _divide_columns(set_name: str, columns: Columns) -> Iterator[tuple[str, Columns]]:
    """One table where it fits a page, otherwise one for each domain, each with a title."""
    title = f"Set {set_name}"
    if sum(map(len, columns.values())) <= MOST_COLUMNS:
        yield title, columns
        return
    for domain in unique(domain for domains in columns.values() for domain in domains):
        own = {name: [domain] for name, domains in columns.items() if domain in domains}
        yield f"{title}, {name_domain(domain)}", own


def _build_table(view: RunView, set_name: str, title: str, columns: Columns) -> Table:
    groups, heads = [], [Head("method")]
    for name, domains in columns.items():
        metric = describe_metric(name)
        groups.append(Group(metric.label, metric.unit, len(domains)))
        heads += [Head(name_domain(domain)) for domain in domains]
    places = [(domain, name) for name, domains in columns.items() for domain in domains]
    references, methods = (
        [
            Row(
                method,
                [_build_cell(view, set_name, method, *place) for place in places],
                _note_row(view, set_name, method),
            )
            for method in names
        ]
        for names in (view.references(set_name), view.methods(set_name))
    )
    caption = f"{title}: every method"
    return Table(caption, heads, methods, references, groups, style="results")


def _note_row(view: RunView, set_name: str, method: str) -> str:
    if method == view.noise(set_name):
        if method.endswith(HALVES):
            return (
                "half of the chains against the other half: about twice the noise of the reference"
            )
        return "This row is the noise of the reference itself."
    if method in view.references(set_name) and method != view.reference:
        return f"as few draws of {view.reference} as an ensemble has members"
    return view.schedule(set_name, method)


def _build_cell(view: RunView, set_name: str, method: str, domain: str, name: str) -> Cell:
    metric = describe_metric(name)
    paper = paper_value(view.experiment, set_name, method, domain, name)
    return metric.cell(
        view.interval(set_name, method, domain, name),
        notes=() if paper is None else (Markup("<i>paper {}</i>").format(metric.text(paper)),),
        mark=_rank(view, set_name, method, domain, name),
    )


def _rank(view: RunView, set_name: str, method: str, domain: str, name: str) -> str:
    best = view.best(set_name, domain, name)
    if best is None or method not in view.methods(set_name):
        return ""
    top, own = (view.interval(set_name, one, domain, name) for one in (best, method))
    near = top is not None and own is not None and own.low <= top.value <= own.high
    return BEST if method == best else "near" if near else ""


def summarise(view: RunView) -> Markup | None:
    """Who is closest, and how far the reference itself is from the truth."""
    names = unique(name for set_name in view.sets for name in view.columns(set_name))
    name = next((name for name in HEADLINE if name in names), None)
    if name is None:
        return None
    metric = describe_metric(name)
    domains = unique(d for s in view.sets for d in view.columns(s).get(name, []))
    found = [said for domain in domains if (said := _name_closest(view, domain, name)) is not None]
    if not found:
        return None
    to = f"closest to {view.reference}" if view.reference else "best"
    unit = f", in {metric.unit}" if metric.unit else ""
    words = Markup("By {}{}, {} {}.").format(metric.label, unit, to, Markup("; ").join(found))
    noise = [told for domain in domains if (told := _tell_noise(view, domain, name))]
    if noise:
        halves = any((view.noise(s) or "").endswith(HALVES) for s in view.sets)
        what = f"The noise of {view.reference} itself is"
        if halves:
            what = f"Half of the chains of {view.reference} and the other half are apart by"
        words += f" {what} {'; '.join(noise)}."
    if any(
        (view.best(s, d, name) or "").endswith(CONTROL_SUFFIX) for s in view.sets for d in domains
    ):
        words += (
            f" “{CONTROL_SUFFIX.strip(', ')}” is a control: its stopping step was picked by "
            "distance to the reference, so it shows what stopping can do and is no choice to make."
        )
    return words


def _name_closest(view: RunView, domain: str, name: str) -> Markup | None:
    """ "in domain: SE3 (a 2.59, b 1.41), regular (c 1.19)"."""
    winners: dict[str, list[str]] = {}
    for set_name in view.sets:
        best = view.best(set_name, domain, name)
        if best is not None:
            top = view.interval(set_name, best, domain, name)
            assert top is not None
            value = describe_metric(name).text(top.value)
            said = f"{set_name} {value}" if len(view.sets) > 1 else value
            winners.setdefault(best, []).append(said)
    if not winners:
        return None
    said_of = [embolden(method) + f" ({', '.join(v)})" for method, v in winners.items()]
    return Markup("{}: {}").format(phrase_domain(domain), Markup(", ").join(said_of))


def _tell_noise(view: RunView, domain: str, name: str) -> str | None:
    values = []
    for set_name in view.sets:
        row = view.noise(set_name)
        interval = view.interval(set_name, row, domain, name) if row else None
        if interval is not None:
            values.append(describe_metric(name).text(interval.value))
    return f"{join_words(values)} {phrase_domain(domain)}" if values else None


def show_runs(views: Sequence[RunView]) -> list[Part]:
    """The headline metric, a table for each set, with the runs that have it side by side."""
    names = [n for v in views for s in v.sets for n in v.columns(s)]
    name = next((name for name in HEADLINE if name in names), None)
    if name is None:
        return [Note("None of the runs has results yet.")]
    metric = describe_metric(name)
    unit = f", {metric.unit}" if metric.unit else ""
    note = f" {metric.label}{unit}, with its 95 % interval; everything else is with each run."
    parts: list[Part] = [Note(Markup("<strong>Shown:</strong>") + note)]
    for set_name in unique(s for v in views for s in v.sets if name in v.columns(s)):
        table = _build_joint_table(views, set_name, name)
        parts += [Heading(f"Set {set_name}", 3), table]
    return parts


def _build_joint_table(views: Sequence[RunView], set_name: str, name: str) -> Table:
    having = [v for v in views if name in v.columns(set_name)]
    domains = unique(d for v in having for d in v.columns(set_name)[name])
    rows = [
        Row(method, [_build_cell(v, set_name, method, d, name) for v in having for d in domains])
        for method in unique(m for v in having for m in v.run.metrics[set_name])
    ]
    groups = [Group(view.run.name, "", len(domains)) for view in having]
    heads = [Head("method"), *(Head(name_domain(d)) for _ in having for d in domains)]
    return Table(f"Set {set_name}: all runs", heads, rows, groups=groups, style="results")


BY = "variance"  # the distance that claims are about; less is closer


class Claim(NamedTuple):
    """`method` is closer to the reference than `other`, or farther from it."""

    method: str
    says: Literal["closer", "farther"]
    other: str
    whose: str = "the paper"


CLAIMS = (
    Claim("SE3", "closer", "regular"),
    Claim("SE3, Q", "closer", "regular, Q"),
    Claim("MultiSWA", "farther", "regular"),
    Claim("SE1", "farther", "regular"),
    Claim("SE2", "farther", "regular"),
    Claim("langevin", "closer", "regular, early", "ours"),
)
VERDICTS = {
    "holds": "it holds",
    "fails": "the opposite holds",
    "unclear": "no clear difference",
}


def judge(claim: Claim, one: Interval, other: Interval) -> str:
    """Clear is what intervals that do not touch show.

    >>> judge(CLAIMS[0], Interval(1, 0.9, 1.1), Interval(2, 1.8, 2.2))
    'holds'
    """
    if one.high < other.low:
        return "holds" if claim.says == "closer" else "fails"
    if other.high < one.low:
        return "fails" if claim.says == "closer" else "holds"
    return "unclear"


def show_claims(view: RunView) -> list[Part]:
    """A table of claims, place by place, and in words how SE3's two sets fare."""
    if view.experiment != EXPERIMENT:
        return []
    places = [
        (s, d)
        for s in view.sets
        for d in unique(d for row in view.run.metrics.get(s, {}).values() for d in row)
    ]
    rows = [row for claim in CLAIMS if (row := _build_row(view, claim, places)) is not None]
    if not rows:
        return []
    heads = [Head("claim"), *(Head(f"{s}, {name_domain(d)}") for s, d in places)]
    note = (
        "In per cent, how much larger or smaller the first one's distance to the reference is "
        "(variance). Differences count as clear where the 95 % intervals do not touch."
    )
    return [Note(note), Table("Claims", heads, rows, style="claims"), *_tell_set_distance(view)]


def _build_row(view: RunView, claim: Claim, places: list[tuple[str, str]]) -> Row | None:
    cells = []
    for set_name, domain in places:
        one, other = (
            view.interval(set_name, name, domain, BY) for name in (claim.method, claim.other)
        )
        if one is None or other is None or other.value <= 0:
            cells.append(Cell())
            continue
        verdict = judge(claim, one, other)
        change = _format_percent(one.value / other.value - 1)
        cells.append(Cell(change, notes=(embolden(VERDICTS[verdict]),), mark=verdict))
    name = f"{claim.method} is {claim.says} than {claim.other}"
    return Row(name, cells, claim.whose) if any(cell.mark for cell in cells) else None


def _format_percent(share: float) -> str:
    """
    >>> _format_percent(0.123), _format_percent(-0.001)
    ('+12 %', '0 %')
    """
    whole = round(100 * share)
    return f"{whole:+d} %".replace("-", MINUS) if whole else "0 %"


def _tell_set_distance(view: RunView) -> list[Part]:
    """SE3's two parameter sets over training: a member whose sets are one is a plain network."""
    found = {}
    for set_name in view.sets:
        curve = (view.run.training.get(set_name, {}).get("SE3") or {}).get("set distance")
        if curve:
            found[set_name] = curve
    if not found:
        return []
    steps = join_words(f"{step:,}" for step in next(iter(found.values()))["step"])
    courses = [f"{s} " + ", ".join(f"{d:.2f}" for d in c["mean"]) for s, c in found.items()]
    words = (
        f"The distance between SE3's two parameter sets, as a share of their size, after {steps} "
        f"steps: {'; '.join(courses)}. A member whose two sets are one is a plain network."
    )
    return [Note(words, "note after")]
