"""stochens predict: what a run says of new data, and how sure it is."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stochens_lab.cli.app import app, printable
from stochens_lab.cli.shared import (
    AsJson,
    Draws,
    Model,
    RunArgument,
    SameModel,
    Seed,
    print_json,
    print_line,
    warnings_as_notes,
)
from stochens_lab.data.user_images import list_files
from stochens_lab.experiments.configs import Device
from stochens_lab.experiments.runs import choose_device
from stochens_lab.workflow import prediction
from stochens_lab.workflow.fitted_run import find_model, load_run

SHOWN = 10  # rows on a terminal
MOST_COLUMNS = 8


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
    disagree on), in nats. Regression: mean, std, low and high (an interval
    of the target), epistemic_std and aleatoric_std (the two parts of std,
    as standard deviations: their squares add up to its square).

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
    if len(names) > MOST_COLUMNS:
        names = [name for name in names if not name.startswith("prob_")]
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
