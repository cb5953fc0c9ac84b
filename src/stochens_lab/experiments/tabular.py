"""Regression on tables: every method with one configuration for all sets, beside bde.

RMSE and NLL are those of the test rows, in standard deviations of the target, as bde's benchmark
has them: the NLL is that of one Gaussian with the mean and the variance of all draws.
"""

import dataclasses
import importlib
import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

import stochens
from stochens.errors import InputError, check_known
from stochens.run.options import Run
from stochens_lab.data.tabular import SETS, Table, load_table
from stochens_lab.experiments import configs
from stochens_lab.experiments.active import over_seeds
from stochens_lab.experiments.runs import choose_device, finish_run, is_whole, open_run
from stochens_lab.report.run_folder import METRICS, SavedRun

EPOCHS, RATE, BATCH = 1000, 0.01, 128  # of what is trained
PRIOR_PRECISION = 1.0  # of all, as bde has it
FIRST_VARIANCE, LAST_VARIANCE = 0.5, 0.1  # of a step's energy, a dimension: bde's defaults
PARALLEL = "--xla_force_host_platform_device_count="


@dataclasses.dataclass(frozen=True, kw_only=True)
class TabularConfig:
    """What a run is made of."""

    data: Annotated[Path, typer.Option(help="The folder with the tables, npz files.")]
    sets: Annotated[
        tuple[str, ...], typer.Option(help="Only this set; may be given several times.")
    ] = ("airfoil",)
    rows: Annotated[  # empty: all, and bde where it is installed
        tuple[str, ...], typer.Option(help="Only this row; may be given several times.")
    ] = ()
    members: configs.Members = 10
    draws: int = 1000  # of each member, of those that have several
    warmup: Annotated[
        int, typer.Option(help="Steps before the draws, of mclmc and of bde: {default}.")
    ] = 50_000
    epochs: int = EPOCHS
    hidden: tuple[int, ...] = (16, 16, 16, 16)
    seeds: Annotated[int, typer.Option(help="How many runs of each row: {default}.")] = 5
    seed: configs.Seed = 0
    device: configs.Device = None
    out: configs.Out = Path("runs/tabular")


def configure(data: Path | None = None, **changes: Any) -> TabularConfig:
    """The defaults, with some of the fields changed; None leaves one as it is."""
    if data is None:
        raise InputError("where are the tables? Give their folder: --data DIR")
    return TabularConfig(data=data, **configs.drop_none(changes))


def reconfigure(path: Path, **changes: Any) -> TabularConfig:
    """The Config of the run in this folder; rows that are done are not run again."""
    before = configs.read_fields(TabularConfig, path, "tabular")
    return configs.change_config(TabularConfig, before, changes, {"data", "device", "rows"})


class Moments(NamedTuple):
    """What a row predicts at the test rows."""

    mean: Tensor  # [B, 1]
    variance: Tensor  # [B, 1]


Row = Callable[[Table, TabularConfig, int], Moments]  # (table, config, seed)


def _network(table: Table, config: TabularConfig) -> stochens.MLP:
    return stochens.MLP(table.x.shape[1], *config.hidden, 2)


def _common(config: TabularConfig, seed: int) -> dict[str, Any]:
    return {
        "members": config.members,
        "likelihood": "heteroscedastic",
        "prior": PRIOR_PRECISION,
        "seed": seed,
        "run": Run(device=config.device),
    }


def _moments(posterior: stochens.Posterior, table: Table) -> Moments:
    p: Any = posterior.predict(table.x_test, keep_draws=False)
    return Moments(p.mean, p.variance)


def _trained(table: Table, config: TabularConfig, seed: int, **options: Any) -> stochens.Posterior:
    own = {"method": "regular", "epochs": config.epochs, "batch_size": BATCH, **options}
    return stochens.fit(_network(table, config), (table.x, table.y), **own, **_common(config, seed))


def _by_regular(table: Table, config: TabularConfig, seed: int) -> Moments:
    return _moments(_trained(table, config, seed, lr=RATE), table)


def _by_natural(table: Table, config: TabularConfig, seed: int) -> Moments:
    return _moments(_trained(table, config, seed, optimizer="natural"), table)


def _by_langevin(table: Table, config: TabularConfig, seed: int) -> Moments:
    """From trained members: a prior of this width gives others no place to start."""
    start = _trained(table, config, seed, lr=RATE)
    posterior = stochens.langevin(
        _network(table, config), (table.x, table.y), start=start, **_common(config, seed)
    )
    return _moments(posterior, table)


