"""Regression on tables: every row with one configuration for all sets, beside published numbers.

bde's sets are measured in standard deviations of the target, as bde's benchmark has them; all
others in the units of their files.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from stochens.checks import positive
from stochens.errors import InputError, check_known
from stochens.likelihoods import GaussianPredictive
from stochens.metrics import Interval
from stochens_lab.data.tabular import BDE, SETS, UCI, count_splits, embed_numbers, load_table
from stochens_lab.experiments import configs
from stochens_lab.experiments.active import over_seeds
from stochens_lab.experiments.runs import choose_device, finish_run, is_whole, open_run
from stochens_lab.experiments.tabular_rows import (
    ACTIVATIONS,
    LIKELIHOODS,
    PACKAGES,
    ROWS,
    STARTS,
    TabularConfig,
    nll_of,
    rows_that_run,
    too_large,
)
from stochens_lab.report.run_folder import METRICS, RunFolder, SavedRun

MEASURES = ("RMSE", "NLL", "mixture NLL", "seconds")
SAID = 300  # letters of a warning that are kept
GIVEN_ANEW = {"data", "device", "rows", "sets", "splits", "seeds"}  # of a run that goes on


def configure(data: Path | None = None, **changes: Any) -> TabularConfig:
    """The defaults, with some of the fields changed; None leaves one as it is."""
    if data is None:
        raise InputError("where are the tables? Give their folder: --data DIR")
    return TabularConfig(data=data, **configs.drop_none(changes))


def reconfigure(path: Path, **changes: Any) -> TabularConfig:
    """The Config of the run in this folder, perhaps with other sets, rows, splits or seeds: what is
    done already is kept, and not run again."""
    before = configs.read_fields(TabularConfig, path, "tabular")
    return configs.change_config(TabularConfig, before, changes, GIVEN_ANEW)


def measure(predicted: GaussianPredictive, y: Tensor, unit: float = 1.0) -> dict[str, float]:
    """Of y [B, 1], both in units of `unit`: RMSE, the NLL of N(mean, variance) of all draws, and
    that of the predictive density itself, a mixture of the draws.

    >>> import torch
    >>> zero = torch.zeros(1, 2, 1)
    >>> found = measure(GaussianPredictive.of(zero, zero + 1), zero[0] + 1, unit=2.0)
    >>> found["RMSE"], round(found["NLL"] - math.log(2), 4)
    (2.0, 1.4189)
    """
    mean, variance = predicted.mean.double().cpu(), predicted.variance.double().cpu()
    square = (y.double().cpu() - mean).square()
    terms = square / variance + variance.log() + math.log(2 * math.pi)
    return {
        "RMSE": unit * float(square.mean().sqrt()),
        "NLL": 0.5 * float(terms.mean()) + math.log(unit),
        "mixture NLL": nll_of(predicted, y) + math.log(unit),
    }


def run(
    config: TabularConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Every row on every set, split by split; everything goes to the run folder, which is returned.

    `resume`: what the folder holds is done already.
    """
    sets, rows = _check(config), rows_that_run(config.rows)
    device = str(choose_device(config.device))
    done: dict[str, dict[str, list[dict[str, Any]]]] = (
        SavedRun(config.out).about.get("found", {}) if resume else {}
    )
    todo = [
        (name, row, k)
        for name in sets
        for k in range(_count_runs(config, name))
        for row in rows
        if not _is_done(done, name, row, _place(config, name, k))
    ]
    if resume and is_whole(config.out) and not todo:
        note(f"{config.out} is complete")
        return config.out
    with open_run(
        config.out, "tabular", configs.config_to_json(config), device, resume=resume
    ) as folder:
        for number, (name, row, k) in enumerate(todo):
            note(f"{number + 1} of {len(todo)}: {name}, {row}, {_place(config, name, k)}")
            found = _run_one(config, folder, name, row, k)
            if found is None:
                note(f"{name} is too large for {row}, which is left out")
                continue
            note(", ".join(f"{measured} {found[measured]:.4g}" for measured in MEASURES))
            for text in found["warned"]:
                note(f"warned: {text}")
            done.setdefault(name, {}).setdefault(row, []).append(found)
            _put(folder, name, row, done[name][row])
            folder.say(found=done)
        return finish_run(folder)


def _run_one(
    config: TabularConfig, folder: RunFolder, name: str, row: str, k: int
) -> dict[str, Any] | None:
    """What one row measures on one split; None where the row cannot be had."""
    place = _place(config, name, k)
    table = load_table(config.data, name, place["split"])
    if config.bins and row not in PACKAGES:  # others have ways of their own
        table = embed_numbers(table, config.bins)
    if too_large(row, table, config):
        return None
    began = time.monotonic()
    with folder.timed(f"{name}/{row}"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = ROWS[row](table, config, place["seed"])
    seconds = time.monotonic() - began
    unit = 1.0 if name in BDE else table.unit
    texts = {str(one.message)[:SAID] for one in said if issubclass(one.category, UserWarning)}
    return {
        **place,
        **measure(found.predicted, table.test.y, unit),
        "seconds": seconds,
        "chosen": found.chosen,
        "warned": sorted(texts),
    }


def _put(folder: RunFolder, name: str, row: str, found: Sequence[Mapping[str, float]]) -> None:
    """Means over splits, or seeds; one alone has no interval."""
    for measured in MEASURES:
        values = [one[measured] for one in found if measured in one]
        if values:
            folder.put(METRICS, (name, row, "test", measured), _interval(values)._asdict())


def _interval(values: Sequence[float | None]) -> Interval:
    """An infinite one is None in a run that was read back."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if len(finite) < len(values):
        return Interval(math.inf, math.inf, math.inf)
    return over_seeds(finite) if len(finite) > 1 else Interval(finite[0], finite[0], finite[0])


def _count_runs(config: TabularConfig, name: str) -> int:
    if name not in UCI:
        return config.seeds
    published = count_splits(name)
    return published if config.splits is None else min(config.splits, published)


def _place(config: TabularConfig, name: str, k: int) -> dict[str, int]:
    """The split and the seed of the k-th run: splits where a set has several, else seeds."""
    return {"split": k if name in UCI else 0, "seed": config.seed + k}


def _is_done(done: Mapping[str, Any], name: str, row: str, place: Mapping[str, int]) -> bool:
    found = done.get(name, {}).get(row, [])
    return any(all(one.get(key) == value for key, value in place.items()) for one in found)


def _check(config: TabularConfig) -> tuple[str, ...]:
    """The sets to run; what is asked for and cannot be is refused before any work."""
    for what in ("seeds", "splits"):
        if (count := getattr(config, what)) is not None and count < 1:
            raise InputError(f"{what} must be at least 1, got {count}")
    positive(**{f"rates[{k}]": rate for k, rate in enumerate(config.rates)})
    if config.bins < 0:
        raise InputError(f"bins must be 0 or more, got {config.bins}")
    check_known("activation", config.activation, ACTIVATIONS)
    check_known("likelihood", config.likelihood, LIKELIHOODS)
    check_known("start", config.start, STARTS)
    for row in config.rows:
        check_known("row", row, ROWS)
    for name in config.sets:
        check_known("set", name, SETS)
        load_table(config.data, name)
    return config.sets
