"""stochens fit: an ensemble of one's own network on one's own data."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens_lab.cli.app import INTERRUPTED, app
from stochens_lab.cli.options import take_options
from stochens_lab.cli.shared import (
    AsJson,
    SameModel,
    complete_run,
    note,
    print_json,
    print_line,
    print_table,
    refuse_other_place,
    warnings_as_notes,
)
from stochens_lab.report.run_folder import RUN, SavedRun
from stochens_lab.workflow import training
from stochens_lab.workflow.config import EXPERIMENT, FitConfig, configure, method_name, reconfigure
from stochens_lab.workflow.fitted_run import find_model, read_model_name
from stochens_lab.workflow.measures import read_interval
from stochens_lab.workflow.model import import_model
from stochens_lab.workflow.schema import Schema


@app.command()
@take_options(FitConfig)
def fit(
    *,
    model: str | None,
    out: Path | None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with this run, which was stopped.", autocompletion=complete_run),
    ] = None,
    same_model: SameModel = False,
    json: AsJson = False,
    **given: Any,
) -> None:
    """Train a stochastic ensemble of your own network on your own data.

    stochens fit --model mypkg:make_net --data train.csv --out RUN

    mypkg:make_net is a function in a module of the current folder, or an
    installed one, that takes nothing and returns an nn.Module. It is
    imported and run: it is your code. Labels may be texts. Ctrl-C leaves a
    run that --resume goes on with, to the same end.
    """
    if resume is not None:
        refuse_other_place(resume, out)
        name = model or read_model_name(resume)
        config = reconfigure(resume, model=name, **given)
        if SavedRun(resume).about.get("complete"):
            note(f"{resume} is whole; there is nothing left to do")
            _print_outcome(config, json)
            return
        net = find_model(resume, model, same_model)
    else:
        config = configure(model, out=out, **given)
        net = import_model(config.model)
    try:
        with warnings_as_notes():
            training.run(config, net, resume=resume is not None, note=note)
    except KeyboardInterrupt:
        if (config.out / RUN).exists():
            words = ["stochens", "fit", "--resume", str(config.out), "--model", config.model]
            note(f"stopped; go on with it: {shlex.join(words)}")
        raise typer.Exit(INTERRUPTED) from None
    _print_outcome(config, json)


def _print_outcome(config: FitConfig, as_json: bool) -> None:
    """What came of it."""
    found, schema = SavedRun(config.out), Schema.load(config.out / training.SCHEMA)
    held = found.metrics.get(training.HELD_OUT, {}).get(method_name(config), {})
    measures = held.get(training.HELD_OUT)
    members = found.training[EXPERIMENT][method_name(config)]["members"]  # some may be lost
    if as_json:
        print_json(
            {
                "run": str(config.out),
                "method": method_name(config),
                "members": members,
                "features": list(schema.layout.features),
                "target": list(schema.layout.targets),
                "likelihood": config.likelihood,
                "classes": list(schema.classes),
                "seconds": found.about["seconds"],
                "validation": measures,
            }
        )
        return
    if measures:
        print_table(
            {"held out": {name: read_interval(numbers) for name, numbers in measures.items()}}
        )
    inputs = "x".join(map(str, schema.layout.shape))
    width = schema.width or 1
    classes = f", {width} {schema.kind}" if schema.classes or width > 1 else ""
    print_line(
        f"{members} members of {method_name(config)}: {inputs} inputs{classes}, "
        f"{found.about['seconds']:.1f} s"
    )
    print_line(f"Run:  {config.out}")
    print_line(
        f"Next: stochens predict {shlex.quote(str(config.out))} DATA --model {config.model} "
        "-o predictions.csv"
    )
