"""The paper's toy experiment (Table 1 and fig1): how close each method comes to NUTS.

Three training sets of falling separability, a network 2-10-10-2, one inference per member;
in-domain points uniform on [-1, 1]^2, out-of-domain on [-10, 10]^2.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stochens.comparison import OWN_NOISE
from stochens.data import Replicas
from stochens.errors import InputError
from stochens.methods.np_dropout import set_distance
from stochens.networks import MLP
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens.reference_noise import as_if_apart
from stochens.samplers.sampling import nuts
from stochens.toy import IN_DOMAIN, OUT_OF_DOMAIN, grid, toy_set, uniform_points
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.parts import run_parts
from stochens_lab.experiments.replicates import Replicates
from stochens_lab.experiments.rows import (
    ENSEMBLES,
    Training,
    describe_reference,
    describe_training,
    predict_classes,
)
from stochens_lab.experiments.runs import (
    PARTS,
    checkpoint_folder,
    find_device,
    finish_run,
    is_whole,
    open_run,
    work_in,
)
from stochens_lab.experiments.toy_config import SIZES, ToyConfig, list_trainings
from stochens_lab.report.run_folder import SAMPLER, TRAINING, RunFolder

REFERENCE, NOISE = "NUTS", "NUTS" + OWN_NOISE
AS_MANY = "NUTS, as many draws"  # as an ensemble has members: the noise of that number
DOMAINS = {"in": IN_DOMAIN, "out": OUT_OF_DOMAIN}
MAP_STEPS = 61  # points along a side of a map
CURVES = ("regular", "SE3")  # whose course over training steps is told


def run(
    config: ToyConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Sample, train, predict, compare; everything goes to the run folder, which is returned.

    `resume`: what the folder holds is done already, and the rest is gone on with.
    """
    if resume and is_whole(config.out):
        note(f"{config.out} is complete")
        return config.out
    for name in config.sets:
        toy_set(name, n=config.points)  # refuses an unknown one before any work
        list_trainings(config, name)  # likewise
    if config.engine == "ray" and config.jobs > 1:
        raise InputError("--jobs is for one machine; with --engine ray, Ray shares out the work")
    device = find_device(config.engine, config.address, config.device)
    with open_run(config.out, "toy", config_to_json(config), device, resume=resume) as folder:
        if config.jobs > 1:
            parts = [  # a run for each set, inside the run's folder
                dataclasses.replace(config, sets=(name,), jobs=1, out=config.out / PARTS / name)
                for name in config.sets
            ]
            run_parts(run, parts, folder, jobs=config.jobs)
        else:
            replicates = Replicates(several=config.draws * config.seeds > 1)
            work = Work(config, folder, replicates, _make_places(config), note)
            for set_name in config.sets:
                _run_set(work, set_name)
        return finish_run(folder)


class Work(NamedTuple):
    """What all sets have in common."""

    config: ToyConfig
    folder: RunFolder
    replicates: Replicates
    places: dict[str, Tensor]  # test points of each domain, and the grids of its maps
    note: Callable[[str], None]


class Draw(NamedTuple):
    """A draw of the training data, and what the true posterior says."""

    number: int
    data: tuple[Tensor, Tensor]
    truth: dict[str, Predictive]  # by place


def _run_set(work: Work, set_name: str) -> None:
    config, folder, replicates, places, note = work
    draws = []
    for number in range(config.draws):
        note(f"set {set_name}, draw {number}: {REFERENCE}")
        draws.append(_sample_reference(work, set_name, number))
        replicates.write(folder)
    for row in list_trainings(config, set_name):
        note(f"set {set_name}: {row.name}, {row.steps} steps")
        with folder.timed(f"{set_name}/{row.name}"):
            trained = list(_train_ensembles(work, set_name, row, draws))
        for k, (draw, posterior) in enumerate(trained):
            shown = k == 0  # on the maps and in the tables of training
            wanted = places if shown else {d: places[d] for d in DOMAINS}
            found = {place: predict_classes(posterior, x) for place, x in wanted.items()}
            for domain in DOMAINS:
                key = (set_name, row.name, domain)
                replicates.add(key, found[domain], draw.truth[domain], draw=draw.number)
                if config.curve and row.name in CURVES:  # the last point of the course over steps
                    replicates.add_curve(key, row.steps, found[domain], draw.truth[domain])
            if config.curve and row.name == "SE3":
                replicates.add_distance(set_name, row.steps, set_distance(posterior.params))
            if shown:
                for place, p in found.items():
                    folder.predictive((set_name, row.name, place), p)
                folder.put(TRAINING, (set_name, row.name), describe_training(posterior, row))
        replicates.write(folder)
    if not config.only:
        _trace_curves(work, set_name, draws)
        replicates.write(folder)


