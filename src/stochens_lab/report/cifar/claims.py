"""What the paper says of CIFAR, and whether these runs bear it out; and what more images change."""

from collections import Counter
from typing import NamedTuple

from stochens.metrics import Interval
from stochens_lab.report.cifar.names import SETTINGS, phrase_setting
from stochens_lab.report.cifar.paired import ENTROPY, Paired
from stochens_lab.report.cifar.rows import Row, Rows, describe_metric, family
from stochens_lab.report.paper import CIFAR, TEST, paper_value
from stochens_lab.report.text import join_words
from stochens_lab.report.view import Metric

METHOD = "SE1"
OTHERS = ("regular", "MultiSWA", "cSGHMC", "SE2", "SE3")
REACHED = ("agreement", "variance")  # what the paper's SE1 is held to
HOLDS, FAILS, UNCLEAR = "holds", "fails", "unclear"
VERDICTS = {HOLDS: "it holds", FAILS: "it does not", UNCLEAR: "no clear difference"}
CHANGES = {HOLDS: "closer", FAILS: "farther", UNCLEAR: "no clear difference"}
ENTROPY_METRIC = Metric("entropy histogram", "nats", 1, 4, -1)


def describe_measure(name: str) -> Metric:
    return ENTROPY_METRIC if name == ENTROPY else describe_metric(name)


class Comparison(NamedTuple):
    """`interval` is by how much the first row is closer, or its own value; `pair` the distances."""

    measure: str
    interval: Interval
    verdict: str
    pair: tuple[float, float] | None = None

    @property
    def metric(self) -> Metric:
        return describe_measure(self.measure)

    @property
    def text(self) -> str:
        sign = "+" if self.pair and self.interval.value > 0 else ""
        return sign + self.metric.text(self.interval.value)

    @property
    def span_text(self) -> str:
        return f"{self.metric.text(self.interval.low)} to {self.metric.text(self.interval.high)}"

    @property
    def pair_text(self) -> str:
        """The two distances."""
        return "" if self.pair is None else " against ".join(map(self.metric.text, self.pair))


class Claim(NamedTuple):
    """A row of the table."""

    name: str
    about: str
    cells: dict[str, Comparison]
    verdicts: dict[str, str] = VERDICTS


def check_claims(rows: Rows, paired: Paired) -> list[Claim]:
    """SE1 is closer to the reference than each of the others, and as close as the paper's."""
    one = find_largest(rows, METHOD)
    if one is None:
        return []
    found = []
    for name in OTHERS:
        other = find_largest(rows, name)
        cells = {} if other is None else _compare(paired, one, other)
        if other is not None and cells:
            about = _phrase_recipes(one, other)
            found.append(Claim(f"{one.method} is closer to HMC than {other.method}", about, cells))
    reached = {
        name: cell for name in REACHED if (cell := _check_level(rows, one, name)) is not None
    }
    if reached:
        title = (
            f"{one.method} comes as close as the paper's {METHOD}: {_phrase_levels(rows, reached)}"
        )
        found.append(Claim(title, one.recipe, reached))
    return found


def find_largest(rows: Rows, name: str) -> Row | None:
    """Of the rows of a method: most members, then most epochs, then as many images as most rows
    have; and of several drop rates the closest by variance, as the paper chose its own."""
    usual = Counter(row.settings.get("images") for row in rows.methods)
    found = [row for row in rows.methods if family(row.method) == name]

    def key(row: Row) -> tuple[float, float, int, float]:
        variance = row.interval(TEST, "variance")
        members, epochs = (float(row.settings.get(what, 0)) for what in ("members", "epochs"))
        return (
            members,
            epochs,
            usual[row.settings.get("images")],
            -variance.value if variance else -1.0,
        )

    return max(found, key=key) if found else None


def _compare(paired: Paired, one: Row, other: Row) -> dict[str, Comparison]:
    cells = {}
    for name, by in paired.closer_by(one, other).items():
        first, second = paired.look_up(one), paired.look_up(other)
        assert first is not None
        assert second is not None
        pair = first[1].value[name], second[1].value[name]
        cells[name] = Comparison(name, by, judge(by), pair)
    return cells


def judge(by: Interval) -> str:
    """
    >>> judge(Interval(1.0, 0.5, 1.5)), judge(Interval(1.0, -0.5, 1.5))
    ('holds', 'unclear')
    """
    return HOLDS if by.low > 0 else FAILS if by.high < 0 else UNCLEAR


def _check_level(rows: Rows, row: Row, metric: str) -> Comparison | None:
    """As much as the paper's, or more: clear where the whole interval is on one side."""
    paper = paper_value(CIFAR, rows.set_name, METHOD, TEST, metric)
    interval = row.interval(TEST, metric)
    if paper is None or interval is None:
        return None
    sign = describe_metric(metric).better
    better, worse = sorted((sign * (interval.low - paper), sign * (interval.high - paper)))[::-1]
    is_so = HOLDS if worse >= 0 else FAILS if better < 0 else UNCLEAR
    return Comparison(metric, interval, is_so)


def _phrase_levels(rows: Rows, reached: dict[str, Comparison]) -> str:
    said = []
    for name, cell in reached.items():
        paper = paper_value(CIFAR, rows.set_name, METHOD, TEST, name)
        assert paper is not None
        bound = "at least" if cell.metric.better > 0 else "at most"
        unit = "\u00a0%" if cell.metric.unit == "%" else f"\u00a0·\u00a0{cell.metric.unit}"
        said.append(f"{name} {bound} {paper * cell.metric.scale:.1f}{unit}")
    return join_words(said)


def _phrase_recipes(one: Row, other: Row) -> str:
    return (
        f"both {one.recipe}"
        if one.recipe == other.recipe
        else f"{one.recipe} against {other.recipe}"
    )


def compare_images(rows: Rows, paired: Paired) -> list[Claim]:
    """Rows of one method that learnt from different numbers of images, the fewer against the more;
    of several pairs the one that differs in least else."""
    found = []
    for method in dict.fromkeys(row.method for row in rows.methods):
        own = [row for row in rows.methods if row.method == method and "images" in row.settings]
        pairs = [(a, b) for a in own for b in own if a.settings["images"] < b.settings["images"]]
        for one, other in sorted(pairs, key=lambda pair: len(_find_differences(*pair))):
            cells = _compare(paired, one, other)
            if cells:
                found.append(_build_image_claim(method, one, other, cells))
                break
    return found


def _build_image_claim(method: str, one: Row, other: Row, cells: dict[str, Comparison]) -> Claim:
    counts = [phrase_setting("images", row.settings["images"]) for row in (one, other)]
    differ = _find_differences(one, other)
    also = [
        f"{phrase_setting(k, one.settings[k])} against {phrase_setting(k, other.settings[k])}"
        for k in differ
    ]
    about = (
        f"not only images differ: {join_words(also)}"
        if also
        else f"both {_phrase_without_images(one)}"
    )
    return Claim(f"{method}: {counts[0]} against {counts[1]}", about, cells, CHANGES)


def _phrase_without_images(row: Row) -> str:
    keys = [key for key in ("members", "epochs") if key in row.settings]
    return ", ".join(phrase_setting(key, row.settings[key]) for key in keys)


def _find_differences(one: Row, other: Row) -> list[str]:
    """What else they were made with; another seed is no other recipe."""
    keys = [key for key in SETTINGS if key not in ("images", "seed")]
    return [
        k
        for k in keys
        if k in one.settings and k in other.settings and one.settings[k] != other.settings[k]
    ]
