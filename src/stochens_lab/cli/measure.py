"""stochens evaluate and stochens compare: how good runs are, and how close to a reference."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stochens.errors import InputError
from stochens_lab.cli.app import app
from stochens_lab.cli.shared import (
    AsJson,
    Draws,
    Model,
    RunArgument,
    SameModel,
    Seed,
    complete_run,
    print_json,
    print_line,
    print_table,
    warnings_as_notes,
)
from stochens_lab.experiments.configs import Device
from stochens_lab.experiments.runs import choose_device
from stochens_lab.workflow import evaluation
from stochens_lab.workflow.fitted_run import find_model, load_run
from stochens_lab.workflow.measures import RESAMPLES

Reference = Annotated[
    Path | None,
    typer.Option(
        help="Probabilities to be close to, row by row for these data: .npy [B, C] or [S, B, C], "
        "or a file that stochens predict wrote.",
    ),
]
Ood = Annotated[
    Path | None,
    typer.Option(
        help="Data of another kind, which the run should be unsure of: adds OOD AUROC, by the "
        "largest mean probability, and OOD AUROC (MI), by mutual information."
    ),
]
Resamples = Annotated[int, typer.Option(min=1, help="Of the bootstrap behind the intervals.")]


@app.command()
def evaluate(
    run: RunArgument,
    data: Annotated[Path, typer.Argument(help="Data like those of the run, with the target.")],
    reference: Reference = None,
    ood: Ood = None,
    model: Model = None,
    same_model: SameModel = False,
    draws: Draws = 1,
    seed: Seed = 0,
    resamples: Resamples = RESAMPLES,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Measure a run on data whose answers are known; every number with its 95 % interval.

    Classes: accuracy, NLL, Brier score, ECE, AURC, mean entropy and mutual
    information; closeness to a reference; AUROC of telling other data apart,
    by the largest mean probability and by mutual information (MI).
    Regression: RMSE, NLL, coverage and width of the 95 % intervals, in the
    target's own units.
    """
    place = choose_device(device)
    with warnings_as_notes():
        found = load_run(run, find_model(run, model, same_model), place)
        task = evaluation.Task(data, reference, ood, draws, seed, resamples)
        rows, size = evaluation.evaluate(found, task)
    if json:
        measures = {name: interval._asdict() for name, interval in rows.items()}
        print_json({"run": str(run), "data": str(data), "examples": size, "metrics": measures})
        return
    print_table({run.resolve().name: rows})
    print_line(f"{size} examples of {data}")


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs of stochens fit.", autocompletion=complete_run)
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Data to compare them on; what they held out, if not given."),
    ] = None,
    reference: Reference = None,
    ood: Ood = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="MODULE:FUNCTION of all runs, or one for each in order; it is run."),
    ] = None,
    same_model: SameModel = False,
    draws: Draws = 1,
    seed: Seed = 0,
    resamples: Resamples = RESAMPLES,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Put runs side by side, on the same data.

    Without --data these are the measures of what the runs held out
    (fit --validation), if that was the same for all; no model is needed
    then.
    """
    place = choose_device(device)
    names = evaluation.name_runs(runs)
    if data is None:
        if reference is not None or ood is not None:
            raise InputError("--reference and --ood need the data they belong to: --data FILE")
        rows, size = evaluation.read_held_out(runs, names)
    else:
        typed = _assign_models(model, runs)
        task = evaluation.Task(data, reference, ood, draws, seed, resamples)
        with warnings_as_notes():
            found = [
                load_run(run, find_model(run, name, same_model), place)
                for run, name in zip(runs, typed, strict=True)
            ]
            rows, size = evaluation.evaluate_side_by_side(found, names, task)
    if json:
        about: dict[str, Any] = {"data": None if data is None else str(data), "examples": size}
        measures = {
            name: {metric: interval._asdict() for metric, interval in row.items()}
            for name, row in rows.items()
        }
        print_json({**about, "runs": measures})
        return
    print_table(rows)
    print_line(f"{size} examples of {'what the runs held out' if data is None else data}")


def _assign_models(model: list[str] | None, runs: list[Path]) -> list[str | None]:
    if not model:
        return [None] * len(runs)
    if len(model) not in (1, len(runs)):
        raise InputError(f"--model must be given once, or once for each of the {len(runs)} runs")
    return [*model] if len(model) == len(runs) else [model[0]] * len(runs)
