"""HTML by small functions: whatever is not already Html is escaped when it is put in."""

import html
from collections.abc import Iterable
from typing import Any

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
VOID = frozenset({"meta", "link", "input", "br"})


class Html(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element; `class_` is class, `data_set` is data-set, None and False are left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in VOID else f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """One after the other; None is left out."""
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(str(child))
            for child in children
            if child is not None
        )
    )


def table(*rows: Any, caption: Any, class_: str = "") -> Html:
    """In a box of its own that scrolls sideways, so that the page never does."""
    inner = tag("table", tag("caption", caption), *rows, class_=class_ or None)
    label = f"Table: {caption}"
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)


def number(value: Any, digits: int = 3) -> str:
    """A readable number: digits after the point, or powers of ten where they would not do.

    >>> number(0.0123), number(82590.8, 1), number(1.7e-15, 1)
    ('0.012', '82,591', '1.7e-15')
    """
    if not isinstance(value, int | float):
        return DASH if value is None else str(value)
    size = abs(value)
    if size == 0 or (isinstance(value, int) and size < 10_000):
        text = str(value) if isinstance(value, int) else "0"
    elif size >= 1e7 or size < 0.5 * 10**-digits:
        text = f"{value:.1e}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}f}"
    return text.replace("-", MINUS) if text.startswith("-") else text


def duration(seconds: float) -> str:
    """
    >>> duration(12.34), duration(689.7), duration(7322)
    ('12.3 s', '11 min 30 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def listed(words: Iterable[Any]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    found = [str(word) for word in words]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
