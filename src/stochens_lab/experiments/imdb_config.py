"""What a run of `stochens imdb` is made of."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.checks import positive
from stochens.errors import InputError
from stochens_lab.experiments import configs

PAPER_REVIEWS = 20_000  # of 25,000, which Izmailov et al. trained on
WHERE = {"data", "device"}  # what a run that goes on may change
COUNTS = ("members", "epochs", "batch_size", "draws", "reviews", "test_reviews", "resamples")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImdbConfig:
    """Ensembles on IMDB's reviews, held against the published HMC predictions."""

    data: Annotated[Path, typer.Option(help="The folder with imdb.npz.")]
    rows: Annotated[  # empty: all
        tuple[str, ...], typer.Option(help="Only this row; may be given several times.")
    ] = ()
    members: configs.Members = 5
    epochs: Annotated[
        int | None, typer.Option(help="The same for every row; if not given, each has its own.")
    ] = None
    batch_size: Annotated[int, typer.Option(help="{default}.")] = 200
    rate: Annotated[float, typer.Option(help="Drop rate of SE1: {default}.")] = 0.3
    prior_precision: Annotated[
        float, typer.Option(help="{default}, as Izmailov et al. have it for HMC.")
    ] = 40.0
    weight_decay: Annotated[
        float, typer.Option(help="Precision of rows that are trained: {default}, as theirs.")
    ] = 3.0
    draws: Annotated[
        int, typer.Option(help="Inferences of each member that has noise: {default}.")
    ] = 4
    choosing: Annotated[
        bool,
        typer.Option(help="Measure on the 5,000 test reviews for choosing settings instead."),
    ] = False
    reviews: Annotated[
        int | None, typer.Option(help="Train on the first so many: {default}, as the authors.")
    ] = PAPER_REVIEWS
    test_reviews: Annotated[
        int | None, typer.Option(help="Measure on so many only; all, if not given.")
    ] = None
    resamples: int = 300  # of the bootstrap over reviews
    seed: configs.Seed = 0
    device: configs.Device = None
    engine: configs.Engine = "auto"
    out: configs.Out = Path("runs/imdb")


def configure(data: Path | None = None, **changes: Any) -> ImdbConfig:
    """The defaults, with some of the fields changed; None leaves one as it is."""
    if data is None:
        raise InputError("where are the reviews? Give the folder of imdb.npz: --data DIR")
    return ImdbConfig(data=data, **configs.drop_none(changes))


def reconfigure(path: Path, **changes: Any) -> ImdbConfig:
    """The Config of the run in this folder; rows that are done are not run again."""
    before = configs.read_fields(ImdbConfig, path, "imdb")
    return configs.change_config(ImdbConfig, before, changes, WHERE | {"rows"})


def check(config: ImdbConfig) -> None:
    """Everything that is wrong with the options alone."""
    positive(prior_precision=config.prior_precision, weight_decay=config.weight_decay)
    for field in COUNTS:
        value = getattr(config, field)
        if value is not None and value < 1:
            raise InputError(f"{field} must be at least 1, got {value}")
