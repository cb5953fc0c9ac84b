"""`stochens fit`: from a file and the name of a network to a run folder.

RUN/run.json      what was asked, on what machine, how long it took, whether it is whole
RUN/posterior/    the members (stochens.load reads it)
RUN/schema/       columns, classes and scales, applied to all data that come later
RUN/metrics.json  of the share that was held out, if one was; held-out.json says which rows
RUN/checkpoints/  while it runs; --resume goes on from there
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.checks import probe_outputs
from stochens.errors import InputError
from stochens.files.storage import CHECKSUMS, DESCRIPTION, LOCK, write_whole
from stochens.likelihoods import Likelihood
from stochens.members import builder
from stochens.methods import METHODS, Regular
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.randomness.seeds import derive
from stochens.run.checkpoints import digest, refuse_other
from stochens.samplers.swag import multiswa, multiswag
from stochens.training.fit import fit
from stochens.training.machines import local_device
from stochens.training.network import fresh
from stochens.training.schedules import Optimizer
from stochens_lab.data.examples import Examples, Layout, read_first
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.rows import Training, describe_training
from stochens_lab.experiments.runs import (
    CHECKPOINTS,
    checkpoint_folder,
    find_device,
    finish_run,
    open_run,
    work_in,
)
from stochens_lab.report.run_folder import (
    METRICS,
    RUN,
    SAMPLER,
    TRAINING,
    RunFolder,
    SavedRun,
)
from stochens_lab.workflow.config import (
    EXPERIMENT,
    TAILS,
    FitConfig,
    make_likelihood,
    method_name,
)
from stochens_lab.workflow.measures import measure
from stochens_lab.workflow.model import Model
from stochens_lab.workflow.prediction import predict
from stochens_lab.workflow.schema import Schema, learn_schema

POSTERIOR, SCHEMA = "posterior", "schema"
HELD_OUT, HELD_OUT_FILE = "validation", "held-out.json"
DATA = "data"  # in run.json: a digest of what the run was begun with
SPLIT = 0x5B117  # a stream of its own among those of the seed
RANK = 20  # what multiswag takes by itself
UNEVEN = 100.0  # ratio of sizes among features from where on scaling is suggested

Note = Callable[[str], None]


class Prepared(NamedTuple):
    """Data ready to learn from."""

    schema: Schema
    x: Tensor
    y: Tensor
    held: "HeldOut | None"  # what is not learned from

    def digest(self) -> str:
        """Of all that was read, as it is learned from and measured."""
        apart = {} if self.held is None else {"held x": self.held.x, "held y": self.held.y}
        return digest({"x": self.x, "y": self.y, **apart})


class HeldOut(NamedTuple):
    x: Tensor
    y: Tensor  # in its own units
    digest: str  # which rows of which data; runs with the same are compared on the same


def prepare(config: FitConfig, model: Model, note: Note) -> Prepared:
    """Read, check and scale the data; nothing is written."""
    file, like = _shorten(config.data), make_likelihood(config)
    layout, examples = read_first(
        file,
        targets=config.target,
        features=config.feature,
        drop=config.drop,
        blanks=like.missing == "mask",
    )
    rows, held = split(len(examples.x), config.validation, config.seed)
    schema = learn_schema(
        layout,
        examples,
        file,
        like=like,
        outputs=lambda few: _try_network(model, few, config.seed),
        order=config.order,
        normalise=config.normalise,
        rows=rows,
    )
    if not config.normalise:
        _advise(layout, examples, note)
    elif config.option and schema.target_scale is not None:
        sd = ", ".join(f"{float(s):.3g}" for s in schema.target_scale.sd)
        note(f"--option {', '.join(config.option)}: of targets in units of their sd ({sd})")
    x, y = schema.inputs(examples), schema.targets(examples, file)
    _check_targets(like, y, file)
    if not len(held):
        return Prepared(schema, x, y, None)
    truth = schema.truth(examples, file)
    apart = HeldOut(x[held], truth[held], digest({"y": truth, "rows": held}))
    return Prepared(schema, x[rows], y[rows], apart)


def _shorten(path: Path) -> Path:
    """As it was typed, where it lies below the current folder; errors name it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def split(size: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows to hold out, by the seed alone."""
    count = round(size * share)
    if share and not 0 < count < size:
        raise InputError(f"--validation {share} of {size} rows leaves {size - count} to learn from")
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derive(seed, SPLIT)))
    return order[count:].sort().values, order[:count].sort().values


def _try_network(model: Model, few: Tensor, seed: int) -> Tensor:
    """The outputs of the network as it is at first, [B, ...]."""
    plain = fresh(builder(model), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fit will say it
        return probe_outputs(plain, few)


def _check_targets(like: Likelihood, y: Tensor, file: Path) -> None:
    try:
        like.check_targets(y)
    except InputError as error:
        raise InputError(f"{file}: {error} (the first row is 0)") from None


def _advise(layout: Layout, examples: Examples, note: Note) -> None:
    """A word where features are of very different sizes, which a network learns badly from."""
    if layout.kind != "columns":
        return
    sizes = abs(examples.x).max(0)
    sizes = sizes[sizes > 0]
    if len(sizes) and max(sizes.max(), 1.0) / min(sizes.min(), 1.0) > UNEVEN:
        note(
            f"the features reach from {sizes.min():.3g} to {sizes.max():.3g}; --normalise brings "
            "them to one size, which most networks need"
        )


def run(config: FitConfig, model: Model, *, resume: bool = False, note: Note) -> Path:
    """Train, keep and measure; returns the run's folder."""
    device = find_device(config.engine, config.address, config.device)
    data = prepare(config, model, note)
    steps = _count_steps(config, len(data.x))
    if method_name(config) == "multiswag" and steps < 2 * RANK:
        raise InputError(
            f"--method multiswag takes {RANK} snapshots of the second half of training, which has "
            f"{steps} steps in all; give it more --epochs, or a smaller --batch-size"
        )
    place = local_device(config.device)
    new = not config.out.exists()
    now = config_to_json(config)
    before = SavedRun(config.out).about if resume else {"config": now}
    whose = {DATA: data.digest()}
    if DATA in before:  # of a run that is older than this it is not known
        refuse_other(whose, before, str(config.out))
    # The model may yet be refused by the checkpoints: then what was asked for stays as it is.
    asked = before["config"] if _has_checkpoint(config.out) else now
    with open_run(config.out, EXPERIMENT, asked, device, resume=resume) as folder:
        folder.say(**whose)
        where = checkpoint_folder(folder, EXPERIMENT)
        try:
            with folder.timed("training"):
                posterior = _train(config, model, data, where)
        except Exception:
            if not resume and not where.exists():  # refused before the first step
                _undo(config.out, new)
            elif not _has_checkpoint(config.out):
                folder.say(config=before["config"])
            raise
        folder.say(config=now)
        posterior = posterior.to("cpu")
        data.schema.save(config.out / SCHEMA)
        posterior.save(config.out / POSTERIOR, overwrite=True)
        name = method_name(config)
        told = {
            **describe_training(posterior, Training(name, fit, steps)),
            "members": len(posterior),
        }
        folder.put(TRAINING, (EXPERIMENT, name), told)
        if data.held is not None:
            with folder.timed(HELD_OUT):
                _validate(folder, posterior.to(place), data, name)
        return finish_run(folder)


def _has_checkpoint(out: Path) -> bool:
    """Whether there is a checkpoint."""
    return any((out / CHECKPOINTS).rglob(DESCRIPTION))


def _train(config: FitConfig, model: Model, data: Prepared, where: Path) -> Posterior:
    options: dict[str, Any] = {
        "members": config.members,
        "epochs": config.epochs,
        "batch_size": config.batch_size or None,
        "lr": config.lr,
        "prior": Prior(config.prior_precision, scale=config.prior_scale),
        "likelihood": make_likelihood(config),
        "seed": config.seed,
        "run": work_in(config, where),
    }
    name = method_name(config)
    rates = config.schedule or ("constant" if name in TAILS else "cosine")
    options["optimizer"] = Optimizer(config.optimizer, schedule=rates)
    if name in TAILS:
        tail = {"multiswa": multiswa, "multiswag": multiswag}[name]
        return tail(model, (data.x, data.y), method=Regular(skip=config.skip), **options)
    rate = {} if config.rate is None else {"p": config.rate}
    method = METHODS[name](skip=config.skip, **rate)  # type: ignore[arg-type]
    return fit(model, (data.x, data.y), method=method, **options)


def _undo(out: Path, new: bool) -> None:
    """Take back what a run wrote before it was found to be impossible."""
    for name in (RUN, METRICS, TRAINING, SAMPLER, CHECKSUMS, LOCK):
        (out / name).unlink(missing_ok=True)
    if new:
        out.rmdir()


def _count_steps(config: FitConfig, size: int) -> int:
    return config.epochs * -(-size // min(config.batch_size or size, size))


def _validate(folder: RunFolder, posterior: Posterior, data: Prepared, name: str) -> None:
    """Measures of what was held out, and which rows those are, so that runs can be compared."""
    assert data.held is not None
    held = data.held
    row = measure(predict(posterior, data.schema, held.x), held.y)
    folder.put_row((HELD_OUT, name, HELD_OUT), row)
    about = {"rows": len(held.x), "digest": held.digest}
    write_whole(folder.path / HELD_OUT_FILE, (json.dumps(about, indent=2) + "\n").encode())