def _by_mclmc(table: Table, config: TabularConfig, seed: int) -> Moments:
    """With as many steps as bde takes, at the energy variance that bde draws at."""
    posterior = stochens.mclmc(
        _network(table, config),
        (table.x, table.y),
        draws_per_member=config.draws,
        warmup=config.warmup,
        energy_variance=LAST_VARIANCE,
        precondition=False,
        **_common(config, seed),
    )
    return _moments(posterior, table)


def _by_bde(table: Table, config: TabularConfig, seed: int) -> Moments:
    """bde's own estimator as its authors ran it, with as many steps before its draws as mclmc."""
    if "XLA_FLAGS" not in os.environ:  # read when jax is imported
        os.environ["XLA_FLAGS"] = f"{PARALLEL}{min(os.cpu_count() or 1, config.members)}"
    # imported by name: it is no dependency, and has no types
    package, losses = map(importlib.import_module, ("bde", "bde.loss"))

    regressor = package.BdeRegressor(
        n_members=config.members,
        hidden_layers=list(config.hidden),
        seed=seed,
        loss=losses.GaussianNLL(),
        epochs=1000,
        validation_split=0.15,
        lr=1e-3,
        weight_decay=1e-4,
        patience=20,
        warmup_steps=config.warmup,
        n_samples=10 * config.draws,
        n_thinning=10,
        desired_energy_var_start=FIRST_VARIANCE,
        desired_energy_var_end=LAST_VARIANCE,
    )
    regressor.fit(x=table.x.numpy(), y=table.y.numpy().ravel())
    mean, std = regressor.predict(table.x_test.numpy(), mean_and_std=True)
    columns = (torch.tensor(values.tolist()).reshape(-1, 1) for values in (mean, std))
    mean, std = columns
    return Moments(mean, std.square())


ROWS: dict[str, Row] = {
    "regular": _by_regular,
    "natural": _by_natural,
    "langevin": _by_langevin,
    "mclmc": _by_mclmc,
    "bde": _by_bde,
}


def measure(found: Moments, y: Tensor) -> dict[str, float]:
    """RMSE, and the NLL of N(mean, variance): y [B, 1].

    >>> zero = torch.zeros(2, 1)
    >>> measure(Moments(zero, zero + 1), zero + 1)["RMSE"]
    1.0
    """
    mean, variance, y = (t.double().cpu() for t in (*found, y))
    square = (y - mean).square()
    terms = square / variance + variance.log() + math.log(2 * math.pi)
    return {"RMSE": float(square.mean().sqrt()), "NLL": float(0.5 * terms.mean())}


def run(
    config: TabularConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Every row on every set, seed by seed; everything goes to the run folder, which is returned.

    `resume`: what the folder holds is done already.
    """
    if resume and is_whole(config.out) and not config.rows:
        note(f"{config.out} is complete")
        return config.out
    rows = _chosen(config)
    device = str(choose_device(config.device))
    done = SavedRun(config.out).about.get("found", {}) if resume else {}
    with open_run(
        config.out, "tabular", configs.config_to_json(config), device, resume=resume
    ) as folder:
        for name in config.sets:
            mine = done.setdefault(name, {})
            for row in rows:
                values: list[dict[str, float]] = mine.setdefault(row, [])
                for k in range(len(values), config.seeds):
                    note(f"{name}, {row}: {k + 1} of {config.seeds}")
                    table = load_table(config.data, name, k)
                    began = time.monotonic()
                    with folder.timed(f"{name}/{row}"):
                        found = ROWS[row](table, config, config.seed + k)
                    seconds = {"seconds": time.monotonic() - began}
                    values.append(measure(found, table.y_test) | seconds)
                    folder.say(found=done)
                for metric in values[0]:
                    interval = over_seeds([value[metric] for value in values])
                    folder.put(METRICS, (name, row, "test", metric), interval._asdict())
                folder.write()
        return finish_run(folder)


def _chosen(config: TabularConfig) -> list[str]:
    """The rows to run; what is asked for and cannot be is refused before any work."""
    if config.seeds < 2:
        raise InputError(f"an interval over seeds needs 2 of them or more, got {config.seeds}")
    for name in config.sets:
        check_known("set", name, SETS)
        load_table(config.data, name)
    for row in config.rows:
        check_known("row", row, ROWS)
    there = importlib.util.find_spec("bde") is not None
    if "bde" in config.rows and not there:
        raise InputError("the row bde needs its package: pip install sklearn-contrib-bde")
    return [row for row in ROWS if row in (config.rows or ROWS) and (row != "bde" or there)]
