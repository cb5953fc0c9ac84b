"""What the paper says of its toy experiment, and whether this run bears it out."""

from typing import Literal, NamedTuple

from stochens.metrics import Interval
from stochens_lab.report.page.parts import Note, Part
from stochens_lab.report.paper import EXPERIMENT
from stochens_lab.report.tables import Cell, Head, Row, Table
from stochens_lab.report.text import MINUS, join_words
from stochens_lab.report.view import View, name_domain, unique

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


def show_claims(view: View) -> list[Part]:
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


def _build_row(view: View, claim: Claim, places: list[tuple[str, str]]) -> Row | None:
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
        cells.append(Cell(change, verdict=VERDICTS[verdict], mark=verdict))
    name = f"{claim.method} is {claim.says} than {claim.other}"
    return Row(name, cells, claim.whose) if any(cell.verdict for cell in cells) else None


def _format_percent(share: float) -> str:
    """
    >>> _format_percent(0.123), _format_percent(-0.001)
    ('+12 %', '0 %')
    """
    whole = round(100 * share)
    return f"{whole:+d} %".replace("-", MINUS) if whole else "0 %"


def _tell_set_distance(view: View) -> list[Part]:
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
