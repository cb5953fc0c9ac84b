"""A run: its folder, where its work is done, and what it was asked for."""

import re
import shutil
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import torch

from stochens.errors import InputError, check_known
from stochens.run.cluster.connect import Engines, Ray, connect, room
from stochens.run.memory import chosen_device
from stochens.training.engines import refuse_unknown
from stochens_lab.report.run_folder import Run, RunFolder, blame_damage

CHECKPOINTS, PARTS = "checkpoints", "parts"  # folders in a run's, while it runs


def open_run(
    out: Path, experiment: str, config: dict[str, Any], device: str, *, resume: bool
) -> RunFolder:
    """The folder of a new run, or of one to go on with."""
    if resume:
        return RunFolder.reopen(out, config=config, device=device)
    return RunFolder(out, experiment=experiment, config=config, device=device)


def checkpoint_folder(folder: RunFolder, *names: object) -> Path:
    """Where a piece of a run's work is kept. A run that is begun again finds there what is done."""
    return folder.path / CHECKPOINTS / re.sub(r"[^A-Za-z0-9]+", "-", " ".join(map(str, names)))


def run_begun(folder: RunFolder) -> list[str]:
    """The names of the pieces whose work is kept."""
    return sorted(path.name for path in (folder.path / CHECKPOINTS).glob("*"))


def finish_run(folder: RunFolder) -> Path:
    """Close a run that is whole; returns its folder."""
    folder.write(complete=True)
    for worked_in in (CHECKPOINTS, PARTS):
        shutil.rmtree(folder.path / worked_in, ignore_errors=True)
    return folder.path


def is_whole(path: Path) -> bool:
    return bool(Run(path).about.get("complete"))


def engine_of(engine: str, address: str | None, *, within: str = "auto") -> Engines:
    """What the options --engine and --address say, for `fit` and the samplers."""
    if engine == "ray":
        return Ray(address, within=within)
    refuse_unknown(engine)
    if address is not None:
        raise InputError(f"--address {address} is that of a Ray cluster; give --engine ray with it")
    return engine if within == "auto" or engine != "auto" else within


def find_device(engine: str, address: str | None, device: str | None) -> str:
    """Where members are trained, as in `fit`. What does not go together is refused before any work,
    and so are a cluster that does not answer and a device that is not there."""
    check_device(device, engine)
    asked_for = engine_of(engine, address)
    if not isinstance(asked_for, Ray):
        return str(device_named(device))
    gpu = room(connect(asked_for), asked_for, device).gpu
    return device or ("cuda" if gpu else "cpu")


def check_device(name: str | None, engine: str) -> None:
    """A GPU must be here, unless other machines do the work: then this one may have none."""
    if engine != "ray":
        device_named(name)
    elif name is not None:
        _device(name)


def device_named(name: str | None) -> torch.device:
    """The one named; the GPU if there is one where none is."""
    device = chosen_device(None) if name is None else _device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: this machine has no GPU that torch can use")
    return device


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device must be cpu or cuda, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {name!r}")
    return device


Made = TypeVar("Made")


def rebuild_config(kind: Callable[..., Made], fields: dict[str, Any]) -> Made:
    """A Config from what a run wrote of it."""
    try:
        return kind(**fields)
    except TypeError as error:
        raise InputError(f"{fields['out']} was made by another version: {error}") from None


def merge_changes(
    path: Path, before: dict[str, Any], changes: Mapping[str, Any], changeable: Set[str]
) -> dict[str, Any]:
    """The configuration of a run to go on with, and what is given anew; None leaves it as it is.

    What would make it another run is refused."""
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
    return after


def stopped_run(path: Path, experiment: str) -> dict[str, Any]:
    """The configuration of a run to go on with."""
    about = Run(path).about
    if about.get("experiment") != experiment:
        raise InputError(
            f"{path} is no run of stochens {experiment}, but of {about.get('experiment')!r}"
        )
    with blame_damage([path]):
        return {**about["config"], "out": path}


def fields(
    presets: Mapping[str, dict[str, Any]], preset: str | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Of a Config: those of the preset, and those that are changed; None leaves one as it is."""
    preset = preset or "quick"
    check_known("preset", preset, presets)
    changed = {name: v for name, v in changes.items() if v is not None}
    return {"preset": preset} | presets[preset] | changed
