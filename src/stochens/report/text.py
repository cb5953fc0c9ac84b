"""Numbers, durations and lists as words of a sentence or of a table."""

from collections.abc import Iterable
from typing import Any

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def format_number(value: Any, digits: int = 3) -> str:
    """A readable number: digits after the point, or powers of ten where they would not do.

    >>> format_number(0.0123), format_number(82590.8, 1), format_number(1.7e-15, 1)
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


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(12.34), format_duration(689.7), format_duration(7322)
    ('12.3 s', '11 min 30 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def join_words(words: Iterable[Any]) -> str:
    """
    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    found = [str(word) for word in words]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