def _sample_reference(work: Work, set_name: str, number: int) -> Draw:
    """The reference of one data draw, and its own noise."""
    config, folder, replicates, places, _ = work
    data = toy_set(set_name, n=config.points, draw=number)
    with folder.timed(f"{set_name}/{number}/{REFERENCE}"):
        reference = nuts(
            MLP(*SIZES),
            data,
            chains=config.chains,
            samples=config.samples,
            warmup=config.warmup,
            target_accept=0.9,
            seed=config.seed + number,
            run=work_in(config, checkpoint_folder(folder, set_name, number, REFERENCE)),
        )
    truth = {place: predict_classes(reference, x, keep_draws=False) for place, x in places.items()}
    if number == 0:
        for name, x in {"train": data[0], "labels": data[1], **places}.items():
            folder.arrays[f"{set_name}/points/{name}"] = x.numpy()
        for place, p in truth.items():
            folder.predictive((set_name, REFERENCE, place), p)
        folder.put(SAMPLER, (set_name,), describe_reference(reference, places["in"][:100]))
    few = _thin_reference(reference, config.members)
    for domain in DOMAINS:
        alone = config.draws == 1  # however many ensembles there are
        replicates.add_noise((set_name, NOISE, domain), truth[domain], draw=number, alone=alone)
        p, apart = (
            predict_classes(few, places[domain], keep_draws=False),
            as_if_apart(truth[domain]),
        )
        replicates.add((set_name, AS_MANY, domain), p, apart, draw=number, alone=alone)
    return Draw(number, data, truth)


def _train_ensembles(
    work: Work, set_name: str, row: Training, draws: list[Draw]
) -> Iterator[tuple[Draw, Posterior]]:
    """`seeds` independent ensembles of each data draw, trained together: a member depends on its
    own number alone, so this is the same as so many trainings, in fewer and larger steps."""
    config, folder = work.config, work.folder
    size = config.members if row.members is None else row.members
    options: dict[str, Any] = {"steps": row.steps, "start": row.start}
    place = (set_name, row.name, row.steps)
    if row.replicas and len(draws) > 1:
        members = size * config.seeds * len(draws)
        data = Replicas(draw.data for draw in draws)
        run = work_in(config, checkpoint_folder(folder, *place))
        trained = row.train(
            MLP(*SIZES), data, members=members, seed=config.seed, run=run, **options
        )
        parts = [trained.replica(d, len(draws)) for d in range(len(draws))]
        numbers = [tuple(m // len(draws) for m in part.members) for part in parts]
    else:
        parts = [
            row.train(
                MLP(*SIZES),
                draw.data,
                members=size * config.seeds,
                seed=config.seed + 100 * draw.number,
                run=work_in(config, checkpoint_folder(folder, *place, draw.number)),
                **options,
            )
            for draw in draws
        ]
        numbers = [_list_numbers(part) for part in parts]
    for draw, part, ids in zip(draws, parts, numbers, strict=True):
        for first in range(0, size * config.seeds, size):
            rows = [k for k, member in enumerate(ids) if first <= member < first + size]
            if rows:
                yield draw, part.take(slice(rows[0], rows[-1] + 1))


def _list_numbers(posterior: Posterior) -> tuple[int, ...]:
    """Of the member that each draw belongs to. Some members may have diverged and be left out."""
    if posterior.chains is None:
        return posterior.members
    each = len(posterior) // posterior.chains.count
    return tuple(k // each for k in range(len(posterior)))


def _thin_reference(reference: Posterior, members: int) -> Posterior:
    """Evenly spaced draws of the first half of the chains, as many as an ensemble has members."""
    assert reference.chains is not None
    first = len(reference) // reference.chains.count * (reference.chains.count // 2)
    every = max(1, first // members)
    return reference.take(slice(0, min(first, every * members), every))


def _make_places(config: ToyConfig) -> dict[str, Tensor]:
    places = {
        domain: uniform_points(config.test_points, half_side=side, seed=config.seed)
        for domain, side in DOMAINS.items()
    }
    maps = {f"map-{domain}": grid(side, steps=MAP_STEPS) for domain, side in DOMAINS.items()}
    return places | maps


def _trace_curves(work: Work, set_name: str, draws: list[Draw]) -> None:
    """Regular and SE3 trained for fewer steps, and how far apart SE3's sets are then."""
    config, _, replicates, places, note = work
    for steps in config.curve:
        for name in CURVES:
            note(f"set {set_name}: {name}, {steps} steps")
            row = Training(name, ENSEMBLES[name], steps)
            for draw, posterior in _train_ensembles(work, set_name, row, draws):
                for domain in DOMAINS:
                    p = predict_classes(posterior, places[domain], keep_draws=False)
                    replicates.add_curve((set_name, name, domain), steps, p, draw.truth[domain])
                if name == "SE3":
                    replicates.add_distance(set_name, steps, set_distance(posterior.params))
