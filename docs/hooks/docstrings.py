"""Docstrings as Markdown: examples become code, and lines of `option: what it is` a list."""

import re
from typing import Any

import griffe

OPTION = re.compile(r"^([a-z_][\w, ]*): (?=\S)")


class Readable(griffe.Extension):
    """Griffe calls it with every object that it finds."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """
    >>> print(markdown("x: what goes in\\n    and how\\n\\n>>> 1 + 1\\n2"))
    - `x`: what goes in
        and how
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = re.split(r"\n\s*\n", docstring.strip("\n"))
    return "\n\n".join(_paragraph(text) for text in paragraphs)


def _paragraph(text: str) -> str:
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{text}\n```"
    lines = text.split("\n")
    if not OPTION.match(lines[0]) or lines[0].endswith(":"):
        return text
    return "\n".join(
        OPTION.sub(lambda m: f"- `{m[1]}`: ", line) for line in lines
    )
