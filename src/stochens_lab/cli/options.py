"""The options of a command are the fields of its Config; nothing is typed a second time."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

Command = Callable[..., None]


def take_options(config: type) -> Callable[[Command], Command]:
    """Give a command(..., **given) an option for each field of the Config that has a typer.Option.

    `given` holds them by the field's name: None where an option was not typed, so that the Config,
    a preset or the run that is gone on with has the word. The command's own options come last; a
    parameter of it that is named like such a field is that field's option, and not in `given`.
    """

    def decorate(command: Command) -> Command:
        parameters = {p.name: p for p in _make_parameters(config)}
        for name, own in inspect.signature(command).parameters.items():
            if own.kind is not own.VAR_KEYWORD:
                parameters.setdefault(name, own)

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**{n: tuple(v) or None if isinstance(v, list) else v for n, v in given.items()})

        called.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
        called.__annotations__ = {name: p.annotation for name, p in parameters.items()}
        return called

    return decorate


def _make_parameters(config: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        kind, *notes = get_args(hints[field.name]) or [None]
        option = next((note for note in notes if isinstance(note, OptionInfo)), None)
        if option is None:
            continue
        option = copy.copy(option)
        default = "" if field.default is MISSING else field.default
        option.help = (option.help or "").format(default=default)
        if kind is bool:  # else there would be --no-... too, which says what not typing it says
            option.default = "--" + field.name.replace("_", "-")
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_to_typer(kind, option) | None, option],
        )


def _to_typer(kind: Any, option: OptionInfo) -> Any:
    """What typer reads: a tuple of texts is an option that may be repeated, unless it is parsed."""
    if option.parser is not None:
        return str
    return list[get_args(kind)[0]] if get_origin(kind) is tuple else kind  # type: ignore[misc]
