"""How close each method comes: one table for each set, and one over several runs."""

from collections.abc import Iterator, Sequence

from stochens.metrics import Interval
from stochens_lab.report.page.html import DASH, Html, join, listed, table, tag
from stochens_lab.report.page.run import (
    CONTROL_SUFFIX,
    HALVES,
    HEADLINE,
    View,
    domain_name,
    metric,
    unique,
    where,
)
from stochens_lab.report.paper import paper_value

MOST_COLUMNS = 12  # what a laptop shows without scrolling
Columns = dict[str, list[str]]  # metric -> its domains


def results(view: View) -> Html | None:
    parts = [
        _set_table(view, name, title, columns)
        for name in view.sets
        if view.run.metrics.get(name)
        for title, columns in _divided(name, view.columns(name))
    ]
    if not parts:
        return None
    return join([tag("p", _legend(view), class_="note"), *parts])


def _legend(view: View) -> Html:
    words: list[object] = [
        tag("b", "Bold"),
        " is the best of a column; a tint marks the others whose 95 % interval reaches it. Small "
        "figures are the interval",
    ]
    replicates = view.config.get("draws", 1), view.config.get("seeds", 1)
    many = any(isinstance(count, int) and count > 1 for count in replicates)
    words.append(" over data draws and seeds. " if many else " over the test points. ")
    if _has_paper(view):
        words.append(
            "“paper” is the value of its Table 1, turned into nats where it counts tenths of a "
            "nat. Its training sets are not published, so compare orders and sizes, not digits."
        )
    return join(words)


def _has_paper(view: View) -> bool:
    return any(
        paper_value(view.experiment, set_name, method, domain, name) is not None
        for set_name in view.sets
        for name, domains in view.columns(set_name).items()
        for domain in domains
        for method in view.methods(set_name)
    )


def _divided(set_name: str, columns: dict[str, list[str]]) -> Iterator[tuple[str, Columns]]:
    """One table where it fits a page, otherwise one for each domain, each with a title."""
    title = f"Set {set_name}"
    if sum(map(len, columns.values())) <= MOST_COLUMNS:
        yield title, columns
        return
    for domain in unique(domain for domains in columns.values() for domain in domains):
        own = {name: [domain] for name, domains in columns.items() if domain in domains}
        yield f"{title}, {domain_name(domain)}", own


def _set_table(view: View, set_name: str, title: str, columns: Columns) -> Html:
    groups = [tag("td", "", class_="corner")]
    domains = [tag("th", "method", scope="col", class_="name")]
    for name, places in columns.items():
        shown = metric(name)
        unit = tag("span", f" {shown.unit}", class_="unit") if shown.unit else None
        head = tag("th", shown.label, unit, scope="colgroup", colspan=len(places), class_="group")
        groups.append(head)
        domains += [
            tag("th", domain_name(place), scope="col", class_="first" if i == 0 else None)
            for i, place in enumerate(places)
        ]
    apart = view.apart(set_name)
    head = tag("thead", tag("tr", *groups), tag("tr", *domains))
    bodies = [
        tag("tbody", *(_row(view, set_name, name, columns) for name in rows if name), class_=kind)
        for rows, kind in ((apart, "apart"), (view.methods(set_name), None))
        if rows
    ]
    return join(
        [
            tag("h4", title),
            table(head, *bodies, caption=f"{title}: every method", class_="results"),
        ]
    )


def _row(view: View, set_name: str, method: str, columns: Columns) -> Html:
    note = view.schedule(set_name, method)
    if method == view.noise(set_name):
        note = "This row is the noise of the reference itself."
        if method.endswith(HALVES):
            note = (
                "half of the chains against the other half: about twice the noise of the reference"
            )
    elif method in view.apart(set_name) and method != view.reference:
        note = f"as few draws of {view.reference} as an ensemble has members"
    small = tag("small", note) if note else None
    cells = [tag("th", method, small, scope="row", class_="name")]
    for name, domains in columns.items():
        for i, domain in enumerate(domains):
            cells.append(_cell(view, set_name, method, domain, name, first=i == 0))
    return tag("tr", *cells)


def _cell(view: View, set_name: str, method: str, domain: str, name: str, *, first: bool) -> Html:
    interval = view.interval(set_name, method, domain, name)
    classes = ["first"] if first else []
    if interval is None:
        return tag("td", DASH, class_=" ".join(classes) or None)
    shown = metric(name)
    classes += _rank(view, set_name, method, domain, name, interval)
    value = tag("data", shown.text(interval.value), value=repr(interval.value))
    low, high = shown.text(interval.low), shown.text(interval.high)
    small = [tag("small", f"{low} to {high}")]
    paper = paper_value(view.experiment, set_name, method, domain, name)
    if paper is not None:
        small.append(tag("small", f"paper {shown.text(paper)}", class_="paper"))
    mark = tag("span", " (best)", class_="unseen") if "best" in classes else None
    return tag("td", value, mark, *small, class_=" ".join(classes) or None)


