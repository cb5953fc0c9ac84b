"""A run: its folder, and where its work is done."""

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from stochens.errors import InputError
from stochens.run.cluster.connect import Engines, Ray, connect, room
from stochens.run.memory import chosen_device
from stochens.run.options import Run
from stochens.training.engines import refuse_unknown
from stochens_lab.report.run_folder import RunFolder, SavedRun

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


def list_begun(folder: RunFolder) -> list[str]:
    """The names of the pieces whose work is kept."""
    return sorted(path.name for path in (folder.path / CHECKPOINTS).glob("*"))


def finish_run(folder: RunFolder) -> Path:
    """Close a run that is whole; returns its folder."""
    folder.write(complete=True)
    for worked_in in (CHECKPOINTS, PARTS):
        shutil.rmtree(folder.path / worked_in, ignore_errors=True)
    return folder.path


def is_whole(path: Path) -> bool:
    return bool(SavedRun(path).about.get("complete"))


def engine_of(engine: str, address: str | None, *, within: str = "auto") -> Engines:
    """What the options --engine and --address say, for `fit` and the samplers."""
    if engine == "ray":
        return Ray(address, within=within)
    refuse_unknown(engine)
    if address is not None:
        raise InputError(f"--address {address} is that of a Ray cluster; give --engine ray with it")
    return engine if within == "auto" or engine != "auto" else within


def work_in(config: Any, keep: Path, *, within: str = "auto", **options: Any) -> Run:
    """How a piece of work runs, by the Config's device, engine and address; it is kept in `keep`
    meanwhile."""
    engine = engine_of(config.engine, config.address, within=within)
    return Run(**{"device": config.device, "engine": engine, "checkpoint": keep, **options})


def find_device(engine: str, address: str | None, device: str | None) -> str:
    """Where members are trained, as in `fit`. What does not go together is refused before any work,
    and so are a cluster that does not answer and a device that is not there."""
    check_device(device, engine)
    asked_for = engine_of(engine, address)
    if not isinstance(asked_for, Ray):
        return str(choose_device(device))
    gpu = room(connect(asked_for), asked_for, device).gpu
    return device or ("cuda" if gpu else "cpu")


def check_device(name: str | None, engine: str) -> None:
    """A GPU must be here, unless other machines do the work: then this one may have none."""
    if engine != "ray":
        choose_device(name)
    elif name is not None:
        _parse_device(name)


def choose_device(name: str | None) -> torch.device:
    """The one named; the GPU if there is one where none is."""
    device = chosen_device(None) if name is None else _parse_device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: this machine has no GPU that torch can use")
    return device


def _parse_device(name: str) -> torch.device:
    with contextlib.suppress(RuntimeError):  # of a name that torch does not know
        device = torch.device(name)
        if device.type in ("cpu", "cuda"):
            return device
    raise InputError(f"--device must be cpu or cuda, got {name!r}")
