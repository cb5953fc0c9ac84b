"""ResNet-20-FRN ensembles on CIFAR, measured against the published HMC predictions (Tables 2, 3).

One run is one row of the table: a method, trained in blocks of members. A block is saved when it is
done, and a run that was stopped goes on with the first that is missing.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.checks import positive
from stochens.errors import InputError
from stochens.members import device_of
from stochens.methods.base import check_node
from stochens.metrics import Interval
from stochens.networks import ResNet20FRN
from stochens.posterior.joining import join_posteriors
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens.run.options import Run
from stochens.training.machines import local_device
from stochens.training.schedules import Natural, rate_for, schedule_named
from stochens_lab.data.corruptions import CORRUPTIONS, INTENSITIES, corrupt
from stochens_lab.data.hmc_reference import check_aligned, load_hmc_reference
from stochens_lab.data.image_sets import normalise
from stochens_lab.data.images import Task, load_task
from stochens_lab.experiments.cifar_config import CifarConfig
from stochens_lab.experiments.cifar_measures import (
    average_corrupted,
    measure_closeness,
    measure_corrupted,
    measure_labelled,
    measure_ood,
    trace_inferences,
    trace_members,
)
from stochens_lab.experiments.cifar_rows import (
    BLOCKS,
    KINDS,
    Block,
    Net,
    cut_blocks,
    find_missing,
    find_start,
    load_blocks,
    name_row,
    optimizer_of,
    take_params,
    train_block,
)
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.rows import Training, describe_training, predict_classes
from stochens_lab.experiments.runs import (
    CHECKPOINTS,
    checkpoint_folder,
    find_device,
    finish_run,
    list_begun,
    open_run,
)
from stochens_lab.report.run_folder import TRAINING, RunFolder


def load_reference(config: CifarConfig, images: Task) -> Tensor | None:
    """HMC's probabilities for the test images, proved to be in their order; None if not there."""
    if config.name != "cifar10":
        return None  # none were published in this form
    try:
        probs = load_hmc_reference(config.data, labels=images.labels)
    except InputError as error:
        if "has no HMC reference" in str(error):
            return None
        raise
    probs = probs[: config.test_images]
    check_aligned(probs, images.test[1])
    return probs


REFERENCE = "HMC"
NAMES = ("cifar10", "cifar100")
TIMED_BLOCK = 10  # members of a block where time is limited and none is asked for
MEMBER_COUNTS = (1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100)
INFERENCES = (1, 4, 16)  # of each member; the paper saw little change


def check(config: CifarConfig) -> None:
    """Everything that is wrong with the options alone."""
    if config.name not in NAMES:
        raise InputError(f"name must be one of {', '.join(NAMES)}, got {config.name!r}")
    if config.method not in KINDS:
        raise InputError(f"method must be one of {', '.join(KINDS)}, got {config.method!r}")
    check_node(config.node)
    KINDS[config.method].rule(config)  # its rate
    rate_for(optimizer_of(config).kind, config.lr)
    if config.optimizer != "sgd" and KINDS[config.method].make is not KINDS["regular"].make:
        raise InputError(f"optimizer is for methods that are trained; {config.method} has its own")
    if config.optimizer != Natural.name and (config.sigma or config.memory):
        raise InputError("sigma and memory are for --optimizer natural")
    schedule_named(config.schedule)
    positive(prior_precision=config.prior_precision)
    if config.minutes is not None and not config.minutes >= 0:
        raise InputError(f"minutes must be a number from 0 on, got {config.minutes}")
    if config.start is not None and config.method in ("csghmc", "langevin"):
        raise InputError(
            f"{config.method} begins with draws of its own; start is for the other methods"
        )
    if config.step_size is not None:
        positive(step_size=config.step_size)
        if config.method != "langevin":
            raise InputError(f"step_size is langevin's; {config.method} has lr")
    for field in ("members", "epochs", "batch_size", "draws", "block", "images", "test_images"):
        value = getattr(config, field)
        if value is not None and value < 1:
            raise InputError(f"{field} must be at least 1, got {value}")


class Work(NamedTuple):
    """What is trained and measured, and where it goes."""

    config: CifarConfig
    folder: RunFolder
    images: Task
    row: str
    note: Callable[[str], None]


