"""Active learning on repeated digits: which labels to ask for, ten at a time.

Every digit of the pool is there several times, with a little noise. Who asks for the ten most
informative ones gets copies of a few; BatchBALD sees what they tell together.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import stochens
from stochens import metrics
from stochens.errors import InputError
from stochens.posterior.acquisition import bald, batch_bald
from stochens.posterior.posterior import Posterior
from stochens.randomness.seeds import derive
from stochens.run.options import Run
from stochens_lab.data.digits import add_noise, read_digits
from stochens_lab.experiments import configs
from stochens_lab.experiments.replicates import over_seeds as over_seeds  # tabular has it too
from stochens_lab.experiments.runs import choose_device, finish_run, is_whole, open_run
from stochens_lab.report.run_folder import RunFolder, SavedRun

SET, WHOLE = "repeated digits", "repeated digits, mean over the curve"
CLASSES, PIXELS = 10, 64
LR = 0.02
# With 20 labels and a precision of 1 the members stay near the prior's mode, and hardly differ: an
# input has 0.05 nats of mutual information at most, and a copy of it about as much again.
PRIOR_PRECISION = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActiveConfig:
    """What a run is made of. Presets are in PRESETS."""

    preset: Annotated[str, typer.Option(help="What size of run: {default} (if not given).")] = (
        "quick"
    )
    images: int = 600  # different ones in the pool
    copies: int = 4  # of each
    noise: float = 0.02  # of each copy; a pixel's standard deviation is 0.37
    begin: int = 20  # labels, two of each class
    batch: int = 10  # labels asked for at a time
    end: int = 120  # labels
    hidden: int = 50
    members: configs.Members = 10
    draws: int = 10  # of each member, to choose by
    epochs: int = 150  # of all labels at once
    configurations: int = 500  # of BatchBALD's joint entropies
    seeds: Annotated[int, typer.Option(help="How many pools, beginnings and ensembles.")] = 8
    seed: configs.Seed = 0
    device: configs.Device = None
    out: configs.Out = Path("runs/active")


PRESETS: dict[str, dict[str, Any]] = {"quick": {}}


def configure(preset: str | None = None, **changes: Any) -> ActiveConfig:
    """A preset, with some of its fields changed; None leaves one as it is."""
    return ActiveConfig(**configs.merge_preset(PRESETS, preset, changes))


def reconfigure(path: Path, **changes: Any) -> ActiveConfig:
    """The Config of a run that was stopped; only where it is worked on may change."""
    before = configs.read_fields(ActiveConfig, path, "active")
    return configs.change_config(ActiveConfig, before, changes, {"device"})


Choose = Callable[[Posterior, Tensor, ActiveConfig, int], list[int]]


def _at_random(_: Posterior, x: Tensor, config: ActiveConfig, seed: int) -> list[int]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return order[: config.batch].tolist()


def _by_bald(posterior: Posterior, x: Tensor, config: ActiveConfig, seed: int) -> list[int]:
    return bald(_predict_functions(posterior, x, config, seed)).topk(config.batch).indices.tolist()


def _by_batch_bald(posterior: Posterior, x: Tensor, config: ActiveConfig, seed: int) -> list[int]:
    p = _predict_functions(posterior, x, config, seed)
    found = batch_bald(p, config.batch, configurations=config.configurations, seed=seed)
    return found.indices.tolist()


def _predict_functions(posterior: Posterior, x: Tensor, config: ActiveConfig, seed: int) -> Any:
    """Every draw one function of x, as joint entropies need them."""
    return posterior.predict(x, draws=config.draws, noise="shared", keep_draws=True, seed=seed)


STRATEGIES: dict[str, Choose] = {
    "random": _at_random,
    "BALD": _by_bald,
    "BatchBALD": _by_batch_bald,
}
BEST = "BatchBALD"


def run(
    config: ActiveConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Every strategy from the same beginnings; everything goes to the run folder, which is
    returned.

    `resume`: the curves that the folder holds are done already.
    """
    if resume and is_whole(config.out):
        note(f"{config.out} is complete")
        return config.out
    _check(config)
    device = str(choose_device(config.device))
    done = SavedRun(config.out).about.get("curves", {}) if resume else {}
    with open_run(
        config.out, "active", configs.config_to_json(config), device, resume=resume
    ) as folder:
        curves: dict[str, list[list[float]]] = {name: done.get(name, []) for name in STRATEGIES}
        for k in range(config.seeds):
            for name, choose in STRATEGIES.items():
                if len(curves[name]) > k:
                    continue
                note(f"{name}, {k + 1} of {config.seeds}")
                with folder.timed(name):
                    curves[name].append(learning_curve(choose, config, config.seed + k, device))
                folder.say(curves=curves)
        _put_rows(folder, curves, range(config.begin, config.end + 1, config.batch))
        return finish_run(folder)


