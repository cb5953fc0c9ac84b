"""Configs: a frozen dataclass of what a run is made of, its options, and the way to JSON and back.

A field that is annotated with a `typer.Option` is an option of the command, which takes name, type,
help and limits from there (cli/options.py). `{default}` in a help text is the field's default.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from stochens.errors import InputError, check_known
from stochens_lab.report.run_folder import SavedRun, blame_damage


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What TAB offers for a word that is one of these."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


Members = Annotated[int, typer.Option(help="Members of each ensemble.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random: {default}.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU if there is one.")]
Engine = Annotated[
    str, typer.Option(help="How to train, as in fit: {default}; ray for many machines.")
]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster: HOST:PORT, auto or local.")]
Out = Annotated[
    Path, typer.Option(help="Folder to write to, new or empty; runs/NAME-TIME if not given.")
]

Config = TypeVar("Config")


def merge_preset(
    presets: Mapping[str, dict[str, Any]], preset: str | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of a Config: those of the preset, and those that are changed; None changes nothing."""
    preset = preset or "quick"
    check_known("preset", preset, presets)
    return {"preset": preset} | presets[preset] | drop_none(changes)


def drop_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were typed: what was not is None."""
    return {name: value for name, value in changes.items() if value is not None}


def config_to_json(config: Any) -> dict[str, Any]:
    """The fields as JSON has them: a path is a text."""
    fields = dataclasses.asdict(config)
    return {name: str(v) if isinstance(v, Path) else v for name, v in fields.items()}


def read_fields(kind: type, path: Path, experiment: str) -> dict[str, Any]:
    """The fields that the Config of a stopped run had, each checked against its type.

    run.json is a file like any other: what it says may be anything.
    """
    about = SavedRun(path).about
    if about.get("experiment") != experiment:
        raise InputError(
            f"{path} is no run of stochens {experiment}, but of {about.get('experiment')!r}"
        )
    with blame_damage([path]):
        fields: dict[str, Any] = {**about["config"], "out": path}
    for name, wanted in get_type_hints(kind).items():
        if name not in fields:
            continue
        value = fields[name]
        if not _fits(value, wanted):
            raise InputError(f"{path} is damaged: {name} is {value!r:.80}")
        if isinstance(value, list):
            fields[name] = tuple(value)
        elif isinstance(value, str) and _takes_path(wanted):
            fields[name] = Path(value)
    return fields


def _fits(value: Any, kind: Any) -> bool:
    """
    >>> _fits(1, float | None), _fits(True, int), _fits(["a"], tuple[str, ...]), _fits("a", Path)
    (True, False, True, True)
    """
    if get_origin(kind) is tuple:
        inside = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(_fits(part, inside) for part in value)
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, str) and _takes_path(kind):
        return True
    return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))


def _takes_path(kind: Any) -> bool:
    return Path in (kind, *get_args(kind))


def change_config(
    kind: Callable[..., Config],
    before: Mapping[str, Any],
    changes: Mapping[str, Any],
    changeable: Set[str],
) -> Config:
    """The Config of a run to go on with, from what it had and what is given anew; None leaves a
    field as it is, and what would make it another run is refused."""
    path = before["out"]
    after = dict(before)
    for name, value in changes.items():
        if value is None or value == before.get(name):
            continue
        if name not in changeable:
            raise InputError(
                f"{path} has {name} = {before.get(name)!r}, which cannot be changed to {value!r}; "
                "begin another run"
            )
        after[name] = value
    try:
        return kind(**after)
    except TypeError as error:
        raise InputError(f"{path} was made by another version: {error}") from None
