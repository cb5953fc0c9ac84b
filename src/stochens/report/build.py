"""One HTML page on a model: how good it is, how sure, where it fails, and how it was trained."""

from stochens.metrics import Interval
from stochens.report.content import Content
from stochens.report.parts import Definitions, Note
from stochens.report.sections import list_sections, measure
from stochens.report.shell import dress, open_templates
from stochens.report.tables import interval_text
from stochens.report.text import format_number, join_words

LED_BY = ("accuracy", "mIoU", "exact match", "RMSE", "CRPS", "95 % coverage", "ECE")
MOST_LED = 3


def build_report(content: Content) -> str:
    """The page, as text: it opens from disk and asks nothing of a network."""
    rows = measure(content)
    facts = Definitions(list(content.facts), "facts")
    return (
        open_templates()
        .get_template("report.html")
        .render(
            title=content.title,
            **dress(),
            opening=[*_lead(content, rows), facts],
            sections=list_sections(content, rows),
        )
    )


def _lead(content: Content, rows: dict[str, Interval]) -> list[Note]:
    """The first measures in a sentence."""
    found = [name for name in LED_BY if name in rows][:MOST_LED]
    if not found:
        return []
    words = join_words(
        f"{name} {format_number(rows[name].value)} ({interval_text(rows[name])})"
        if interval_text(rows[name])
        else f"{name} {format_number(rows[name].value)}"
        for name in found
    )
    examples = "example" if len(content.y) == 1 else "examples"
    return [Note(f"On {len(content.y):,} {examples}: {words}.", "lead")]
