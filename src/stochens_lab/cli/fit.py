"""stochens fit: an ensemble of one's own network on one's own data."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from stochens_lab.cli.app import INTERRUPTED, app
from stochens_lab.cli.experiments import Address, refuse_other_place
from stochens_lab.cli.own import (
    AsJson,
    Device,
    Model,
    SameModel,
    complete_engine,
    complete_likelihood,
    complete_method,
    complete_run,
    note,
    print_json,
    say,
    show,
    warnings_as_notes,
)
from stochens_lab.data.examples import LIKELY
from stochens_lab.report.run_folder import RUN, Run
from stochens_lab.workflow import training
from stochens_lab.workflow.config import EXPERIMENT, FitConfig, configured, method_name, resumed
from stochens_lab.workflow.fitted import model_of, named
from stochens_lab.workflow.measures import from_plain
from stochens_lab.workflow.model import imported
from stochens_lab.workflow.schema import Schema

Names = list[str] | None


@app.command()
def fit(
    model: Model = None,
    data: Annotated[
        Path | None,
        typer.Option(help=".parquet, .csv, .npz or a folder of images.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run, new or empty.", show_default=False)
    ] = None,
    target: Annotated[
        Names, typer.Option(help=f"Column to predict; the one called {LIKELY} if not given.")
    ] = None,
    feature: Annotated[
        Names, typer.Option(help="Column to predict from; all others if not given. Repeatable.")
    ] = None,
    drop: Annotated[Names, typer.Option(help="Column to leave out. Repeatable.")] = None,
    likelihood: Annotated[
        str | None,
        typer.Option(
            help="categorical (if not given), gaussian or heteroscedastic.",
            autocompletion=complete_likelihood,
        ),
    ] = None,
    normalise: Annotated[
        bool | None,
        typer.Option(
            "--normalise",
            help="Bring inputs (and a regression's target) to mean 0 and sd 1; kept with the run.",
        ),
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share to hold out and measure: 0.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="regular (if not given, for regression), dropout (likewise, for classes), "
            "dropconnect, np-dropout, gaussian, multiswa or multiswag.",
            autocompletion=complete_method,
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Drop rate: 0.1.")] = None,
    skip: Annotated[
        Names, typer.Option(help="Layers that get no noise, by name pattern. Repeatable.")
    ] = None,
    members: Annotated[int | None, typer.Option(help="Members of the ensemble: 50.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data: 100.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="128; 0 for all data at once.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, adamw or sgd.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the optimiser's own.")] = None,
    schedule: Annotated[str | None, typer.Option(help="cosine, step or constant.")] = None,
    prior_precision: Annotated[
        float | None, typer.Option(help="1 / variance of the prior on every parameter: 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random: 0.")] = None,
    device: Device = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="auto, fused, compile, vmap, loop, or ray for many machines; as in stochens.fit.",
            autocompletion=complete_engine,
        ),
    ] = None,
    address: Address = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with this run, which was stopped.", autocompletion=complete_run),
    ] = None,
    same_model: SameModel = False,
    json: AsJson = False,
) -> None:
    """Train a stochastic ensemble of your own network on your own data.

    stochens fit --model mypkg:make_net --data train.csv --out RUN

    mypkg:make_net is a function in a module of the current folder, or an
    installed one, that takes nothing and returns an nn.Module. It is
    imported and run: it is your code. Labels may be texts. Ctrl-C leaves a
    run that --resume goes on with, to the same end.
    """
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in locals().items()
        if name not in ("model", "data", "out", "resume", "same_model", "json")
    }
    if resume is not None:
        refuse_other_place(resume, out)
        name = model or named(resume)
        config = resumed(resume, model=name, data=data, **given)
        if Run(resume).about.get("complete"):
            note(f"{resume} is whole; there is nothing left to do")
            _tell(config, json)
            return
        net = model_of(resume, model, same_model)
    else:
        config = configured(model, data, out, **given)
        net = imported(config.model)
    try:
        with warnings_as_notes():
            training.run(config, net, resume=resume is not None, note=note)
    except KeyboardInterrupt:
        if (config.out / RUN).exists():
            words = ["stochens", "fit", "--resume", str(config.out), "--model", config.model]
            note(f"stopped; go on with it: {shlex.join(words)}")
        raise typer.Exit(INTERRUPTED) from None
    _tell(config, json)


def _tell(config: FitConfig, as_json: bool) -> None:
    """What came of it."""
    found, schema = Run(config.out), Schema.load(config.out / training.SCHEMA)
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
                "classes": list(schema.classes),
                "seconds": found.about["seconds"],
                "validation": measures,
            }
        )
        return
    if measures:
        show({"held out": {name: from_plain(numbers) for name, numbers in measures.items()}})
    inputs = "x".join(map(str, schema.layout.shape))
    classes = f", {len(schema.classes)} classes" if schema.classes else ""
    say(
        f"{members} members of {method_name(config)}: {inputs} inputs{classes}, "
        f"{found.about['seconds']:.1f} s"
    )
    say(f"Run:  {config.out}")
    say(
        f"Next: stochens predict {shlex.quote(str(config.out))} DATA --model {config.model} "
        "-o predictions.csv"
    )
