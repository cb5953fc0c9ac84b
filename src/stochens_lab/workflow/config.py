"""What `stochens fit` was asked for."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from stochens.errors import InputError, check_known, did_you_mean
from stochens.likelihoods import LIKELIHOODS
from stochens.methods import METHODS
from stochens.methods.registry import PAPER_NAMES
from stochens.training.advice import usual_method
from stochens_lab.experiments.runs import (
    check_device,
    engine_of,
    merge_changes,
    rebuild_config,
    stopped_run,
)
from stochens_lab.workflow.model import check_name

EXPERIMENT = "fit"
TAILS = ("multiswa", "multiswag")  # averages of a plain training's tail
RATED = ("dropout", "dropconnect")
NAMES = (*METHODS, *TAILS)
# of a run that goes on; its members do not see them
CHANGEABLE = {"model", "data", "device", "address"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    model: str
    data: str
    out: Path
    target: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    likelihood: str = "categorical"
    normalise: bool = False
    validation: float = 0.0
    method: str | None = None
    rate: float | None = None
    skip: tuple[str, ...] = ()
    members: int = 50
    epochs: int = 100
    batch_size: int = 128
    optimizer: str = "adam"
    lr: float | None = None
    schedule: str | None = None
    prior_precision: float = 1.0
    seed: int = 0
    device: str | None = None
    engine: str = "auto"
    address: str | None = None  # of a Ray cluster

    @property
    def regression(self) -> bool:
        return self.likelihood != "categorical"

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self) | {"out": str(self.out)}


def configured(model: str | None, data: Path | None, out: Path | None, **given: Any) -> FitConfig:
    """From the options that were typed; None leaves one as it is."""
    for name, value in (("--model", model), ("--data", data), ("--out", out)):
        if value is None:
            raise InputError(
                f"{name} is missing: stochens fit --model MODULE:FUNCTION --data FILE --out RUN"
            )
    assert model is not None
    assert data is not None
    assert out is not None
    fields = {name: value for name, value in given.items() if value is not None}
    config = FitConfig(model=model, data=str(data.resolve()), out=out, **fields)
    check(config)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not empty; choose another folder")
    return config


def resumed(path: Path, **changes: Any) -> FitConfig:
    """What the run in this folder was asked for; only what leaves its members alone may change."""
    before = stopped_run(path, EXPERIMENT)
    _check_types(before, path)
    if changes.get("data") is not None:
        changes["data"] = str(Path(changes["data"]).resolve())
    config = rebuild_config(FitConfig, merge_changes(path, before, changes, CHANGEABLE))
    check(config)
    return config


def check(config: FitConfig) -> None:
    """Everything that is wrong with the options alone."""
    check_name(config.model)
    check_known("--likelihood", config.likelihood, LIKELIHOODS)
    if method_name(config) not in NAMES:
        hint = did_you_mean(method_name(config), [*NAMES, *PAPER_NAMES])
        raise InputError(
            f"unknown --method {config.method!r}{hint or '.'} Known: {', '.join(NAMES)}"
        )
    if config.rate is not None and method_name(config) not in RATED:
        raise InputError(f"--rate is for {' and '.join(RATED)}, not for {method_name(config)}")
    if not 0 <= config.validation < 1:
        raise InputError(f"--validation must be a share in [0, 1), got {config.validation}")
    for name in ("members", "epochs"):
        if getattr(config, name) < 1:
            raise InputError(f"--{name} must be at least 1, got {getattr(config, name)}")
    if config.batch_size < 0:
        raise InputError(f"--batch-size must be at least 1, or 0 for all, got {config.batch_size}")
    if not config.prior_precision > 0 or not math.isfinite(config.prior_precision):
        raise InputError(f"--prior-precision must be above 0, got {config.prior_precision}")
    check_device(config.device, config.engine)
    engine_of(config.engine, config.address)


def method_name(config: FitConfig) -> str:
    """dropout for SE1, and so on; where none was named, the one that suits the likelihood."""
    if config.method is None:
        return usual_method(LIKELIHOODS[config.likelihood]())
    return PAPER_NAMES.get(config.method, config.method)


def _check_types(fields: dict[str, Any], path: Path) -> None:
    """run.json is a file like any other: what it says may be anything. Lists become tuples."""
    for field in dataclasses.fields(FitConfig):
        if field.name not in fields:
            continue
        value = fields[field.name]
        if not _fits(value, field.type):
            raise InputError(f"{path} is damaged: {field.name} is {value!r:.80}")
        if isinstance(value, list):
            fields[field.name] = tuple(value)


def _fits(value: Any, kind: Any) -> bool:
    """
    >>> _fits(1, float | None), _fits(True, int), _fits(["a"], tuple[str, ...])
    (True, False, True)
    """
    if kind == tuple[str, ...]:
        return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
