"""Equations as MathML, which browsers draw themselves: the site needs no script from elsewhere."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(page: str, **_: Any) -> str:
    """MkDocs calls it with the HTML of each page."""
    page = BLOCK.sub(lambda m: convert(html.unescape(m[1].strip()), display="block"), page)
    return INLINE.sub(lambda m: convert(html.unescape(m[1].strip())), page)
