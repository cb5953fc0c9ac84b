"""The error types, for bad input and for work that failed, and help with names almost right and
with whom a warning is for."""

import difflib
import inspect
import types
from collections.abc import Collection, Iterable

OURS = __name__.partition(".")[0]
# What calls us in the place of whoever called it: pipelines and searches, and their decorators
BETWEEN = ("sklearn", "joblib", "contextlib", "functools")


class InputError(ValueError):
    """Bad input, found before any work was done. The message names the value and the remedy.

    >>> import stochens
    >>> stochens.Dropout(1.5)
    Traceback (most recent call last):
    stochens.errors.InputError: drop rate must be in [0, 1), got 1.5
    """


class Unsuited(InputError):
    """One method cannot be trained on this network, in this way; another one may."""


class Failed(RuntimeError):
    """Work that was begun on good input, and of which nothing came: all members diverged, or the
    machines and processes that did it were lost. The message names what failed and the remedy.

    >>> import stochens
    >>> data = stochens.toy_set("a", n=40)
    >>> stochens.langevin(stochens.MLP(2, 5, 2), data, members=2, steps=9, step_size=1e9)
    Traceback (most recent call last):
    stochens.errors.Failed: all 2 members diverged: step_size = 1e+09 is too large; try 5e+08
    """


class TrainingAdvice(UserWarning):
    """Something that would train, or has trained, and badly."""


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


def _package(frame: types.FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")  # __package__ is None in a script
    return name.partition(".")[0]


def outside() -> int:
    """The stack level, for a warning of the caller, of whoever called into this library, or into a
    pipeline of scikit-learn that called it."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_back is not None and _package(frame) in (OURS, *BETWEEN):
        level, frame = level + 1, frame.f_back
    return level
