"""Runs measured on data: one alone, or several side by side."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import reading
from stochens.metrics import Interval
from stochens.posterior.predictive import Predicted
from stochens.posterior.reporting import Wishes, write_report
from stochens_lab.data.columns import list_names
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.workflow.fitted_run import FittedRun, read_about
from stochens_lab.workflow.measures import RESAMPLES, measure, read_interval, read_reference
from stochens_lab.workflow.prediction import predict
from stochens_lab.workflow.training import HELD_OUT, HELD_OUT_FILE

Measures = dict[str, Interval]


class Task(NamedTuple):
    """What to measure on."""

    data: Path
    reference: Path | None = None
    ood: Path | None = None
    draws: int = 1
    seed: int = 0
    resamples: int = RESAMPLES


def evaluate(run: FittedRun, task: Task) -> tuple[Measures, int]:
    """Its measures, and on how many examples."""
    examples = run.read(task.data, with_targets=True)
    x, y = run.schema.inputs(examples), run.schema.truth(examples, task.data)
    classes = run.schema.classes
    if not classes and (task.reference or task.ood):
        raise InputError(
            f"--reference and --ood are for classes, and this run predicts {run.schema.kind}"
        )
    near = read_reference(task.reference, classes, len(x)) if task.reference else None
    far = _predict(run, run.inputs(task.ood), task) if task.ood else None
    rows = measure(_predict(run, x, task), y, reference=near, ood=far, resamples=task.resamples)
    return rows, len(x)


def write_page(run: FittedRun, task: Task, path: Path) -> None:
    """The same as one page, with figures and examples; predictions and rows in the data's own
    units."""
    examples, schema = run.read(task.data, with_targets=True), run.schema
    y = schema.truth(examples, task.data)
    wishes = Wishes(
        title=f"{run.path.resolve().name} on {task.data.name}",
        names=schema.classes or schema.names(y.shape[1]),
        # the columns of one array have no names
        features=schema.layout.features if schema.layout.kind == "columns" else (),
        draws=task.draws,
        seed=task.seed,
        resamples=task.resamples,
    )
    raw = dataclasses.replace(schema, inputs_scale=None).inputs(examples)
    write_report(
        run.posterior,
        schema.inputs(examples),
        y,
        run.inputs(task.ood) if task.ood else None,
        path,
        wishes,
        convert=schema.in_units,
        shown=raw,
    )


def _predict(run: FittedRun, x: Tensor, task: Task) -> Predicted:
    return predict(run.posterior, run.schema, x, draws=task.draws, seed=task.seed)


def evaluate_side_by_side(
    runs: Sequence[FittedRun], names: Sequence[str], task: Task
) -> tuple[dict[str, Measures], int]:
    """The measures of each, on the same data."""
    first = runs[0].schema
    for run, name in zip(runs, names, strict=True):
        own = run.schema
        if (own.kind, own.classes, own.layout.targets) != (
            first.kind,
            first.classes,
            first.layout.targets,
        ):
            raise InputError(
                f"{names[0]} and {name} predict other things: {_describe_target(runs[0])}, and "
                f"{_describe_target(run)}"
            )
    rows, size = {}, 0
    for run, name in zip(runs, names, strict=True):
        rows[name], size = evaluate(run, task)
    return rows, size


def _describe_target(run: FittedRun) -> str:
    target = ", ".join(run.schema.layout.targets)
    return f"{target} ({list_names(run.schema.classes, 4) or run.schema.kind})"


def read_held_out(runs: Sequence[Path], names: Sequence[str]) -> tuple[dict[str, Measures], int]:
    """What `fit` measured of the rows that each run held out, where those are the same rows."""
    rows: dict[str, Measures] = {}
    seen: dict[str, int] = {}
    for path, name in zip(runs, names, strict=True):
        read_about(path)
        if not (path / HELD_OUT_FILE).is_file():
            raise InputError(f"{path} held nothing out; say what to compare on: --data FILE")
        with reading(path):
            kept = json.loads((path / HELD_OUT_FILE).read_text())
            seen[str(kept["digest"])] = int(kept["rows"])
            of_method = next(iter(SavedRun(path).metrics[HELD_OUT].values()))
            rows[name] = {
                str(metric): read_interval(numbers)
                for metric, numbers in of_method[HELD_OUT].items()
            }
    if len(seen) > 1:
        raise InputError(
            "the runs held other rows out, so their measures are of different data; say what to "
            "compare on: --data FILE"
        )
    return rows, next(iter(seen.values()))


def name_runs(runs: Sequence[Path]) -> list[str]:
    """Of the folders, by their last part where that tells them apart."""
    short = [run.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run) for run in runs]
    if len(set(names)) < len(names):
        raise InputError("a run is named twice")
    return names
