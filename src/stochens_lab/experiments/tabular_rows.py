"""The rows of the tabular benchmark: each learns from a table, and predicts at its test rows.

All have one configuration for all sets. What is left to choose is chosen on `table.held`, which is
a share of the rows to learn from: how long to train, by each member's own NLL there, and which of
some candidates to take, by the NLL of the ensemble. The test rows choose nothing.
"""

import dataclasses
import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import nn

import stochens
from stochens.errors import InputError
from stochens.likelihoods import GaussianPredictive
from stochens.run.options import Run
from stochens_lab.data.tabular import SETS, Part, Table
from stochens_lab.experiments import configs

BATCH = 128
STARTS = ("reset", "trained")
LIKELIHOODS = ("heteroscedastic", "gaussian")
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}  # that the kernels have
PATIENCE = 0.1  # of all epochs: a member that has not been better for so long stops
LEAST_EPOCHS = 20
NOISY_DRAWS = 10  # of each member whose layers have noise
PRIOR_PRECISION = 1.0  # of what is trained, where the held rows say when to stop; as bde has it
PRECISIONS = (1.0, 5.0)  # of mclmc, which does not stop, to choose from
TRIAL_MEMBERS, TRIAL_SHARE = 4, 0.2  # of mclmc with each of these: members, and share of its steps
FIRST_VARIANCE, LAST_VARIANCE = 0.5, 0.1  # of a step's energy, a dimension: bde's defaults
THIN = 10  # steps of mclmc and of bde between two draws
NUTS_WORK = 2e6  # rows times parameters; with more, a chain takes more than ten minutes
PARALLEL = "--xla_force_host_platform_device_count="
TREES = {"n_estimators": 3000, "learning_rate": 0.03, "num_leaves": 31, "verbose": -1}
TREES_PATIENCE = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class TabularConfig:
    """What a run is made of."""

    data: Annotated[Path, typer.Option(help="The folder with the tables, npz files.")]
    sets: Annotated[
        tuple[str, ...], typer.Option(help="Only this set; may be given several times.")
    ] = SETS
    rows: Annotated[  # empty: all that can be
        tuple[str, ...], typer.Option(help="Only this row; may be given several times.")
    ] = ()
    members: configs.Members = 10
    draws: Annotated[
        int, typer.Option(help="Draws of each member, of mclmc and of bde: {default}.")
    ] = 100
    warmup: Annotated[
        int, typer.Option(help="Steps before the draws, of mclmc and of bde: {default}.")
    ] = 4000
    steps: Annotated[int, typer.Option(help="Steps of what is trained, at most: {default}.")] = (
        10_000
    )
    epochs: Annotated[int, typer.Option(help="Likewise epochs: {default}.")] = 1000
    rates: Annotated[
        tuple[float, ...],
        typer.Option(help="A rate of Adam to choose from; may be given several times."),
    ] = (0.003, 0.01)
    hidden: Annotated[
        tuple[int, ...], typer.Option(help="Width of a hidden layer; may be given several times.")
    ] = (24, 24)
    activation: Annotated[
        str, typer.Option(help="After each hidden layer: relu, tanh or silu; {default}.")
    ] = "silu"
    likelihood: Annotated[
        str,
        typer.Option(
            help="heteroscedastic: a noise that depends on the row; or gaussian: one for all rows, "
            "so that the mean is learned by squared errors; {default}."
        ),
    ] = LIKELIHOODS[0]
    start: Annotated[
        str,
        typer.Option(help="Where mclmc begins: reset, or trained, at regular members; {default}."),
    ] = "reset"
    bins: Annotated[
        int, typer.Option(help="Bins of each feature, embedded piecewise linearly; 0: none.")
    ] = 0
    splits: Annotated[
        int | None, typer.Option(help="Splits of each UCI set, from the first; all if not given.")
    ] = None
    seeds: Annotated[int, typer.Option(help="Runs of a set that has one split: {default}.")] = 5
    seed: configs.Seed = 0
    device: configs.Device = None
    out: configs.Out = Path("runs/tabular")


class Found(NamedTuple):
    """What a row predicts at the test rows, and what it chose."""

    predicted: GaussianPredictive
    chosen: dict[str, Any]


Row = Callable[[Table, TabularConfig, int], Found]  # (table, config, seed)