def _rank(
    view: View, set_name: str, method: str, domain: str, name: str, interval: Interval
) -> list[str]:
    best = view.best(set_name, domain, name)
    if best is None or method not in view.methods(set_name):
        return []
    if method == best:
        return ["best"]
    top = view.interval(set_name, best, domain, name)
    assert top is not None
    return ["near"] if interval.low <= top.value <= interval.high else []


def headline(view: View) -> Html | None:
    """Who is closest, and how far the reference itself is from the truth."""
    names = unique(name for set_name in view.sets for name in view.columns(set_name))
    name = next((name for name in HEADLINE if name in names), None)
    if name is None:
        return None
    shown = metric(name)
    domains = unique(d for s in view.sets for d in view.columns(s).get(name, []))
    found = [said for domain in domains if (said := _closest(view, domain, name)) is not None]
    if not found:
        return None
    to = f"closest to {view.reference}" if view.reference else "best"
    unit = f", in {shown.unit}" if shown.unit else ""
    words = [f"By {shown.label}{unit}, {to} ", *_between(found, "; "), "."]
    own = [noise for domain in domains if (noise := _noise(view, domain, name))]
    if own:
        halves = any((view.noise(s) or "").endswith(HALVES) for s in view.sets)
        what = f"The noise of {view.reference} itself is"
        if halves:
            what = f"Half of the chains of {view.reference} and the other half are apart by"
        words.append(f" {what} {'; '.join(own)}.")
    if any(_wins(view, s, d, name) for s in view.sets for d in domains):
        words.append(
            f" “{CONTROL_SUFFIX.strip(', ')}” is a control: its stopping step was picked by "
            "distance to the reference, so it shows what stopping can do and is no choice to make."
        )
    return join(words)


def _between(parts: list[Html], gap: str) -> list[str]:
    return [word for part in parts for word in (gap, part)][1:]


def _wins(view: View, set_name: str, domain: str, name: str) -> bool:
    return (view.best(set_name, domain, name) or "").endswith(CONTROL_SUFFIX)


def _closest(view: View, domain: str, name: str) -> Html | None:
    """ "in domain: SE3 (a 2.59, b 1.41), regular (c 1.19)"."""
    winners: dict[str, list[str]] = {}
    for set_name in view.sets:
        best = view.best(set_name, domain, name)
        if best is not None:
            top = view.interval(set_name, best, domain, name)
            assert top is not None
            value = metric(name).text(top.value)
            winners.setdefault(best, []).append(
                f"{set_name} {value}" if len(view.sets) > 1 else value
            )
    if not winners:
        return None
    said = [join([tag("b", method), f" ({', '.join(v)})"]) for method, v in winners.items()]
    return join([f"{where(domain)}: ", *_between(said, ", ")])


def _noise(view: View, domain: str, name: str) -> str | None:
    values = []
    for set_name in view.sets:
        row = view.noise(set_name)
        interval = view.interval(set_name, row, domain, name) if row else None
        if interval is not None:
            values.append(metric(name).text(interval.value))
    return f"{listed(values)} {where(domain)}" if values else None


def joint(views: Sequence[View]) -> Html:
    """The headline metric, a table for each set, with the runs that have it side by side."""
    names = [n for v in views for s in v.sets for n in v.columns(s)]
    name = next((name for name in HEADLINE if name in names), None)
    if name is None:
        return tag("p", "None of the runs has results yet.", class_="note")
    shown = metric(name)
    unit = f", {shown.unit}" if shown.unit else ""
    note = f" {shown.label}{unit}, with its 95 % interval; everything else is with each run."
    sets = unique(s for v in views for s in v.sets if name in v.columns(s))
    return join(
        [
            tag("p", tag("strong", "Shown:"), note, class_="note"),
            *(_joint_set(views, set_name, name) for set_name in sets),
        ]
    )


def _joint_set(views: Sequence[View], set_name: str, name: str) -> Html:
    having = [v for v in views if name in v.columns(set_name)]
    domains = unique(d for v in having for d in v.columns(set_name)[name])
    groups, heads = [tag("td", "", class_="corner")], [tag("th", "method", scope="col")]
    for view in having:
        groups.append(
            tag("th", view.run.name, scope="colgroup", colspan=len(domains), class_="group")
        )
        heads += [
            tag("th", domain_name(d), scope="col", class_="first" if i == 0 else None)
            for i, d in enumerate(domains)
        ]
    rows = [
        tag(
            "tr",
            tag("th", method, scope="row", class_="name"),
            *(
                _cell(v, set_name, method, d, name, first=i == 0)
                for v in having
                for i, d in enumerate(domains)
            ),
        )
        for method in unique(m for v in having for m in v.run.metrics[set_name])
    ]
    head = tag("thead", tag("tr", *groups), tag("tr", *heads))
    title = f"Set {set_name}"
    caption = f"{title}: all runs"
    return join(
        [
            tag("h3", title),
            table(head, tag("tbody", *rows), caption=caption, class_="results"),
        ]
    )
