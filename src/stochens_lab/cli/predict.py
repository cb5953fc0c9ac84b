"""stochens predict, evaluate and compare: what runs say of data, and how good they are."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stochens.errors import InputError
from stochens.posterior.reporting import check_place
from stochens_lab.cli.app import app, printable
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
from stochens_lab.data.user_images import list_files
from stochens_lab.experiments.configs import Device
from stochens_lab.experiments.runs import choose_device
from stochens_lab.workflow import evaluation, prediction
from stochens_lab.workflow.fitted_run import find_model, load_run
from stochens_lab.workflow.measures import RESAMPLES

SHOWN = 10  # rows on a terminal
MOST_COLUMNS = 8
# of columns for each class or target, as long as there are more than that
LEFT_OUT = (
    "mutual_information_",
    "entropy_",
    "aleatoric_std_",
    "epistemic_std_",
    "label_",
    "prob_",
)


@app.command()
def predict(
    run: RunArgument,
    data: Annotated[Path, typer.Argument(help="Data like those of the run; no target needed.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write: .parquet, .csv or .npz."),
    ] = None,
    model: Model = None,
    same_model: SameModel = False,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    draws: Draws = 1,
    seed: Seed = 0,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Predict with a run: the mean, its uncertainty, and an interval for every class.

    Columns: label (the likeliest class), prob_CLASS (mean over members),
    low_CLASS and high_CLASS (an interval of the members' probabilities),
    entropy (all uncertainty) and mutual_information (what the members
    disagree on), in nats. Labels of yes or no: the same for each,
    label_NAME (1 or 0), prob_NAME, entropy_NAME and so on. Numbers and
    counts: mean, std, low and high (an interval of the target),
    epistemic_std and aleatoric_std (the two parts of std, as standard
    deviations: their squares add up to its square).

    Without --out the first rows are shown. A run holds no code, so the
    model is named again.
    """
    place = choose_device(device)
    if out is not None:
        prediction.check_out(out, data)
    with warnings_as_notes():
        found = load_run(run, find_model(run, model, same_model), place)
        x = found.inputs(data)
        columns = prediction.make_table(
            found.posterior, found.schema, x, level=level, draws=draws, seed=seed
        )
    if data.is_dir():  # rows of a table are known by their order, images by their name
        columns = {"file": np.array(list_files(data)), **columns}
    if out is not None:
        prediction.write_table(columns, found.schema, out)
    flat = prediction.flatten_table(columns, found.schema)
    if json and out is None:
        names, rows = list(flat), zip(*(column.tolist() for column in flat.values()), strict=True)
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif json:
        print_json({"out": str(out), "rows": len(x), "columns": list(flat)})
    elif out is not None:
        print_line(f"{len(x)} predictions: {out}")
    else:
        _print_rows(flat, len(x))


def _print_rows(flat: prediction.Table, rows: int) -> None:
    """The first rows, and of many columns those that matter."""
    names = [name for name in flat if not name.startswith(("low_", "high_"))]
    for beginning in LEFT_OUT:
        if len(names) > MOST_COLUMNS:
            names = [name for name in names if not name.startswith(beginning)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in names:
        heading = escape(printable(name.replace("mutual_information", "MI")))
        table.add_column(heading, justify="right", overflow="fold")
    for row in range(min(rows, SHOWN)):
        table.add_row(*(_format_cell(flat[name][row]) for name in names))
    Console().print(table)
    if rows > SHOWN:
        print_line(f"{SHOWN} of {rows} rows; --out FILE writes all, with the intervals")


def _format_cell(value: object) -> str:
    number = isinstance(value, np.floating)
    return f"{value:.4g}" if number else escape(printable(str(value)))


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
    report: Annotated[
        Path | None,
        typer.Option(help="HTML file to write: the same numbers, with figures and examples."),
    ] = None,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Measure a run on data whose answers are known; every number with its 95 % interval.

    Classes: accuracy, NLL, Brier score, ECE, AURC, mean entropy and mutual
    information; closeness to a reference; AUROC of telling other data apart,
    by the largest mean probability and by mutual information (MI).
    Labels: exact match, F1 and the like. Numbers and counts: RMSE, NLL,
    CRPS, and coverage, width and score of the 95 % intervals, in the
    target's own units.

    --report writes one page that opens from disk: calibration, risk and
    coverage, histograms of uncertainty, the examples that are most uncertain
    or most confidently wrong, tables by class, members, training curves.
    """
    place = choose_device(device)
    page = None if report is None else check_place(report, overwrite=True)
    with warnings_as_notes():
        found = load_run(run, find_model(run, model, same_model), place)
        task = evaluation.Task(data, reference, ood, draws, seed, resamples)
        rows, size = evaluation.evaluate(found, task)
        if page is not None:
            evaluation.write_page(found, task, page)
    if json:
        measures = {name: interval._asdict() for name, interval in rows.items()}
        about: dict[str, Any] = {"run": str(run), "data": str(data), "examples": size}
        written = {} if page is None else {"report": str(page)}
        print_json({**about, "metrics": measures, **written})
        return
    print_table({run.resolve().name: rows})
    print_line(f"{size} examples of {data}")
    if page is not None:
        print_line(f"Report: {page}")


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