def _check(config: ActiveConfig) -> None:
    if config.begin % CLASSES or config.begin < CLASSES:
        raise InputError(f"begin must be a multiple of {CLASSES} labels, got {config.begin}")
    if config.end < config.begin or (config.end - config.begin) % config.batch:
        raise InputError(
            f"end must be begin = {config.begin} and some batches of {config.batch}, got "
            f"{config.end}"
        )
    if config.end > config.images * config.copies:
        raise InputError(f"the pool has {config.images * config.copies}, got end = {config.end}")
    if config.seeds < 2:
        raise InputError(f"an interval over seeds needs 2 of them or more, got {config.seeds}")


def learning_curve(choose: Choose, config: ActiveConfig, seed: int, device: str) -> list[float]:
    """Test accuracy at each number of labels, from `begin` to `end`."""
    digits = read_digits(seed=seed)
    few, y = digits.x_train.flatten(1)[: config.images], digits.y_train[: config.images]
    x = add_noise(few.repeat_interleave(config.copies, 0), sd=config.noise, seed=seed)  # [N, 64]
    y, x_test = y.repeat_interleave(config.copies), digits.x_test.flatten(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(derive(seed)))
    have = [
        int(place)
        for c in range(CLASSES)
        for place in order[y[order] == c][: config.begin // CLASSES]
    ]
    if len(have) < config.begin:
        raise InputError(f"{config.images} images have too few of a class; give more images")
    found = []
    while True:
        posterior = stochens.fit(
            stochens.MLP(PIXELS, config.hidden, CLASSES),
            (x[have], y[have]),
            members=config.members,
            epochs=config.epochs,
            batch_size=None,
            lr=LR,
            prior=PRIOR_PRECISION,
            seed=seed,
            run=Run(device=device),
        )
        p: Any = posterior.predict(x_test, draws=config.draws, noise="shared", seed=seed)
        found.append(metrics.accuracy(p.mean, digits.y_test))
        if len(have) >= config.end:
            return found
        left = torch.ones(len(x), dtype=torch.bool)
        left[have] = False
        rest = left.nonzero().squeeze(1)
        chosen = choose(posterior, x[rest], config, derive(seed, len(have)))
        have += rest[chosen].tolist()


def _put_rows(
    folder: RunFolder, curves: dict[str, list[list[float]]], labels: Sequence[int]
) -> None:
    """The mean of each strategy at each number of labels and over the curve, and how far BatchBALD
    is above the others, seed by seed."""
    for name, rows in curves.items():
        for k, count in enumerate(labels):
            accuracy = over_seeds([row[k] for row in rows])
            folder.put_row((SET, name, f"{count} labels"), {"accuracy": accuracy})
    means = {name: [statistics.fmean(row) for row in rows] for name, rows in curves.items()}
    gains = {
        f"{BEST} less {name}": [a - b for a, b in zip(means[BEST], means[name], strict=True)]
        for name in curves
        if name != BEST
    }
    for name, values in (means | gains).items():
        folder.put_row((WHOLE, name, "test"), {"accuracy": over_seeds(values)})
