"""What `stochens fit` was asked for."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.errors import InputError, check_known, did_you_mean
from stochens.likelihoods import LIKELIHOODS, Likelihood
from stochens.methods import METHODS
from stochens.methods.registry import PAPER_NAMES
from stochens.prior import SCALES
from stochens.training.engines import ENGINES
from stochens_lab.data.examples import LIKELY
from stochens_lab.experiments.configs import (
    Address,
    Device,
    Seed,
    change_config,
    complete_from,
    drop_none,
    read_fields,
)
from stochens_lab.experiments.runs import check_device, engine_of
from stochens_lab.workflow.likelihood import make_named, option_names
from stochens_lab.workflow.model import check_name

EXPERIMENT = "fit"
TAILS = ("multiswa", "multiswag")  # averages of a plain training's tail
RATED = ("dropout", "dropconnect")
# without those that leave a network's own weights as they are, which are drawn anew here
NAMES = (*(name for name, method in METHODS.items() if not method.freezes), *TAILS)
# of a run that goes on; its members do not see them
CHANGEABLE = {"model", "data", "device", "address"}
MODEL = typer.Option(
    help="MODULE:FUNCTION that returns the network, importable from this folder. "
    "It is imported and run: your own code."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    model: Annotated[str, MODEL]
    data: Annotated[Path, typer.Option(help=".parquet, .csv, .npz or a folder of images.")]
    out: Annotated[Path, typer.Option(help="Folder of the run, new or empty.")]
    target: Annotated[
        tuple[str, ...],
        typer.Option(
            help=f"Column to predict; the one called {LIKELY} if not given. Repeatable, for "
            "several labels or numbers."
        ),
    ] = ()
    feature: Annotated[
        tuple[str, ...],
        typer.Option(help="Column to predict from; all others if not given. Repeatable."),
    ] = ()
    drop: Annotated[tuple[str, ...], typer.Option(help="Column to leave out. Repeatable.")] = ()
    likelihood: Annotated[
        str,
        typer.Option(
            help=f"What the target is: {', '.join(LIKELIHOODS)}. {{default}} if not given.",
            autocompletion=complete_from(LIKELIHOODS),
        ),
    ] = "categorical"
    option: Annotated[
        tuple[str, ...],
        typer.Option(
            help="NAME=VALUE of the likelihood, as in Python: missing=mask, components=5, "
            "levels=0.1,0.5,0.9. Repeatable.",
            autocompletion=complete_from(f"{name}=" for name in option_names()),
        ),
    ] = ()
    order: Annotated[
        tuple[str, ...],
        typer.Option(help="Class, from the lowest to the highest, for ordinal. Repeatable."),
    ] = ()
    normalise: Annotated[
        bool,
        typer.Option(
            help="Bring inputs (and targets that are numbers, not counts) to mean 0 and sd 1; kept "
            "with the run."
        ),
    ] = False
    validation: Annotated[
        float, typer.Option(help="Share to hold out and measure: {default:g}.")
    ] = 0.0
    method: Annotated[
        str | None,
        typer.Option(
            help="dropout (if not given, for classes, labels and counts), regular (likewise, for "
            "other numbers), dropconnect, np-dropout, gaussian, multiswa or multiswag.",
            autocompletion=complete_from(NAMES),
        ),
    ] = None
    rate: Annotated[float | None, typer.Option(help="Drop rate: 0.1.")] = None
    skip: Annotated[
        tuple[str, ...],
        typer.Option(help="Layers that get no noise, by name pattern. Repeatable."),
    ] = ()
    members: Annotated[int, typer.Option(help="Members of the ensemble: {default}.")] = 50
    epochs: Annotated[int, typer.Option(help="Passes over the data: {default}.")] = 100
    batch_size: Annotated[int, typer.Option(help="{default}; 0 for all data at once.")] = 128
    optimizer: Annotated[str, typer.Option(help="{default}, adamw or sgd.")] = "adam"
    lr: Annotated[float | None, typer.Option(help="Learning rate; the optimiser's own.")] = None
    schedule: Annotated[str | None, typer.Option(help="cosine, step or constant.")] = None
    prior_precision: Annotated[
        float, typer.Option(help="1 / variance of the prior on every parameter: {default:g}.")
    ] = 1.0
    prior_scale: Annotated[
        str,
        typer.Option(
            help="{default}, or fan-in: the variance of a weight is divided by its inputs too.",
            autocompletion=complete_from(SCALES),
        ),
    ] = "isotropic"
    seed: Seed = 0
    device: Device = None
    engine: Annotated[
        str,
        typer.Option(
            help="{default}, fused, compile, vmap, loop, or ray for many machines; as in "
            "stochens.fit.",
            autocompletion=complete_from((*ENGINES, "ray")),
        ),
    ] = "auto"
    address: Address = None


def configure(
    model: str | None = None, data: Path | None = None, out: Path | None = None, **given: Any
) -> FitConfig:
    """From the options that were typed; None leaves one as it is."""
    if model is None or data is None or out is None:
        name = "--model" if model is None else "--data" if data is None else "--out"
        raise InputError(
            f"{name} is missing: stochens fit --model MODULE:FUNCTION --data FILE --out RUN"
        )
    config = FitConfig(model=model, data=data.resolve(), out=out, **drop_none(given))
    check(config)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not empty; choose another folder")
    return config


def reconfigure(path: Path, *, data: Path | None = None, **changes: Any) -> FitConfig:
    """What the run in this folder was asked for; only what leaves its members alone may change."""
    before = read_fields(FitConfig, path, EXPERIMENT)
    data = None if data is None else data.resolve()
    config = change_config(FitConfig, before, {"data": data, **changes}, CHANGEABLE)
    check(config)
    return config


def check(config: FitConfig) -> None:
    """Everything that is wrong with the options alone."""
    check_name(config.model)
    make_likelihood(config)
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
    check_known("--prior-scale", config.prior_scale, SCALES)
    check_device(config.device, config.engine)
    engine_of(config.engine, config.address)


def make_likelihood(config: FitConfig) -> Likelihood:
    """What the outputs mean."""
    return make_named(config.likelihood, config.option)


def method_name(config: FitConfig) -> str:
    """dropout for SE1, and so on; where none was named, the one that suits the likelihood."""
    if config.method is None:
        return LIKELIHOODS[config.likelihood].usual_method
    return PAPER_NAMES.get(config.method, config.method)
