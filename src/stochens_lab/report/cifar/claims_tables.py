"""Claims about CIFAR rows as tables, of the page and of Markdown."""

from collections.abc import Iterator, Sequence

from stochens_lab.report.cifar.claims import (
    Claim,
    check_claims,
    compare_images,
    describe_measure,
)
from stochens_lab.report.cifar.paired import MEASURES, RESAMPLES, Paired
from stochens_lab.report.cifar.rows import Rows, name_set
from stochens_lab.report.page.parts import Heading, Note, Part
from stochens_lab.report.tables import Cell, Head, Row, Table

HOW = (
    "How much closer to HMC the first row is than the second, on the same test images. Under the "
    f"difference stand its 95\u00a0% interval, over {RESAMPLES:,} draws of those images, the same "
    "for both rows, and the two distances to HMC. The distance is the absolute difference to HMC's "
    "own value for accuracy and NLL; the share of images without agreement; the variance; and for "
    "the entropy histogram the Wasserstein-1 distance: how many nats the predictive entropies "
    "would have to move, on average, to be distributed as HMC's. "
)
CLAIMS = (
    "A claim holds where the whole interval is above 0, and does not where it is below. Of each "
    "method this is the row with most members, and of several drop rates with as many the closest "
    "by variance. The intervals tell what other test images would change; what another seed of "
    "training would is not in them. "
)
EQUAL = (
    "The paper itself says of the entropy histogram that SE1 and MultiSWA do equally well on "
    "CIFAR-10."
)
CHANGE = "The first row learnt from fewer images. "


def build_claims(rows: Rows) -> list[Part]:
    """Claims of the paper, and under them what more images to learn from change."""
    paired, name = Paired(rows), name_set(rows.set_name)
    found, lines = check_claims(rows, paired), compare_images(rows, paired)
    parts: list[Part] = []
    if found:
        table = _build_table(found, "claim", f"Claims about {name}")
        parts += [Note(HOW + CLAIMS + EQUAL), table]
    if lines:
        parts += [Heading("Fewer images to learn from"), Note(CHANGE if found else CHANGE + HOW)]
        parts.append(_build_table(lines, "images", f"{name}: fewer images"))
    return parts


def _build_table(found: Sequence[Claim], first: str, title: str) -> Table:
    measures = [name for name in MEASURES if any(name in claim.cells for claim in found)]
    metrics = [describe_measure(name) for name in measures]
    rows = [
        Row(claim.name, [_build_cell(claim, name) for name in measures], claim.about)
        for claim in found
    ]
    heads = [Head(first), *(Head(metric.label, metric.unit) for metric in metrics)]
    return Table(title, heads, rows, style="results claims")


def _build_cell(claim: Claim, name: str) -> Cell:
    cell = claim.cells.get(name)
    if cell is None:
        return Cell()
    return Cell(
        cell.text,
        cell.interval.value,
        cell.span_text,
        notes=(cell.pair_text,) if cell.pair_text else (),
        verdict=claim.verdicts[cell.verdict],
        mark=cell.verdict,
    )


def format_claims(rows: Rows) -> Iterator[str]:
    """Markdown: a line for each claim and measure."""
    paired, name = Paired(rows), name_set(rows.set_name)
    found, lines = check_claims(rows, paired), compare_images(rows, paired)
    yield from _format_lines(found, f"{name}: claims", HOW + CLAIMS + EQUAL)
    note = CHANGE if found else CHANGE + HOW
    yield from _format_lines(lines, f"{name}: fewer images to learn from", note.strip())


def _format_lines(found: Sequence[Claim], title: str, note: str) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"## {title}", "", note, "")
    yield "| | measure | closer by, or value (95 % interval) | distances | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for claim in found:
        name = f"{claim.name} ({claim.about})".replace("|", "\\|").replace("\u00a0", " ")
        for measure in (m for m in MEASURES if m in claim.cells):
            cell = claim.cells[measure]
            unit = f" ({cell.metric.unit})" if cell.metric.unit else ""
            yield (
                f"| {name} | {cell.metric.label}{unit} | {cell.text} ({cell.span_text}) "
                f"| {cell.pair_text} | {claim.verdicts[cell.verdict]} |"
            )
            name = ""