def _network(table: Table, config: TabularConfig) -> stochens.MLP:
    outputs = 2 if config.likelihood == "heteroscedastic" else 1
    return stochens.MLP(
        table.learn.x.shape[1], *config.hidden, outputs, activation=ACTIVATIONS[config.activation]
    )


def _common(config: TabularConfig, seed: int) -> dict[str, Any]:
    return {
        "members": config.members,
        "likelihood": config.likelihood,
        "prior": PRIOR_PRECISION,
        "seed": seed,
        "run": Run(device=config.device),
    }


def _predicted(posterior: stochens.Posterior, part: Part, draws: int = 1) -> GaussianPredictive:
    p: Any = posterior.predict(part.x, draws=draws, keep_draws=True)
    found: GaussianPredictive = p
    return found


def nll_of(predicted: GaussianPredictive, y: torch.Tensor) -> float:
    """-log p(y | x), the mean over rows: p is the mixture of all draws.

    >>> zero = torch.zeros(1, 3, 1)
    >>> round(nll_of(GaussianPredictive.of(zero, zero + 1), zero[0]), 4)  # log(2 pi) / 2
    0.9189
    """
    few = 256  # rows at a time: the draws of all of them may be many gigabytes in float64
    terms = [
        predicted.some(slice(k, k + few)).log_prob(y[k : k + few]) for k in range(0, len(y), few)
    ]
    return -float(torch.cat(terms).mean())


class Trained(NamedTuple):
    """Members that stopped by the held rows, and the rate that did best there."""

    posterior: stochens.Posterior
    chosen: dict[str, Any]


