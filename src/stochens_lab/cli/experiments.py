"""The experiments' commands: toy, digits and cifar, their data, and the pages of their runs."""

import datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stochens.errors import InputError
from stochens_lab.cli.app import INTERRUPTED, app
from stochens_lab.experiments import cifar as cifar_experiment
from stochens_lab.experiments import data_folder
from stochens_lab.experiments import digits as digits_experiment
from stochens_lab.experiments import toy as toy_experiment
from stochens_lab.report import finish
from stochens_lab.report.run_folder import blame_damage

# None: not given. A run that is gone on with has its own, and another one is refused.
Preset = Annotated[
    str | None,
    typer.Option(help="What size of run: quick (if not given) or paper; toy has table too."),
]
Members = Annotated[int | None, typer.Option(help="Members of each ensemble.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random: 0.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; the GPU if there is one.", show_default=False)
]
Engine = Annotated[
    str | None,
    typer.Option(help="How to train, as in fit: auto; ray for many machines.", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of the Ray cluster: HOST:PORT, auto or local.", show_default=False),
]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run, which was stopped.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder to write to, new or empty; runs/NAME-TIME if not given."),
]


@app.command()
def toy(
    preset: Preset = None,
    sets: Annotated[
        str | None, typer.Option(help="Which of the training sets a, b, c: abc.")
    ] = None,
    members: Members = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Train this row only; may be given several times.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Samples of the training data.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Independent ensembles for each of them.")
    ] = None,
    seed: Seed = None,
    device: Device = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Sets to work on at a time: 1.")] = None,
    engine: Engine = None,
    address: Address = None,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """The paper's toy experiment: how close every method comes to the true posterior, by NUTS.

    Two classes in the plane, a network 2-10-10-2. Samples the posterior, trains every method,
    compares their predictions in and far from the data, and writes a page to look at.

    quick takes a few minutes on two cores. table repeats everything over three data draws and three
    seeds. paper has 1024 members and 2000 points, as the paper.
    """
    given = {k: v for k, v in locals().items() if k not in ("sets", "method", "resume", "out")}
    given["sets"] = None if sets is None else tuple(sets)
    given["only"] = tuple(method) if method else None
    _run(toy_experiment, "toy", resume, out, given)


@app.command()
def digits(
    preset: Preset = None,
    members: Members = None,
    seed: Seed = None,
    device: Device = None,
    engine: Engine = None,
    address: Address = None,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """The same comparison on handwritten digits, with a small convolutional network and HMC.

    scikit-learn's digits need no download. Rotated and noisy digits are the shift, patches of
    photographs are what is no digit at all.
    """
    given = {k: v for k, v in locals().items() if k not in ("resume", "out")}
    _run(digits_experiment, "digits", resume, out, given)


@app.command()
def cifar(
    data: Annotated[
        Path | None, typer.Option(help="The folder with the images; see: stochens data.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="cifar10 or cifar100.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="regular, multiswa, dropout, dropconnect, np-dropout, csghmc or langevin."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Drop rate: 0.1 if not given.")] = None,
    node: Annotated[
        str | None,
        typer.Option(help="A convolution's node: position (the authors') or channel (faster)."),
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="A run whose members to begin with, as for multiswa.")
    ] = None,
    members: Members = None,
    epochs: Annotated[int | None, typer.Option(help="300, as the paper.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="64, as the paper.")] = None,
    lr: Annotated[float | None, typer.Option(help="0.1, as the paper.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="step (the paper's), cosine or constant.")
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="Of langevin, in standard deviations of the prior.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Train on the first so many: 40960, as the paper.")
    ] = None,
    test_images: Annotated[int | None, typer.Option(help="All, if not given.")] = None,
    block: Annotated[
        int | None, typer.Option(help="Members to train together; all, if not given.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Begin no block that would not end by then.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Inferences of each member: 1.")] = None,
    inferences: Annotated[
        bool | None, typer.Option("--inferences", help="Also 4 and 16 inferences of each.")
    ] = None,
    corruptions: Annotated[
        bool | None, typer.Option("--corruptions", help="Also the 80 corrupted test sets.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random: 0.")] = None,
    device: Device = None,
    engine: Engine = None,
    address: Address = None,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """ResNet-20-FRN ensembles on CIFAR, measured against the published HMC predictions.

    A run is one row of the paper's Tables 2 and 3: it trains one method in blocks of members, and
    tests it on test images, on other sets' images, and on corrupted ones. stochens report puts
    several runs side by side.
    """
    given = {k: v for k, v in locals().items() if k not in ("resume", "out")}
    _run(cifar_experiment, "cifar", resume, out, given)


@app.command()
def data(
    folder: Annotated[Path, typer.Argument(help="Where the image sets lie, or shall lie.")] = Path(
        "data"
    ),
    download: Annotated[
        list[str] | None,
        typer.Option(help="cifar10, cifar100, svhn or hmc; may be given several times."),
    ] = None,
) -> None:
    """What image data is in a folder, read and checked; and how to get what is not there."""
    data_folder.show(folder, fetch=tuple(download or ()), console=Console())


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one or several.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page to write, or its folder; that of the only run, else."
        ),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option("--figures", help="Also write figures/ and tables.md beside the page."),
    ] = False,
) -> None:
    """Build the page of one run folder again, or of several side by side.

    Several CIFAR runs also leave the numbers of all their rows beside the page, in metrics.json and
    tables.md, unless it lies in a run's own folder.
    """
    if out is None and len(runs) > 1:
        raise InputError("several runs need a place for their page: --out FILE.html")
    console = Console()
    with blame_damage(runs):
        page = finish.write_page(runs, out)
        console.print(f"Page: {page}", highlight=False, soft_wrap=True)
        for line in finish.write_companions(runs, page, figures=figures):
            console.print(line, highlight=False, soft_wrap=True)


def _place(out: Path | None, name: str) -> Path:
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{name}-{time}" if out is None else out


def refuse_other_place(resume: Path, out: Path | None) -> None:
    if out is not None and out.resolve() != resume.resolve():
        raise InputError(f"--resume goes on in {resume} itself; leave --out {out} away")


def _run(
    experiment: ModuleType, name: str, resume: Path | None, out: Path | None, given: dict[str, Any]
) -> None:
    """Do the work, then show what came of it, also where Ctrl-C cut it short."""
    if resume is None:
        config = experiment.configured(out=_place(out, name), **given)
    else:
        refuse_other_place(resume, out)
        config = experiment.resumed(resume, **given)
    console, errors = Console(), Console(stderr=True)
    stopped = False

    def note(text: str) -> None:
        errors.print(f"[dim]{escape(text)}[/dim]", highlight=False)

    try:
        experiment.run(config, resume=resume is not None, note=note)
    except KeyboardInterrupt:
        stopped = True
        errors.print("stopped; what is done is kept", highlight=False)
    if not stopped or finish.has_results(config.out):
        for line in finish.finish_run(config.out, console):
            console.print(line, highlight=False, soft_wrap=True)
    if stopped:
        raise typer.Exit(INTERRUPTED)
