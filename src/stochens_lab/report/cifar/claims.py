"""What the paper says of CIFAR, and whether these runs bear it out: on the page and as Markdown."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from stochens.metrics import Interval
from stochens.report.parts import Note
from stochens.report.tables import Cell, Head, Table
from stochens.report.tables import Row as TableRow
from stochens.report.text import join_words
from stochens_lab.report.cifar.paired import MEASURES, RESAMPLES, Paired
from stochens_lab.report.cifar.rows import (
    Row,
    Rows,
    describe_metric,
    family,
    name_set,
)
from stochens_lab.report.page.parts import Part, embolden
from stochens_lab.report.paper import CIFAR, TEST, paper_value
from stochens_lab.report.view import Metric

METHOD = "SE1"
OTHERS = ("regular", "MultiSWA", "cSGHMC", "SE2", "SE3")
REACHED = ("agreement", "variance")  # what the paper's SE1 is held to
HOLDS, FAILS, UNCLEAR = "holds", "fails", "unclear"
VERDICTS = {HOLDS: "it holds", FAILS: "it does not", UNCLEAR: "no clear difference"}


class Comparison(NamedTuple):
    """`interval` is by how much the first row is closer, or its own value; `pair` the distances."""

    measure: str
    interval: Interval
    verdict: str
    pair: tuple[float, float] | None = None

    @property
    def metric(self) -> Metric:
        return describe_metric(self.measure)

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


def check_claims(rows: Rows, paired: Paired) -> list[Claim]:
    """SE1 is closer to the reference than each of the others, and as close as the paper's."""
    one = find_largest(rows, METHOD)
    if one is None:
        return []
    found = []
    for name in OTHERS:
        other = find_largest(rows, name)
        if other is None:
            continue
        differences = paired.compare(one, other)
        cells = {m: Comparison(m, by, judge(by), pair) for m, (by, pair) in differences.items()}
        if cells:
            same = one.recipe == other.recipe
            about = f"both {one.recipe}" if same else f"{one.recipe} against {other.recipe}"
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
    usual = Counter(row.settings.get("images") for row in rows.distinct)
    found = [row for row in rows.distinct if family(row.method) == name]

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


NOTE = (
    "How much closer to HMC the first row is than the second, on the same test images. Under the "
    f"difference stand its 95\u00a0% interval, over {RESAMPLES:,} draws of those images, the same "
    "for both rows, and the two distances to HMC. The distance is the absolute difference to HMC's "
    "own value for accuracy and NLL; the share of images without agreement; the variance; and for "
    "the entropy histogram the Wasserstein-1 distance: how many nats the predictive entropies "
    "would have to move, on average, to be distributed as HMC's. A claim holds where the whole "
    "interval is above 0, and does not where it is below. Of each method this is the row with most "
    "members, and of several drop rates with as many the closest by variance. The intervals tell "
    "what other test images would change; what another seed of training would is not in them. The "
    "paper itself says of the entropy histogram that SE1 and MultiSWA do equally well on CIFAR-10."
)


def build_claims(rows: Rows) -> list[Part]:
    found = check_claims(rows, Paired(rows))
    if not found:
        return []
    measures = [name for name in MEASURES if any(name in claim.cells for claim in found)]
    metrics = [describe_metric(name) for name in measures]
    lines = [
        TableRow(claim.name, [_build_cell(claim.cells.get(name)) for name in measures], claim.about)
        for claim in found
    ]
    heads = [Head("claim"), *(Head(metric.label, metric.unit) for metric in metrics)]
    title = f"Claims about {name_set(rows.set_name)}"
    return [Note(NOTE), Table(title, heads, lines, style="results claims")]


def _build_cell(cell: Comparison | None) -> Cell:
    if cell is None:
        return Cell()
    return Cell(
        cell.text,
        cell.interval.value,
        cell.span_text,
        notes=(*filter(None, [cell.pair_text]), embolden(VERDICTS[cell.verdict])),
        mark=cell.verdict,
    )


def format_claims(rows: Rows) -> Iterator[str]:
    """Markdown: a line for each claim and measure."""
    found = check_claims(rows, Paired(rows))
    if not found:
        return
    yield from ("", f"## {name_set(rows.set_name)}: claims", "", NOTE, "")
    yield "| | measure | closer by, or value (95 % interval) | distances | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for claim in found:
        name = f"{claim.name} ({claim.about})".replace("|", "\\|").replace("\u00a0", " ")
        for measure in (m for m in MEASURES if m in claim.cells):
            cell = claim.cells[measure]
            unit = f" ({cell.metric.unit})" if cell.metric.unit else ""
            yield (
                f"| {name} | {cell.metric.label}{unit} | {cell.text} ({cell.span_text}) "
                f"| {cell.pair_text} | {VERDICTS[cell.verdict]} |"
            )
            name = ""
