"""An HTML page as the tests read it."""

import re
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Checks that tags are balanced, and collects what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""
        self.numbers: list[Any] = []
        self.headings: list[Any] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        about = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self.numbers.append(float(about["value"]))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in about:
            self.ids.append(about["id"])
        self.links += [about[name] for name in ("href", "src") if name in about]
        assert not any(name.startswith("on") for name in about), about

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data
