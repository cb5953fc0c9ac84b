"""What a run of `stochens cifar` is made of."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.errors import InputError
from stochens_lab.experiments import configs

PAPER_IMAGES = 40_960  # of 50,000, which the authors trained on
# of a run that goes on; its members do not see them
CHANGEABLE = {"data", "members", "minutes", "inferences", "corruptions"}
WHERE = {"device", "engine", "address"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """What a run is made of. The defaults are the paper's and its authors' code's."""

    data: Annotated[Path, typer.Option(help="The folder with the images; see: stochens data.")]
    name: Annotated[str, typer.Option(help="cifar10 or cifar100.")] = "cifar10"
    method: Annotated[
        str,
        typer.Option(
            help="regular, multiswa, dropout, dropconnect, np-dropout, csghmc, sghmc or langevin."
        ),
    ] = "dropout"
    # of dropout and DropConnect
    rate: Annotated[float, typer.Option(help="Drop rate: {default} if not given.")] = 0.1
    node: Annotated[  # of dropout and non-parametric dropout
        str,
        typer.Option(help="A convolution's node: position (the authors') or channel (faster)."),
    ] = "position"
    start: Annotated[
        Path | None, typer.Option(help="A run whose members to begin with, as for multiswa.")
    ] = None
    members: configs.Members = 50
    epochs: Annotated[int, typer.Option(help="{default}, as the paper.")] = 300
    batch_size: Annotated[int, typer.Option(help="{default}, as the paper.")] = 64
    lr: Annotated[float, typer.Option(help="{default}, as the paper.")] = 0.1
    schedule: Annotated[str, typer.Option(help="{default} (the paper's), cosine or constant.")] = (
        "step"
    )
    optimizer: Annotated[
        str, typer.Option(help="{default}, or natural: Gaussian members by natural gradients.")
    ] = "sgd"
    sigma: Annotated[float | None, typer.Option(help="Of natural, where it begins.")] = None
    memory: Annotated[
        float | None, typer.Option(help="Of natural: steps over which curvatures are averaged.")
    ] = None
    step_size: Annotated[
        float | None, typer.Option(help="Of langevin, in standard deviations of the prior.")
    ] = None
    images: Annotated[  # None: all
        int | None, typer.Option(help="Train on the first so many: {default}, as the paper.")
    ] = PAPER_IMAGES
    test_images: Annotated[int | None, typer.Option(help="All, if not given.")] = None
    prior_precision: float = 5.0  # Izmailov et al. 2021
    block: Annotated[
        int | None, typer.Option(help="Members to train together; all, if not given.")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="Begin no block that would not end by then.")
    ] = None
    draws: Annotated[int, typer.Option(help="Inferences of each member: {default}.")] = 1
    inferences: Annotated[bool, typer.Option(help="Also 4 and 16 inferences of each.")] = False
    corruptions: Annotated[bool, typer.Option(help="Also the 80 corrupted test sets.")] = False
    resamples: int = 300  # of the bootstrap over images
    seed: configs.Seed = 0
    device: configs.Device = None
    engine: configs.Engine = "auto"
    address: configs.Address = None
    out: configs.Out = Path("runs/cifar")


def configure(data: Path | None = None, **changes: Any) -> CifarConfig:
    """The defaults, with some of the fields changed; None leaves one as it is."""
    if data is None:
        raise InputError("where are the images? Give their folder: --data DIR")
    return CifarConfig(data=data, **configs.drop_none(changes))


def reconfigure(path: Path, **changes: Any) -> CifarConfig:
    """The Config of the run in this folder; only what leaves its members alone may change."""
    before = configs.read_fields(CifarConfig, path, "cifar")
    return configs.change_config(CifarConfig, before, changes, CHANGEABLE | WHERE)
