"""The one error type for bad input, and help with names that are almost right."""

import difflib
from collections.abc import Collection, Iterable


class InputError(ValueError):
    """Bad input, found before any work was done. The message names the value and the remedy.

    >>> import stochens
    >>> stochens.Dropout(1.5)
    Traceback (most recent call last):
    stochens.errors.InputError: drop rate must be in [0, 1), got 1.5
    """


class Unsuited(InputError):
    """One method cannot be trained on this network, in this way; another one may."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'dropout'?"` when a known name is near, else `""`.

    >>> did_you_mean("dropuot", ["dropout", "regular"])
    "; did you mean 'dropout'?"
    >>> did_you_mean("zebra", ["dropout", "regular"])
    ''
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is none of the known ones.

    >>> check_known("schedule", "cosin", ["cosine", "step"])
    Traceback (most recent call last):
    stochens.errors.InputError: unknown schedule 'cosin'; did you mean 'cosine'? Known: cosine, step
    """
    if name not in known:
        hint = did_you_mean(str(name), known) or "."
        raise InputError(f"unknown {what} {name!r}{hint} Known: {', '.join(known)}")
