"""What a run of `stochens transfer` is made of."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.errors import InputError
from stochens_lab.experiments import configs

WHERE = {"data", "weights", "device"}  # what a run that goes on may change


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """From one trained network to posteriors on CIFAR-100, each with its cost."""

    data: Annotated[Path, typer.Option(help="The folder with the images; see: stochens data.")]
    weights: Annotated[
        Path,
        typer.Option(help="ImageNet weights of torchvision's mobilenet_v2, as safetensors."),
    ]
    rows: Annotated[  # empty: all
        tuple[str, ...], typer.Option(help="Only this row; may be given several times.")
    ] = ()
    members: configs.Members = 10
    epochs: Annotated[
        int, typer.Option(help="Of members that are trained whole: {default}. Others have more.")
    ] = 3
    batch_size: Annotated[int, typer.Option(help="{default}.")] = 128
    side: Annotated[int, typer.Option(help="Images are enlarged to so many pixels: {default}.")] = (
        96
    )
    images: Annotated[int | None, typer.Option(help="To train on; all, if not given.")] = None
    test_images: Annotated[int | None, typer.Option(help="All, if not given.")] = None
    held_out: int = 5000  # of the images to train on: rates are chosen there, never on test images
    resamples: int = 300  # of the bootstrap over images
    seed: configs.Seed = 0
    device: configs.Device = None
    engine: configs.Engine = "auto"
    precision: Annotated[
        str, typer.Option(help="Of training, as in fit: {default}, float32, tf32 or bf16.")
    ] = "auto"
    out: configs.Out = Path("runs/transfer")


def configure(
    data: Path | None = None, weights: Path | None = None, **changes: Any
) -> TransferConfig:
    """The defaults, with some of the fields changed; None leaves one as it is."""
    if data is None:
        raise InputError("where are the images? Give their folder: --data DIR")
    if weights is None:
        raise InputError("where is the trained network? Give its file: --weights FILE.safetensors")
    return TransferConfig(data=data, weights=weights, **configs.drop_none(changes))


def reconfigure(path: Path, **changes: Any) -> TransferConfig:
    """The Config of the run in this folder; rows that are done are not run again."""
    before = configs.read_fields(TransferConfig, path, "transfer")
    return configs.change_config(TransferConfig, before, changes, WHERE | {"rows"})