def _train(
    table: Table,
    config: TabularConfig,
    seed: int,
    *,
    rates: Sequence[float | None] | None = None,
    draws: int = 1,
    **options: Any,
) -> Trained:
    """From `table.rest`; a member has the state of its best epoch on `table.held`."""
    batches = math.ceil(len(table.rest.y) / BATCH)
    epochs = min(config.epochs, max(LEAST_EPOCHS, config.steps // batches))
    patience = max(1, round(PATIENCE * epochs))
    best: tuple[float, Trained] | None = None
    for rate in config.rates if rates is None else rates:
        posterior = stochens.fit(
            _network(table, config),
            tuple(table.rest),
            lr=rate,
            epochs=epochs,
            batch_size=BATCH,
            validation=stochens.Validation(tuple(table.held), patience=patience),
            **options,
            **_common(config, seed),
        )
        held = nll_of(_predicted(posterior, table.held, draws), table.held.y)
        assert posterior.history is not None
        kept = posterior.history.kept.double()
        chosen = {"lr": rate, "epochs": epochs, "kept": float(kept.mean()) + 1, "held NLL": held}
        if best is None or held < best[0]:
            best = held, Trained(posterior, chosen)
    assert best is not None
    return best[1]


def _by_training(**options: Any) -> Row:
    def row(table: Table, config: TabularConfig, seed: int) -> Found:
        found = _train(table, config, seed, **options)
        return Found(_predicted(found.posterior, table.test, options.get("draws", 1)), found.chosen)

    return row


def _by_langevin(table: Table, config: TabularConfig, seed: int) -> Found:
    """From trained members: a prior of this width gives others no place to start."""
    start = _train(table, config, seed, method="regular")
    posterior = stochens.langevin(
        _network(table, config),
        tuple(table.learn),
        start=start.posterior,
        **_common(config, seed),
    )
    return Found(_predicted(posterior, table.test), start.chosen)


def _by_mclmc(table: Table, config: TabularConfig, seed: int) -> Found:
    """With the prior that does best on the held rows, in a short trial on the others. Where there
    are many rows, chains arrive sooner from members that were trained on batches of them."""
    trained = _train(table, config, seed, method="regular") if config.start == "trained" else None
    start = "reset" if trained is None else trained.posterior
    trial = dataclasses.replace(
        config,
        members=min(TRIAL_MEMBERS, config.members),
        warmup=max(1, round(TRIAL_SHARE * config.warmup)),
        draws=max(1, round(TRIAL_SHARE * config.draws)),
    )

    def held_nll(precision: float) -> float:
        posterior = _chains(table.rest, table, trial, seed, precision, start)
        return nll_of(_predicted(posterior, table.held), table.held.y)

    tried = {precision: held_nll(precision) for precision in PRECISIONS}
    best = min(PRECISIONS, key=tried.__getitem__)
    posterior = _chains(table.learn, table, config, seed, best, start)
    chosen = {"prior": best, "held NLL": list(tried.values())}
    if trained is not None:
        chosen["trained"] = trained.chosen
    return Found(_predicted(posterior, table.test), chosen)


def _chains(
    part: Part, table: Table, config: TabularConfig, seed: int, precision: float, start: Any
) -> stochens.Posterior:
    """At the energy variance that bde draws at."""
    return stochens.mclmc(
        _network(table, config),
        tuple(part),
        draws_per_member=config.draws,
        thin=THIN,
        warmup=config.warmup,
        energy_variance=LAST_VARIANCE,
        precondition=False,
        start=start,
        **_common(config, seed) | {"prior": precision},
    )


def _by_nuts(table: Table, config: TabularConfig, seed: int) -> Found:
    """A chain for each member; only where rows times parameters are few."""
    common = _common(config, seed)
    posterior = stochens.nuts(
        _network(table, config),
        tuple(table.learn),
        chains=common.pop("members"),
        samples=200,
        warmup=500,
        **common,
    )
    return Found(_predicted(posterior, table.test), {})


def _by_lightgbm(table: Table, config: TabularConfig, seed: int) -> Found:
    """N(mean, s^2): the mean by trees, as many as do best on the held rows, and s^2 the mean square
    of their errors there."""
    package = importlib.import_module("lightgbm")  # by name: it is no dependency
    trees = package.LGBMRegressor(**TREES, random_state=seed, n_jobs=torch.get_num_threads())
    rest, held = table.rest, table.held
    trees.fit(
        rest.x.numpy(),
        rest.y.numpy().ravel(),
        eval_set=[(held.x.numpy(), held.y.numpy().ravel())],
        callbacks=[package.early_stopping(TREES_PATIENCE, verbose=False)],
    )

    def mean(part: Part) -> torch.Tensor:
        return torch.as_tensor(trees.predict(part.x.numpy()).tolist()).reshape(-1, 1)

    variance = (held.y - mean(held)).square().mean()
    at_test = mean(table.test)
    chosen = {"trees": int(trees.best_iteration_), "noise": float(variance.sqrt())}
    return Found(_one_gaussian(at_test, variance.expand_as(at_test)), chosen)


def _one_gaussian(mean: torch.Tensor, variance: torch.Tensor) -> GaussianPredictive:
    return GaussianPredictive.of(mean[None], variance[None])


def _by_bde(table: Table, config: TabularConfig, seed: int) -> Found:
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
        n_samples=THIN * config.draws,
        n_thinning=THIN,
        desired_energy_var_start=FIRST_VARIANCE,
        desired_energy_var_end=LAST_VARIANCE,
    )
    learn, test = table.learn, table.test
    regressor.fit(x=learn.x.numpy(), y=learn.y.numpy().ravel())
    mean, std = regressor.predict(test.x.numpy(), mean_and_std=True)
    mean, std = (torch.tensor(values.tolist()).reshape(-1, 1) for values in (mean, std))
    return Found(_one_gaussian(mean, std.square()), {})


ROWS: dict[str, Row] = {
    "regular": _by_training(method="regular"),
    "SE1": _by_training(method="dropout", draws=NOISY_DRAWS),
    "SE3": _by_training(method="np-dropout", draws=NOISY_DRAWS),
    "natural": _by_training(
        method="regular", optimizer="natural", rates=(None,), draws=NOISY_DRAWS
    ),
    "langevin": _by_langevin,
    "mclmc": _by_mclmc,
    "nuts": _by_nuts,
    "bde": _by_bde,
    "lightgbm": _by_lightgbm,
}
PACKAGES = {"bde": "sklearn-contrib-bde", "lightgbm": "lightgbm"}  # rows that need one


def rows_that_run(asked: Sequence[str]) -> list[str]:
    """Those asked for, or all; one whose package is missing is refused, or left out."""
    for row, package in PACKAGES.items():
        if row in asked and importlib.util.find_spec(row) is None:
            raise InputError(f"the row {row} needs its package: pip install {package}")
    return [
        row
        for row in ROWS
        if (row in asked or not asked)
        and (row not in PACKAGES or importlib.util.find_spec(row) is not None)
    ]


def too_large(row: str, table: Table, config: TabularConfig) -> bool:
    """Whether a row cannot be had on this table in a reasonable time: NUTS on many rows."""
    parameters = sum(p.numel() for p in _network(table, config).parameters())
    return row == "nuts" and len(table.learn.y) * parameters > NUTS_WORK
