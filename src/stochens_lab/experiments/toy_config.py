"""What a run of `stochens toy` is made of: its Config, and the methods of its table."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.errors import InputError, did_you_mean
from stochens.methods import Dropout, Regular
from stochens_lab.experiments import configs
from stochens_lab.experiments.rows import (
    BATCH,
    CHAINS,
    ENSEMBLES,
    Train,
    Training,
    by_langevin,
    by_mclmc,
    by_natural,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """What a run is made of. Presets are in PRESETS."""

    preset: Annotated[
        str, typer.Option(help="What size of run: {default} (if not given), table or paper.")
    ] = "quick"
    sets: Annotated[
        tuple[str, ...],
        typer.Option(
            parser=tuple, metavar="<str>", help="Which of the training sets a, b, c: abc."
        ),
    ] = ("a", "b", "c")
    points: int = 200
    members: configs.Members = 96
    steps: int = 1500  # of schedule T
    prior_steps: int | None = None  # of schedule Q, which starts from the prior; None: without it
    mclmc_steps: int = 3000  # two gradients each: 20 members take as many as langevin's 96
    langevin_steps: int = 1250
    langevin_batch: int | None = None  # all of the data
    curve: tuple[int, ...] = ()  # shorter trainings, for the course over steps
    only: Annotated[
        tuple[str, ...],
        typer.Option("--method", help="Train this row only; may be given several times."),
    ] = ()
    draws: Annotated[int, typer.Option(help="Samples of the training data.")] = 1
    seeds: Annotated[int, typer.Option(help="Independent ensembles for each of them.")] = 1
    chains: int = 4
    samples: int = 500
    warmup: int = 500
    test_points: int = 2000
    seed: configs.Seed = 0
    device: configs.Device = None
    jobs: Annotated[  # each in a process of its own
        int, typer.Option(min=1, help="Sets to work on at a time: {default}.")
    ] = 1
    engine: configs.Engine = "auto"
    address: configs.Address = None
    out: configs.Out = Path("runs/toy")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "table": {  # the table to believe: three data draws, three seeds
        "points": 400,
        "members": 256,
        "steps": 10_000,
        "prior_steps": 6_000,
        "mclmc_steps": 8_000,
        "curve": (500, 1000, 2000, 4000),
        "draws": 3,
        "seeds": 3,
        "samples": 2000,
        "warmup": 1000,
        "test_points": 4000,
    },
    "paper": {
        "points": 2000,
        "members": 1024,
        "steps": 10_000,
        "prior_steps": 6_000,
        "mclmc_steps": 10_000,
        "langevin_steps": 10_000,
        "langevin_batch": BATCH,
        "curve": (),
        "samples": 2000,
        "warmup": 2000,
        "test_points": 4000,
    },
}


def configure(preset: str | None = None, **changes: Any) -> ToyConfig:
    """A preset, with some of its fields changed; None leaves one as it is."""
    return ToyConfig(**configs.merge_preset(PRESETS, preset, changes))


def reconfigure(path: Path, **changes: Any) -> ToyConfig:
    """The Config of a run that was stopped; only where it is worked on may change."""
    before = configs.read_fields(ToyConfig, path, "toy")
    changeable = {"device", "address"}
    if before.get("jobs", 1) > 1 and (changes.get("jobs") or 1) > 1:
        changeable.add("jobs")  # one alone keeps its work elsewhere, and would begin anew
    return configs.change_config(ToyConfig, before, changes, changeable)


SIZES = (2, 10, 10, 2)
EARLY = {"a": 1000, "b": 2000, "c": 2000}  # steps of the control, picked by its distance to NUTS


# How they train, and where they start. Of sigma (None, 0.1; 0.3 for the first), rate (0.1, 0.03)
# and start (reset, prior) those with the least training KL loss on set a, 200 points, 1500 steps,
# 24 members: 93.9 +- 1.7 and 112.9 +- 0.6. No test point and no draw of NUTS was looked at.
NATURALS: dict[str, tuple[Train, str]] = {
    "natural": (partial(by_natural, method=Regular(), sigma=0.1, rate=0.1), "prior"),
    "SE1, natural": (partial(by_natural, method=Dropout(0.1), sigma=None, rate=0.03), "reset"),
}


def list_trainings(config: ToyConfig, set_name: str) -> list[Training]:
    """Schedule T (the authors'), Q (from the prior), the control that is stopped early, Gaussian
    members by natural gradients, and the ensembles of samplers; `only` those that are named, where
    any are."""
    only, steps = config.only, config.steps
    rows = [Training(name, train, steps) for name, train in ENSEMBLES.items()]
    if config.prior_steps is not None:
        rows += [
            Training(f"{name}, Q", ENSEMBLES[name], config.prior_steps, "prior")
            for name in ("regular", "SE3", "gaussian")
        ]
    early = min(EARLY[set_name], steps)
    rows.append(Training("regular, early", ENSEMBLES["regular"], early, "prior"))
    rows += [Training(name, train, steps, start) for name, (train, start) in NATURALS.items()]
    few = min(CHAINS, config.members)
    rows.append(Training("mclmc", by_mclmc, config.mclmc_steps, replicas=False, members=few))
    carry = partial(by_langevin, batch_size=config.langevin_batch)
    rows.append(Training("langevin", carry, config.langevin_steps, "prior", replicas=False))
    for name in only:
        if name not in [row.name for row in rows]:
            hint = did_you_mean(name, [row.name for row in rows])
            known = "; ".join(row.name for row in rows)
            raise InputError(f"no method {name!r} in this preset{hint or '.'} It has: {known}")
    return [row for row in rows if not only or row.name in only]
