"""Claims about CIFAR rows as tables, of the page and of Markdown."""

from collections.abc import Iterator, Sequence

from stochens_lab.report.cifar.claims import Cell, Claim, claims, image_lines, measured_by
from stochens_lab.report.cifar.paired import MEASURES, RESAMPLES, Paired
from stochens_lab.report.cifar.rows import Rows, set_title
from stochens_lab.report.page.html import DASH, Html, join, table, tag

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


def claims_table(rows: Rows) -> Html | None:
    """Claims of the paper, and under them what more images to learn from change."""
    paired = Paired(rows)
    found, lines = claims(rows, paired), image_lines(rows, paired)
    title = f"Claims about {set_title(rows.set_name)}"
    parts = []
    if found:
        parts += [tag("p", HOW, CLAIMS, EQUAL, class_="note"), _table(found, "claim", title)]
    if lines:
        note = CHANGE if found else CHANGE + HOW
        parts += [tag("h4", "Fewer images to learn from"), tag("p", note, class_="note")]
        parts.append(_table(lines, "images", f"{set_title(rows.set_name)}: fewer images"))
    return join(parts) if parts else None


def _table(found: Sequence[Claim], first: str, title: str) -> Html:
    measures = [name for name in MEASURES if any(name in claim.cells for claim in found)]
    heads = [tag("th", first, scope="col", class_="name")]
    for name in measures:
        metric = measured_by(name)
        heads.append(tag("th", metric.label, tag("small", metric.unit), scope="col"))
    body = [
        tag(
            "tr",
            tag("th", claim.name, tag("small", claim.about), scope="row", class_="name"),
            *(_cell(claim, claim.cells.get(name)) for name in measures),
        )
        for claim in found
    ]
    parts = tag("thead", tag("tr", *heads)), tag("tbody", *body)
    return table(*parts, caption=title, class_="results claims")


def _cell(claim: Claim, cell: Cell | None) -> Html:
    if cell is None:
        return tag("td", DASH)
    value = tag("data", cell.text, value=repr(cell.interval.value))
    pair = tag("small", cell.said) if cell.said else None
    verdict = tag("small", tag("b", claim.verdicts[cell.verdict]))
    return tag("td", value, tag("small", cell.span), pair, verdict, class_=cell.verdict)


def claim_lines(rows: Rows) -> Iterator[str]:
    """Markdown: a line for each claim and measure."""
    paired, name = Paired(rows), set_title(rows.set_name)
    found, lines = claims(rows, paired), image_lines(rows, paired)
    yield from _lines(found, f"{name}: claims", HOW + CLAIMS + EQUAL)
    note = CHANGE if found else CHANGE + HOW
    yield from _lines(lines, f"{name}: fewer images to learn from", note.strip())


def _lines(found: Sequence[Claim], title: str, note: str) -> Iterator[str]:
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
                f"| {name} | {cell.metric.label}{unit} | {cell.text} ({cell.span}) | {cell.said} "
                f"| {claim.verdicts[cell.verdict]} |"
            )
            name = ""
