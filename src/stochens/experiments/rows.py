"""What the experiments share: a row of their table, and what is told of its training and of the
reference."""

import dataclasses
import math
import re
import shutil
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stochens.cluster.connect import Engines, Ray, connect, room
from stochens.data.source import source
from stochens.errors import InputError, check_known
from stochens.memory import chosen_device
from stochens.methods import DropConnect, Dropout, Gaussian, Method, NPDropout, Regular
from stochens.posteriors.diagnostics import diagnose
from stochens.posteriors.swag import multiswa
from stochens.report.run_folder import Run, RunFolder, shown
from stochens.result.posterior import Posterior
from stochens.training.engines import refuse_unknown
from stochens.training.fit import fit

BATCH, RATE = 100, 0.01  # the authors' code: Adam, divided by 10 at 1/2 and 3/4, fresh each time
LAST_PART = 0.2  # of training, over which the loss and its fluctuation are told


CHECKPOINTS, PARTS = "checkpoints", "parts"  # folders in a run's, while it runs


def opened(
    out: Path, experiment: str, config: dict[str, Any], device: str, *, resume: bool
) -> RunFolder:
    """The folder of a new run, or of one to go on with."""
    if resume:
        return RunFolder.again(out, config=config, device=device)
    return RunFolder(out, experiment=experiment, config=config, device=device)


def kept(folder: RunFolder, *names: object) -> Path:
    """Where a piece of a run's work is kept. A run that is begun again finds there what is done."""
    return folder.path / CHECKPOINTS / re.sub(r"[^A-Za-z0-9]+", "-", " ".join(map(str, names)))


def begun(folder: RunFolder) -> list[str]:
    """The names of the pieces whose work is kept."""
    return sorted(path.name for path in (folder.path / CHECKPOINTS).glob("*"))


def finished(folder: RunFolder) -> Path:
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


def reached(engine: str, address: str | None, device: str | None) -> str:
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


def made_again(kind: Callable[..., Made], fields: dict[str, Any]) -> Made:
    """A Config from what a run wrote of it."""
    try:
        return kind(**fields)
    except TypeError as error:
        raise InputError(f"{fields['out']} was made by another version: {error}") from None


def taken_over(
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
    with shown([path]):
        return {**about["config"], "out": path}


def fields(
    presets: Mapping[str, dict[str, Any]], preset: str | None, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Of a Config: those of the preset, and those that are changed; None leaves one as it is."""
    preset = preset or "quick"
    check_known("preset", preset, presets)
    changed = {name: v for name, v in changes.items() if v is not None}
    return {"preset": preset} | presets[preset] | changed


def schedule(examples: int, steps: int) -> dict[str, Any]:
    """The authors' way to train, for so many steps: options of `fit`."""
    batch = min(BATCH, examples)
    return {
        "optimizer": "adam",
        "lr": RATE,
        "schedule": "step",
        "batch_size": batch,
        "epochs": max(1, round(steps / math.ceil(examples / batch))),
    }


Train = Callable[..., Posterior]  # (net, data, *, steps, and options of `fit`)


def _by_fit(method: Method) -> Train:
    def train(net: nn.Module, data: Any, *, steps: int, **options: Any) -> Posterior:
        settings = schedule(source(data).size, steps)
        return fit(net, data, method=method, **settings, **options)

    return train


def _by_swa(net: nn.Module, data: Any, *, steps: int, **options: Any) -> Posterior:
    settings = schedule(source(data).size, steps) | {"schedule": "constant"}
    return multiswa(net, data, **settings, **options)


ENSEMBLES: dict[str, Train] = {
    "regular": _by_fit(Regular()),
    "MultiSWA": _by_swa,
    "SE1": _by_fit(Dropout(0.1)),
    "SE2": _by_fit(DropConnect(0.1)),
    "SE3": _by_fit(NPDropout()),
    "gaussian": _by_fit(Gaussian(0.1, learn=True)),
}


@dataclasses.dataclass(frozen=True)
class Training:
    """One row of the table: a method under a schedule."""

    name: str
    train: Callable[..., Posterior]
    steps: int
    start: str = "default"
    replicas: bool = True  # whether it takes several data draws at once


def summary(reference: Posterior, at: Tensor) -> dict[str, Any]:
    """The sampler's diagnostics as plain numbers; R-hat and ESS where arviz is installed."""
    assert reference.chains is not None
    chains = reference.chains
    about: dict[str, Any] = {
        "sampler": chains.sampler,
        "chains": chains.count,
        "draws": len(reference) // chains.count,
        "divergences": int(chains.stats["diverged"].sum()),
        "accept": float(chains.stats["accept"].mean()),
        "leapfrogs": float(chains.stats["leapfrogs"].mean()),
    }
    try:
        found = diagnose(reference, at)
    except InputError as error:  # no arviz
        return about | {"troubles": [str(error)]}
    assert found.e_bfmi is not None
    about |= {"e_bfmi": float(found.e_bfmi.min()), "troubles": found.troubles}
    for name, m in (("predictions", found.predictions), ("parameters", found.parameters)):
        if m is not None:
            about[name] = {
                "rhat": float(m.rhat.max()),
                "ess_bulk": float(m.ess_bulk.min()),
                "ess_tail": float(m.ess_tail.min()),
            }
    return about


def course(posterior: Posterior, row: Training) -> dict[str, Any]:
    """KL terms, the training KL loss over the last part of training, its fluctuation and course."""
    history = posterior.history
    about = {"steps": row.steps, "start": row.start, "kl": posterior.kl()._asdict()}
    if history is None:  # nothing was minimised
        return about
    loss, fluctuation = history.loss.double(), history.loss_sd.double()  # [E, M]
    last = slice(-max(1, round(LAST_PART * len(loss))), None)
    keep = torch.linspace(0, len(loss) - 1, min(len(loss), 100)).round().long()
    return about | {
        "loss": float(loss[last].mean()),
        "loss_sd": float(fluctuation[last].mean()),
        "course": {
            "step": [round((int(e) + 1) / len(loss) * row.steps) for e in keep],
            "loss": loss.mean(1)[keep].tolist(),
            "sd": loss.std(1, correction=0)[keep].tolist(),
        },
    }
