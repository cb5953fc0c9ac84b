"""What a run of `stochens digits` is made of."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens_lab.experiments import configs


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig:
    """What a run is made of. Presets are in PRESETS."""

    preset: Annotated[
        str, typer.Option(help="What size of run: {default} (if not given) or paper.")
    ] = "quick"
    images: int = 300  # to train on, of 1257
    channels: int = 8  # faster than 6: convolutions on CPUs work in eights
    members: configs.Members = 10
    steps: int = 450  # what the time allows: SE3 and gaussian are not at their end
    langevin_steps: int = 450  # of the whole data, each
    chains: int = 4
    samples: int = 20
    warmup: int = 20
    trajectory: float = 0.6  # in standard deviations of the prior
    leapfrogs: int = 70  # of a trajectory, at most
    resamples: int = 300  # of the bootstrap over images
    seed: configs.Seed = 0
    device: configs.Device = None
    engine: configs.Engine = "auto"
    address: configs.Address = None
    out: configs.Out = Path("runs/digits")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "paper": {  # for a GPU
        "images": 1257,
        "members": 100,
        "steps": 4000,
        "langevin_steps": 4000,
        "chains": 8,
        "samples": 300,
        "warmup": 100,
        "trajectory": math.pi / 2,  # Izmailov et al. 2021
        "leapfrogs": 600,
    },
}


def configure(preset: str | None = None, **changes: Any) -> DigitsConfig:
    """A preset, with some of its fields changed; None leaves one as it is."""
    return DigitsConfig(**configs.merge_preset(PRESETS, preset, changes))


def reconfigure(path: Path, **changes: Any) -> DigitsConfig:
    """The Config of a run that was stopped; only where it is worked on may change."""
    before = configs.read_fields(DigitsConfig, path, "digits")
    return configs.change_config(DigitsConfig, before, changes, {"device", "address"})
