"""What MkDocs does not do: sections of result tables, and equations that need no script."""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"<!-- from (\S+): (.+?) -->")
INLINE = re.compile(
    r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL
)
BLOCK = re.compile(
    r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL
)


def on_page_markdown(text: str, **_: Any) -> str:
    """Put a section of a file in the place of `<!-- from FILE: HEADING -->`."""
    return SECTION.sub(lambda m: section(ROOT / m[1], m[2]), text)


def section(file: Path, heading: str) -> str:
    """What stands under a heading, up to the next of its kind."""
    parts = re.split(r"^## (.+)$", file.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading].strip()


def on_page_content(text: str, **_: Any) -> str:
    """Equations as MathML, which browsers draw themselves."""
    text = BLOCK.sub(
        lambda m: convert(html.unescape(m[1].strip()), display="block"),
        text,
    )
    return INLINE.sub(lambda m: convert(html.unescape(m[1].strip())), text)
