"""What a run of `stochens cifar` is made of."""

import dataclasses
from pathlib import Path

PAPER_IMAGES = 40_960  # of 50,000, which the authors trained on


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """What a run is made of. The defaults are the paper's and its authors' code's."""

    data: Path
    name: str = "cifar10"
    method: str = "dropout"
    rate: float = 0.1  # of dropout and DropConnect
    node: str = "position"  # of dropout and non-parametric dropout: what a convolution's node is
    start: Path | None = None  # a run whose members to begin with
    members: int = 50
    epochs: int = 300
    batch_size: int = 64
    lr: float = 0.1
    schedule: str = "step"
    step_size: float | None = None  # of langevin, in standard deviations of the prior
    images: int | None = PAPER_IMAGES  # the first so many; None: all
    test_images: int | None = None  # likewise
    prior_precision: float = 5.0  # Izmailov et al. 2021
    block: int | None = None  # members trained together; None: as many as fit
    minutes: float | None = None  # no new block is begun that would not end in time
    draws: int = 1  # inferences of each member
    inferences: bool = False  # the curve over inferences too
    corruptions: bool = False  # the 80 corrupted test sets too
    resamples: int = 300  # of the bootstrap over images
    seed: int = 0
    device: str | None = None
    engine: str = "auto"
    address: str | None = None  # of the Ray cluster, with engine = "ray"
    out: Path = Path("runs/cifar")
