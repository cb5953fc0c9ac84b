"""Text against HMC: a CNN-LSTM on IMDB's reviews, held against the published HMC predictions.

Each way to get members is a row. Settings that were chosen by looking at HMC's predictions were
chosen on the first 5,000 test reviews (`choosing`); results are of the other 20,000. A row is told
once more with a temperature that was fitted to the labels of the reviews which were not trained on.
It is kept when it is done, and a run that was stopped goes on with the first that is missing.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from stochens import metrics
from stochens.errors import InputError, check_known
from stochens.metrics import Interval
from stochens.networks import CNNLSTM
from stochens.posterior.calibration import fit_temperature
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens_lab.data.imdb import load_reviews
from stochens_lab.experiments.cifar_measures import measure_closeness, measure_labelled
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.imdb_config import ImdbConfig, check
from stochens_lab.experiments.imdb_rows import ROWS, Work, network
from stochens_lab.experiments.rows import Training, describe_training, predict_classes
from stochens_lab.experiments.runs import checkpoint_folder, find_device, finish_run, open_run
from stochens_lab.report.run_folder import TRAINING, RunFolder, SavedRun

SET, REFERENCE = "imdb", "HMC"
CHOOSING = 5000  # of the test reviews, the first
TEST, CHOICE = "test", "choosing"  # domains: the other test reviews, and these
TEMPERED = ", tempered"


class Parts(NamedTuple):
    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]  # the other reviews of the training set
    x: Tensor  # what is measured on, [B, T]
    y: Tensor  # [B]
    hmc: Tensor  # [B, 2]


def run(
    config: ImdbConfig,
    *,
    resume: bool = False,
    note: Callable[[str], None] = lambda text: None,
    build: Callable[[], CNNLSTM] = network,
) -> Path:
    """Train the rows that are missing, measure them; returns the run folder.

    build: the network of a member; that of the reference, unless told.
    """
    check(config)
    for name in config.rows:
        check_known("row", name, ROWS)
    device = find_device(config.engine, None, config.device)
    data = load(config)
    done = SavedRun(config.out).metrics.get(SET, {}) if resume else {}
    with open_run(config.out, "imdb", config_to_json(config), device, resume=resume) as folder:
        _keep_reference(config, folder, data)
        for name in config.rows or ROWS:
            if name in done and (name + TEMPERED in done or not len(data.held_out[0])):
                note(f"{name} is done")
                continue
            work = Work(build, data.train, device, checkpoint_folder(folder, name))
            _do_row(config, folder, data, name, work, note)
        return finish_run(folder)


def load(config: ImdbConfig) -> Parts:
    """The reviews to train on, and those of the test reviews that this run measures on."""
    reviews = load_reviews(config.data)
    if config.reviews is not None and config.reviews > len(reviews.x):
        raise InputError(f"reviews = {config.reviews}, but there are {len(reviews.x)} to train on")
    few, rest = slice(config.reviews), slice(config.reviews or len(reviews.x), None)
    part = slice(0, CHOOSING) if config.choosing else slice(CHOOSING, None)
    x, y, hmc = (t[part][: config.test_reviews] for t in reviews[2:])
    if not len(x):
        raise InputError(
            f"there are {len(reviews.x_test)} test reviews; the first {CHOOSING} are for choosing "
            "settings, so that none is left to measure on. Give --choosing to measure on those"
        )
    train, held_out = ((reviews.x[rows], reviews.y[rows]) for rows in (few, rest))
    return Parts(train, held_out, x, y, hmc)


def _domain(config: ImdbConfig) -> str:
    return CHOICE if config.choosing else TEST


def _do_row(
    config: ImdbConfig,
    folder: RunFolder,
    data: Parts,
    name: str,
    work: Work,
    note: Callable[[str], None],
) -> None:
    """Train, predict and measure; then once more with a temperature."""
    row = ROWS[name]
    epochs = row.epochs if config.epochs is None else config.epochs
    note(f"{name}: {config.members} members, {epochs} epochs of {len(data.train[0])} reviews")
    began = time.monotonic()
    with folder.timed(f"{SET}/{name}"):
        posterior = row.make(config, work, epochs)
    seconds = {"training": time.monotonic() - began}
    draws = config.draws if row.noisy else 1
    began = time.monotonic()
    _measure(config, folder, data, name, posterior, draws, note)
    seconds["prediction"] = time.monotonic() - began
    folder.put_row((SET, name, "cost"), {k: Interval(v, v, v) for k, v in seconds.items()})
    steps = epochs * -(-len(data.train[0]) // config.batch_size)
    told = describe_training(posterior, Training(name, row.make, steps, row.start))
    told |= {"members": len(posterior), "epochs": epochs, "draws": draws}
    if len(data.held_out[0]):
        warm = fit_temperature(posterior, data.held_out, draws=draws, seed=config.seed)
        _measure(config, folder, data, name + TEMPERED, warm, draws, note)
        assert warm.calibration is not None
        told["temperature"] = warm.calibration._asdict()
    folder.put(TRAINING, (SET, name), told)
    folder.write()


def _measure(
    config: ImdbConfig,
    folder: RunFolder,
    data: Parts,
    row: str,
    posterior: Posterior,
    draws: int,
    note: Callable[[str], None],
) -> None:
    p = predict_classes(posterior, data.x, draws=draws, seed=config.seed, keep_draws=False)
    place = (SET, row, _domain(config))
    folder.predictive(place, p)
    closeness = measure_closeness(p.mean.cpu(), data.hmc, config.resamples)
    folder.put_row(place, measure_labelled(p, data.y, config.resamples) | closeness)
    note(f"{row}: {_in_words(p, data)}")


def _in_words(p: Predictive, data: Parts) -> str:
    mean = p.mean.cpu()
    return (
        f"accuracy {100 * float(metrics.accuracy(mean, data.y)):.2f} %, "
        f"NLL {float(metrics.nll(mean, data.y)):.4f}, "
        f"agreement {100 * float(metrics.agreement(mean, data.hmc)):.2f} %, "
        f"total variation {float(metrics.total_variation(mean, data.hmc)):.4f}"
    )


def _keep_reference(config: ImdbConfig, folder: RunFolder, data: Parts) -> None:
    """Its own row; of the published predictions only the mean is known."""
    p = Predictive(data.hmc, data.hmc.new_zeros(len(data.hmc)), None)
    prefix = f"{SET}/{REFERENCE}/{_domain(config)}"
    folder.arrays[f"{prefix}/mean"] = data.hmc.numpy()
    folder.arrays[f"{prefix}/entropy"] = p.entropy.numpy()
    known = measure_labelled(p, data.y, config.resamples)
    known.pop("MI", None)
    folder.put_row((SET, REFERENCE, _domain(config)), known)
    folder.arrays[f"{SET}/points/labels-{_domain(config)}"] = data.y.numpy()
