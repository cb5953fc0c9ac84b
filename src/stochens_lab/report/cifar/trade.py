"""What longer training buys: rows of one method that differ in epochs, at the same members."""

from collections.abc import Iterator
from typing import NamedTuple

from stochens.metrics import Interval
from stochens_lab.report.cifar.names import SETTINGS, words
from stochens_lab.report.cifar.numbers import curve
from stochens_lab.report.cifar.rows import Row, Rows, shown
from stochens_lab.report.page.html import DASH, Html, table, tag
from stochens_lab.report.paper import TEST

METRICS = ("agreement", "variance", "accuracy", "NLL")
FREE = ("members", "epochs", "draws", "seed", "test_images")  # the rest must be the same
NOTE = (
    "The same method with fewer and more epochs, all read at the same number of members: the mean "
    "over the ensembles of that size that share none, where a run has more, and else with its "
    "95\u00a0% interval over images. Time is that of training, by member."
)


class Point(NamedTuple):
    epochs: int
    row: Row
    values: dict[str, float]
    intervals: dict[str, Interval]  # where these members are all that the run has
    seconds: float | None  # of training, by member


class Trade(NamedTuple):
    """Points by epochs, at `members` each."""

    name: str
    members: int
    style: str
    points: list[Point]

    def series(self, metric: str) -> tuple[list[float], list[float]]:
        found = [(float(p.epochs), p.values[metric]) for p in self.points if metric in p.values]
        return [x for x, _ in found], [y for _, y in found]


def trades(rows: Rows) -> list[Trade]:
    """One for each method and recipe of which there are two lengths of training."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows.methods:
        if "epochs" in row.made and curve(row, "members curve", "agreement") is not None:
            recipe = tuple(row.made.get(key) for key in SETTINGS if key not in FREE)
            groups.setdefault((row.method, *recipe), []).append(row)
    several = {key: found for key, found in groups.items() if len(_epochs(found)) > 1}
    methods = [key[0] for key in several]
    return [
        _trade(found, with_images=methods.count(key[0]) > 1)
        for key, found in several.items()
        if set.intersection(*map(_counts, found))
    ]


def _epochs(rows: list[Row]) -> list[int]:
    return sorted({row.made["epochs"] for row in rows})


def _counts(row: Row) -> set[float]:
    found = curve(row, "members curve", "agreement")
    return set() if found is None else set(found[0])


def _trade(found: list[Row], *, with_images: bool) -> Trade:
    members = max(set.intersection(*map(_counts, found)))
    largest = max(found, key=lambda row: row.made["members"])
    points = []
    for epochs in _epochs(found):
        # The run with most members has most ensembles of this size to take the mean of.
        own = [row for row in found if row.made["epochs"] == epochs]
        row = max(own, key=lambda row: row.made["members"])
        point = Point(epochs, row, _values(row, members), _intervals(row, members), _seconds(row))
        points.append(point)
    name = largest.method
    if with_images and "images" in largest.made:
        name += f", {words('images', largest.made['images'])}"
    return Trade(name, int(members), largest.style, points)


def _values(row: Row, members: float) -> dict[str, float]:
    values = {}
    for metric in METRICS:
        x, y = curve(row, "members curve", metric) or ([], [])
        if members in x:
            values[metric] = y[x.index(members)]
    return values


def _intervals(row: Row, members: float) -> dict[str, Interval]:
    """The curve has one inference of each member: more would be another value."""
    if row.made["members"] != members or row.made.get("draws", 1) != 1:
        return {}
    found = {metric: row.interval(TEST, metric) for metric in METRICS}
    return {metric: interval for metric, interval in found.items() if interval is not None}


def _seconds(row: Row) -> float | None:
    """Blocks of members are timed by the names of set and row."""
    timings = row.views[0].about.get("timings") or {}
    own = [s for name, s in timings.items() if name.startswith(f"{row.set_name}/{row.method} ")]
    return sum(own) / row.made["members"] if own else None


def trade_table(rows: Rows) -> Html | None:
    found = trades(rows)
    if not found:
        return None
    names = [name for name in METRICS if any(name in p.values for t in found for p in t.points)]
    heads = [tag("th", "method", scope="col", class_="name"), tag("th", "epochs", scope="col")]
    heads += [
        tag("th", shown(name).label, tag("small", shown(name).unit), scope="col") for name in names
    ]
    heads.append(tag("th", "training", tag("small", "s a member"), scope="col"))
    body = [
        tag(
            "tr",
            tag("th", name, scope="row", class_="name"),
            *(tag("td", value, tag("small", span) if span else None) for value, span in cells),
        )
        for name, cells in _cells(found, names)
    ]
    caption = "Epochs of training against distance to HMC"
    return table(
        tag("thead", tag("tr", *heads)), tag("tbody", *body), caption=caption, class_="results"
    )


def _cells(found: list[Trade], names: list[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Of each row its name, and the value and interval of each cell."""
    for trade in found:
        for point in trade.points:
            cells = [(f"{point.epochs:,}", "")]
            for name in names:
                value, interval = point.values.get(name), point.intervals.get(name)
                text = DASH if value is None else shown(name).text(value)
                ends = (interval.low, interval.high) if interval else ()
                cells.append((text, " to ".join(map(shown(name).text, ends))))
            cells.append((DASH if point.seconds is None else f"{point.seconds:.1f}", ""))
            yield f"{trade.name}, {words('members', trade.members)}", cells


def trade_lines(rows: Rows) -> Iterator[str]:
    """Markdown."""
    found = trades(rows)
    if not found:
        return
    names = [name for name in METRICS if any(name in p.values for t in found for p in t.points)]
    heads = [f"{name} ({shown(name).unit})" if shown(name).unit else name for name in names]
    yield from ("", "## Epochs of training against distance to HMC", "", NOTE, "")
    yield f"| | epochs | {' | '.join(heads)} | training, s a member |"
    yield "| --- " * (len(heads) + 3) + "|"
    for name, cells in _cells(found, names):
        said = [f"{value} ({span})" if span else value for value, span in cells]
        yield f"| {name} | {' | '.join(said)} |"
