"""From one trained network to posteriors: ways to get members, in what they reach and what they
cost.

MobileNetV2 with ImageNet's weights learns CIFAR-100. The output layer alone, adapters, the last
blocks or everything is each member's own. A row is kept when it is done, and a run that was stopped
goes on with the first that is missing.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens import metrics
from stochens.errors import InputError, check_known
from stochens.members import shared_by_all
from stochens.metrics import Interval
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens.randomness.seeds import derive
from stochens.run.options import Run
from stochens.training.fit import fit
from stochens_lab.data.images import Task, load_task
from stochens_lab.experiments.cifar_measures import measure_labelled, measure_ood
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.rows import Training, describe_training, predict_classes
from stochens_lab.experiments.runs import checkpoint_folder, find_device, finish_run, open_run
from stochens_lab.experiments.transfer_config import TransferConfig
from stochens_lab.experiments.transfer_rows import Row, Trained, list_rows, mobilenet, to_pixels
from stochens_lab.report.run_folder import TRAINING, RunFolder, SavedRun
from stochens_lab.report.view import COST

SET = "cifar100"
TOLD = ("accuracy", "NLL", "ECE")
Build = Callable[[TransferConfig, int], Trained]


class Work(NamedTuple):
    """What all rows have in common."""

    config: TransferConfig
    images: Task
    trained: Trained
    run: Run
    note: Callable[[str], None]


def run(
    config: TransferConfig,
    *,
    resume: bool = False,
    note: Callable[[str], None] = lambda text: None,
    build: Build | None = None,
) -> Path:
    """Train the rows that are missing, measure them; returns the run folder.

    build: (config, classes) -> the trained network; MobileNetV2 from the file of weights, else.
    """
    device = find_device(config.engine, None, config.device)
    images = load(config)
    if build is not None:
        trained = build(config, images.classes)
    else:
        trained = mobilenet(config.weights, images.classes, side=config.side, seed=config.seed)
    rows = list_rows(trained.late)
    for name in config.rows:
        check_known("row", name, rows)
    before = SavedRun(config.out) if resume else None
    done = before.metrics.get(SET, {}) if before else {}
    told: dict[str, Any] = dict(before.training.get(SET, {})) if before else {}
    how = Run(device=device, engine=config.engine, precision=config.precision)
    work = Work(config, images, trained, how, note)
    with open_run(config.out, "transfer", config_to_json(config), device, resume=resume) as folder:
        for name in config.rows or rows:
            if name in done:
                note(f"{name} is done")
                continue
            told[name] = _run_row(work, folder, name, rows[name], told)
        return finish_run(folder)


def load(config: TransferConfig) -> Task:
    """CIFAR-100, and those of the other sets that are in the folder; as the network takes them."""
    found = load_task(config.data, SET, images=config.images, test_images=config.test_images)
    (x, y), (x_test, y_test) = found.train, found.test
    if not 0 < config.held_out < len(x):
        raise InputError(f"held_out = {config.held_out} leaves no image to train on")
    return found._replace(
        train=(to_pixels(x), y),
        test=(to_pixels(x_test), y_test),
        others={name: to_pixels(other) for name, other in found.others.items()},
    )


def _run_row(
    work: Work, folder: RunFolder, name: str, row: Row, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Choose its rate, train, predict and measure; what is told of its training."""
    config, images, trained, run, note = work
    options: dict[str, Any] = {
        **row.options,
        "epochs": config.epochs * row.times,
        "batch_size": config.batch_size,
        "seed": config.seed,
    }
    members = config.members if row.members is None else row.members
    tried = told.get(row.rate_of or "", {}).get("held-out NLL")
    tried = tried or _try_rates(work, name, row, options)
    options["lr"] = float(min(tried, key=lambda rate: tried[rate]))
    note(f"{name}: {members} members, {options['epochs']} epochs, rate {options['lr']:g}")
    cost = _Cost(str(run.device))
    with folder.timed(f"{SET}/{name}"):
        kept = dataclasses.replace(run, checkpoint=checkpoint_folder(folder, name))
        posterior = fit(trained.net, images.train, members=members, run=kept, **options)
        spent = cost.of(posterior)
    began = time.monotonic()
    p = predict_classes(posterior, images.test[0], seed=config.seed, keep_draws=False)
    spent["prediction"] = time.monotonic() - began
    measured = measure_labelled(p, images.test[1], config.resamples)
    folder.put_row((SET, name, "test"), {metric: measured[metric] for metric in TOLD})
    for other, x in images.others.items():
        q = predict_classes(posterior, x, seed=config.seed, keep_draws=False)
        folder.put_row((SET, name, other), measure_ood(p.mean, q.mean, config.resamples))
    folder.put_row((SET, name, COST), {what: Interval(v, v, v) for what, v in spent.items()})
    steps = options["epochs"] * -(-len(images.train[0]) // config.batch_size)
    start = row.options.get("start", "reset")
    about = describe_training(posterior, Training(name, fit, steps, start))
    about |= {"rate": options["lr"], "held-out NLL": tried, "members": members}
    folder.put(TRAINING, (SET, name), about)
    folder.write()
    note(f"{name}: {_describe_result(p, images.test[1], spent)}")
    return about


def _try_rates(work: Work, name: str, row: Row, options: Mapping[str, Any]) -> dict[str, float]:
    """NLL of one member on images that it was not trained on, for each rate: test images are for
    the results."""
    config, (x, y) = work.config, work.images.train
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(derive(config.seed, 1)))
    held, rest = order[: config.held_out], order[config.held_out :]
    found: dict[str, float] = {}
    for rate in row.rates:
        data = (x[rest], y[rest])
        one = fit(work.trained.net, data, members=1, lr=rate, run=work.run, **options)
        p = predict_classes(one, x[held], seed=config.seed, keep_draws=False)
        found[f"{rate:g}"] = float(metrics.nll(p.mean.cpu(), y[held]))
        work.note(f"{name}: rate {rate:g}, held-out NLL {found[f'{rate:g}']:.4f}")
    return found


class _Cost:
    """Seconds, memory of the GPU and bytes to keep, from now on."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        self._began = time.monotonic()

    def of(self, posterior: Posterior) -> dict[str, float]:
        if self._cuda:
            torch.cuda.synchronize()
        found = {"training": time.monotonic() - self._began}
        if self._cuda:
            found["GPU memory"] = (torch.cuda.max_memory_allocated() - self._before) / 1e9
        kept = [*posterior.params.values(), *shared_by_all(posterior.net).values()]
        return found | {"stored": sum(t.numel() * t.element_size() for t in kept) / 1e6}


def _describe_result(p: Predictive, labels: Tensor, spent: Mapping[str, float]) -> str:
    mean = p.mean.cpu()
    accuracy, nll = float(metrics.accuracy(mean, labels)), float(metrics.nll(mean, labels))
    return f"accuracy {100 * accuracy:.2f} %, NLL {nll:.4f}, {spent['training']:.1f} s"