def run(
    config: CifarConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Train what is missing, predict, compare; returns the run folder."""
    check(config)
    device = find_device(config.engine, config.address, config.device)
    images = load_task(
        config.data, config.name, images=config.images, test_images=config.test_images
    )
    reference = load_reference(config, images)
    net = lambda: ResNet20FRN(images.classes)  # noqa: E731
    start, copy = None, config.out / CHECKPOINTS / "start"
    if config.start is not None:
        ids = find_missing(config.out, config.members)
        start = find_start(config.start, copy, config, net, ids)
    row = name_row(config)
    with open_run(config.out, "cifar", config_to_json(config), device, resume=resume) as folder:
        if start is not None:
            start.save(copy, overwrite=True)  # a run that goes on can do without the other
        work = Work(config, folder, images, row, note)
        ensemble, whole = _train_blocks(work, net, start, device)
        _measure(work, reference, ensemble)
        if whole:
            return finish_run(folder)
        folder.write()
        return folder.path


# Training -----------------------------------------------------------------------------------------


def _train_blocks(
    work: Work, net: Net, start: Posterior | None, device: str
) -> tuple[Posterior, bool]:
    """The blocks that are there and those that there is time for, and whether these are all."""
    config, folder, images, row, note = work
    began, longest = time.monotonic(), 0.0
    blocks = load_blocks(folder.path, net, str(local_device(device)))
    for path in blocks:
        longest = max(longest, folder.timings.get(f"{config.name}/{row} {path.name}", 0.0))
        note(f"{row}: members {path.name} are there")
    data: tuple[Tensor, Tensor] | None = None
    size = config.block or (config.members if config.minutes is None else TIMED_BLOCK)
    whole = True
    for ids in cut_blocks(folder.path, list_begun(folder), config.members, size):
        path = folder.path / BLOCKS / f"{ids[0]:04d}-{ids[-1]:04d}"
        if config.minutes is not None and blocks:
            left = 60 * config.minutes - (time.monotonic() - began)
            if left < longest:
                note(f"{row}: no time for members {ids[0]} to {ids[-1]}; go on with --resume")
                whole = False
                break
        if data is None:
            place = "cpu" if config.engine == "ray" else device  # workers have devices of their own
            data = normalise(images.train[0], config.name, device=place), images.train[1]
        note(f"{row}: members {ids[0]} to {ids[-1]}, {config.epochs} epochs")
        before = time.monotonic()
        with folder.timed(f"{config.name}/{row} {path.name}"):
            keep, own = checkpoint_folder(folder, path.name), take_params(start, ids)
            posterior = train_block(config, Block(net, data, ids, device, keep, own))
        longest = max(longest, time.monotonic() - before)
        posterior.save(path)
        folder.write()
        blocks[path] = posterior
    return join_posteriors([blocks[path] for path in sorted(blocks)]), whole


# Measuring ----------------------------------------------------------------------------------------


def _measure(work: Work, reference: Tensor | None, ensemble: Posterior) -> None:
    config, folder, images, row, note = work
    x_test, y_test = images.test
    device = device_of(ensemble.params)
    precision = "bf16" if device.type == "cuda" else "float32"
    ask = {"draws": config.draws, "seed": config.seed, "run": Run(precision=precision)}

    def predicted(x: Tensor, **options: Any) -> Predictive:
        return predict_classes(ensemble, normalise(x, config.name), **{**ask, **options})

    note(f"{row}: {len(ensemble)} members on {len(x_test)} test images")
    p = predicted(x_test, keep_draws=True)
    folder.arrays[f"{config.name}/points/labels-test"] = y_test.numpy()
    _keep_test(work, row, p, reference)
    told = describe_training(
        ensemble, Training(row, KINDS[config.method].make, _count_steps(config, images))
    )
    told["members curve"] = trace_members(p.probs, len(ensemble), y_test, reference, MEMBER_COUNTS)
    if reference is not None:
        _keep_reference(work, reference)
    for name, x in images.others.items():
        note(f"{row}: {name}, which is no {config.name}")
        q = predicted(x, keep_draws=False)
        folder.predictive((config.name, row, name), q)
        folder.put_row((config.name, row, name), measure_ood(p.mean, q.mean, config.resamples))
    if config.inferences:
        note(f"{row}: {INFERENCES[-1]} inferences of each member")
        many = predicted(x_test, keep_draws=True, draws=INFERENCES[-1]).probs
        told["inferences curve"] = trace_inferences(
            many, len(ensemble), y_test, reference, INFERENCES
        )
        for count in INFERENCES[1:]:
            fewer = Predictive.of(many[: count * len(ensemble)])
            _keep_test(work, f"{row}, {count} inferences", fewer, reference)
    folder.put(TRAINING, (config.name, row), told)
    folder.write()
    if config.corruptions:
        _measure_corrupted(work, device, predicted)


def _keep_test(work: Work, row: str, p: Predictive, reference: Tensor | None) -> None:
    """What an ensemble says of the test images, and its measures."""
    key = (work.config.name, row, "test")
    work.folder.predictive(key, p)
    measured = measure_labelled(p, work.images.test[1], work.config.resamples)
    if reference is not None:
        measured |= measure_closeness(p.mean, reference, work.config.resamples)
    work.folder.put_row(key, measured)


def _count_steps(config: CifarConfig, images: Task) -> int:
    return config.epochs * -(-len(images.train[0]) // config.batch_size)


def _keep_reference(work: Work, probs: Tensor) -> None:
    """Its own row; of the published predictions only the mean is known."""
    config, folder = work.config, work.folder
    prefix = f"{config.name}/{REFERENCE}/test"
    p = Predictive(probs, probs.new_zeros(len(probs)), None)
    folder.arrays[f"{prefix}/mean"] = probs.numpy()
    folder.arrays[f"{prefix}/entropy"] = p.entropy.numpy()
    known = measure_labelled(p, work.images.test[1], config.resamples)
    known.pop("MI", None)
    folder.put_row((config.name, REFERENCE, "test"), known)


def _measure_corrupted(
    work: Work, device: torch.device, predicted: Callable[..., Predictive]
) -> None:
    """The test images under every corruption and intensity, and the mean over all of them."""
    config, folder, images, row, note = work
    x, y = images.test[0].to(device), images.test[1]
    found: dict[tuple[str, int], dict[str, Interval]] = {}
    for corruption in CORRUPTIONS:
        note(f"{row}: {corruption}")
        for intensity in range(1, INTENSITIES + 1):
            corrupted = corrupt(x, corruption, intensity, seed=config.seed)
            with folder.timed(f"{config.name}/{row}: predictions of corrupted images"):
                p = predicted(corrupted, keep_draws=False)
            measured = measure_corrupted(p.mean, y)
            found[corruption, intensity] = measured
            folder.put_row((config.name, row, f"{corruption}-{intensity}"), measured)
        folder.write()
    folder.put_row((config.name, row, "corrupted"), average_corrupted(found))
