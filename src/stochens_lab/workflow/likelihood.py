"""A likelihood by its name and the options that were typed; which those are, it states itself."""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_origin, get_type_hints

from stochens.errors import InputError, check_known
from stochens.likelihoods import LIKELIHOODS, Likelihood


def option_names(*names: str) -> list[str]:
    """The options of these likelihoods, or of all.

    >>> option_names("quantiles")
    ['levels', 'missing', 'scale']
    """
    kinds = [LIKELIHOODS[name] for name in names or LIKELIHOODS]
    return sorted({field.name for kind in kinds for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def make_named(name: str, options: Sequence[str] = ()) -> Likelihood:
    """One of LIKELIHOODS, with options NAME=VALUE.

    >>> make_named("quantiles", ["levels=0.1,0.5,0.9", "missing=mask"])
    Quantiles(levels=(0.1, 0.5, 0.9), scale=1.0, missing='mask')
    """
    check_known("--likelihood", name, LIKELIHOODS)
    kind, given = LIKELIHOODS[name], {}
    for typed in options:
        option, found, text = typed.partition("=")
        if not found:
            raise InputError(f"--option must be NAME=VALUE, got {typed[:80]!r}")
        known = option_names(name)
        if not known:
            raise InputError(f"--likelihood {name} has no options, got --option {typed[:80]}")
        check_known(f"--option of {name}", option, known)
        if option in given:
            raise InputError(f"--option {option} is given twice")
        given[option] = _read(text, get_type_hints(kind)[option])
    try:
        return kind(**given)
    except InputError as error:
        raise InputError(f"--option: {error}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"--option {', '.join(options)}: {error}") from None


def _read(text: str, hint: Any) -> Any:
    """As Python would have it: several numbers, one, None or a word.

    >>> _read("0.1,0.9", tuple[float, ...] | None), _read("3", int), _read("mask", str)
    ((0.1, 0.9), 3, 'mask')
    """
    if text.lower() == "none":
        return None
    kinds = getattr(hint, "__args__", ()) if get_origin(hint) is not tuple else (hint,)
    if any(get_origin(kind) is tuple for kind in kinds):
        return tuple(_number(part) for part in text.split(","))
    return _number(text)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
