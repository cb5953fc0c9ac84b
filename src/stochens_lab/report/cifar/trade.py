"""What longer training buys: rows of one method that differ in epochs, at the same members."""

from typing import NamedTuple

from stochens.metrics import Interval
from stochens.report.tables import Cell, Head, Table
from stochens.report.tables import Row as TableRow
from stochens_lab.report.cifar.numbers import read_curve
from stochens_lab.report.cifar.rows import SETTINGS, Row, Rows, describe_metric, phrase_setting
from stochens_lab.report.paper import TEST

METRICS = ("agreement", "variance", "accuracy", "NLL")
FREE = ("members", "epochs", "draws", "seed", "test_images")  # the rest must be the same
TITLE = "Epochs of training against distance to HMC"
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
    points: list[Point]

    def series(self, metric: str) -> tuple[list[float], list[float]]:
        found = [(float(p.epochs), p.values[metric]) for p in self.points if metric in p.values]
        return [x for x, _ in found], [y for _, y in found]


def find_trades(rows: Rows) -> list[Trade]:
    """One for each method and recipe of which there are two lengths of training."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows.distinct:
        if "epochs" in row.settings and read_curve(row, "members curve", "agreement") is not None:
            recipe = tuple(row.settings.get(key) for key in SETTINGS if key not in FREE)
            groups.setdefault((row.method, *recipe), []).append(row)
    several = {key: found for key, found in groups.items() if len(_list_epochs(found)) > 1}
    methods = [key[0] for key in several]
    return [
        _build_trade(found, with_images=methods.count(key[0]) > 1)
        for key, found in several.items()
        if set.intersection(*map(_list_counts, found))
    ]


def _list_epochs(rows: list[Row]) -> list[int]:
    return sorted({row.settings["epochs"] for row in rows})


def _list_counts(row: Row) -> set[float]:
    found = read_curve(row, "members curve", "agreement")
    return set() if found is None else set(found[0])


def _build_trade(found: list[Row], *, with_images: bool) -> Trade:
    members = max(set.intersection(*map(_list_counts, found)))
    largest = max(found, key=lambda row: row.settings["members"])
    points = []
    for epochs in _list_epochs(found):
        # The run with most members has most ensembles of this size to take the mean of.
        own = [row for row in found if row.settings["epochs"] == epochs]
        row = max(own, key=lambda row: row.settings["members"])
        point = Point(
            epochs,
            row,
            _read_values(row, members),
            _read_intervals(row, members),
            _measure_seconds(row),
        )
        points.append(point)
    name = largest.method
    if with_images and "images" in largest.settings:
        name += f", {phrase_setting('images', largest.settings['images'])}"
    return Trade(name, int(members), points)


def _read_values(row: Row, members: float) -> dict[str, float]:
    values = {}
    for metric in METRICS:
        x, y = read_curve(row, "members curve", metric) or ([], [])
        if members in x:
            values[metric] = y[x.index(members)]
    return values


def _read_intervals(row: Row, members: float) -> dict[str, Interval]:
    """The curve has one inference of each member: more would be another value."""
    if row.settings["members"] != members or row.settings.get("draws", 1) != 1:
        return {}
    found = {metric: row.interval(TEST, metric) for metric in METRICS}
    return {metric: interval for metric, interval in found.items() if interval is not None}


def _measure_seconds(row: Row) -> float | None:
    """Blocks of members are timed by the names of set and row."""
    timings = row.views[0].about.get("timings") or {}
    own = [s for name, s in timings.items() if name.startswith(f"{row.set_name}/{row.method} ")]
    return sum(own) / row.settings["members"] if own else None


def build_trade_table(rows: Rows) -> Table | None:
    found = find_trades(rows)
    if not found:
        return None
    names = [name for name in METRICS if any(name in p.values for t in found for p in t.points)]
    metrics = [describe_metric(name) for name in names]
    heads = [Head("method"), Head("epochs"), *(Head(m.label, m.unit) for m in metrics)]
    lines = [
        TableRow(
            f"{trade.name}, {phrase_setting('members', trade.members)}",
            [
                Cell(f"{point.epochs:,}"),
                *(_build_cell(point, name) for name in names),
                Cell() if point.seconds is None else Cell(f"{point.seconds:.1f}"),
            ],
        )
        for trade in found
        for point in trade.points
    ]
    return Table(TITLE, [*heads, Head("training", where="s a member")], lines, style="results")


def _build_cell(point: Point, name: str) -> Cell:
    value, interval = point.values.get(name), point.intervals.get(name)
    if value is None:
        return Cell()
    metric = describe_metric(name)
    ends = (interval.low, interval.high) if interval else ()
    return Cell(metric.text(value), interval=" to ".join(map(metric.text, ends)))
