"""Layers chosen by name: shell patterns over dotted module names, as in "encoder.*.linear1"."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from stochens.errors import Unsuited, did_you_mean

T = TypeVar("T")


def matches(patterns: Iterable[str], path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def first_match(values: Mapping[str, float], path: str, otherwise: T) -> float | T:
    """The value of the first pattern that matches, or `otherwise`.

    >>> first_match({"conv*": 0.3, "*": 0.1}, "conv1", 0.0)
    0.3
    """
    for pattern, value in values.items():
        if fnmatchcase(path, pattern):
            return value
    return otherwise


def refuse_unmatched(patterns: Iterable[str], paths: list[str]) -> None:
    """A pattern that matches no layer is a slip, and would otherwise pass unseen."""
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise Unsuited(
                f"pattern {pattern!r} matches no layer{did_you_mean(pattern, paths)}; "
                f"the layers are {', '.join(paths) or '(none)'}"
            )
