"""The experiments' commands: toy, digits, active, cifar, transfer, tabular, imdb, their data, and
their pages."""

import datetime
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from stochens.errors import InputError
from stochens_lab.cli.app import INTERRUPTED, app
from stochens_lab.cli.options import take_options
from stochens_lab.cli.shared import note, print_line, refuse_other_place
from stochens_lab.experiments import (
    active,
    cifar,
    cifar_config,
    cifar_pool,
    data_folder,
    digits,
    imdb,
    imdb_config,
    tabular,
    tabular_rows,
    toy,
    toy_config,
    transfer,
    transfer_config,
)
from stochens_lab.report import finish
from stochens_lab.report.run_folder import blame_damage

Resume = Annotated[Path | None, typer.Option(help="Go on with this run, which was stopped.")]


@app.command("toy")
@take_options(toy_config.ToyConfig)
def run_toy(*, resume: Resume = None, **given: Any) -> None:
    """The paper's toy experiment: how close every method comes to the true posterior, by NUTS.

    Two classes in the plane, a network 2-10-10-2. Samples the posterior, trains every method,
    compares their predictions in and far from the data, and writes a page to look at.

    quick takes a few minutes on two cores. table repeats everything over three data draws and three
    seeds. paper has 1024 members and 2000 points, as the paper.
    """
    _run("toy", toy_config, toy.run, resume=resume, **given)


@app.command("digits")
@take_options(digits.DigitsConfig)
def run_digits(*, resume: Resume = None, **given: Any) -> None:
    """The same comparison on handwritten digits, with a small convolutional network and HMC.

    scikit-learn's digits need no download. Rotated and noisy digits are the shift, patches of
    photographs are what is no digit at all.
    """
    _run("digits", digits, digits.run, resume=resume, **given)


@app.command("active")
@take_options(active.ActiveConfig)
def run_active(*, resume: Resume = None, **given: Any) -> None:
    """Which labels to ask for: BatchBALD, BALD and chance on digits that come several times.

    An ensemble learns from 20 labels, asks for ten more, learns again, and so on. Accuracy against
    labels, with intervals over seeds.
    """
    _run("active", active, active.run, resume=resume, **given)


@app.command("cifar")
@take_options(cifar_config.CifarConfig)
def run_cifar(*, resume: Resume = None, **given: Any) -> None:
    """ResNet-20-FRN ensembles on CIFAR, measured against the published HMC predictions.

    A run is one row of the paper's Tables 2 and 3: it trains one method in blocks of members, and
    tests it on test images, on other sets' images, and on corrupted ones. stochens report puts
    several runs side by side.
    """
    _run("cifar", cifar_config, cifar.run, resume=resume, **given)


@app.command("transfer")
@take_options(transfer_config.TransferConfig)
def run_transfer(*, resume: Resume = None, **given: Any) -> None:
    """From one trained network to posteriors: MobileNetV2 of ImageNet learns CIFAR-100.

    Members own the output layer, adapters (LoRA), the last blocks or everything. Each way is a row
    with accuracy, NLL, ECE, the AUROC against other sets' images, its time and its memory. Rates
    are chosen on images of the training set that are held out. Needs torchvision.
    """
    _run("transfer", transfer_config, transfer.run, resume=resume, **given)


@app.command("tabular")
@take_options(tabular_rows.TabularConfig)
def run_tabular(*, resume: Resume = None, **given: Any) -> None:
    """Regression on tables: ensembles and samplers, with one configuration for all sets.

    airfoil and bike as in bde's benchmark, nine UCI sets with their 20 splits, TabM's California
    and House. RMSE, NLL and seconds, beside published numbers. What is chosen is chosen on a share
    of the training rows. --resume RUN goes on, with other sets, rows or more splits if given. The
    rows bde and lightgbm need their packages.
    """
    _run("tabular", tabular, tabular.run, resume=resume, **given)


@app.command("imdb")
@take_options(imdb_config.ImdbConfig)
def run_imdb(*, resume: Resume = None, **given: Any) -> None:
    """Text against HMC: a CNN-LSTM on IMDB's reviews, beside the published HMC predictions.

    Each way to get members is a row with accuracy, NLL, ECE, agreement and total variation to HMC.
    The first 5,000 test reviews are for choosing settings, and results are of the other 20,000.
    """
    _run("imdb", imdb_config, imdb.run, resume=resume, **given)


@app.command("data")
def show_data(
    folder: Annotated[Path, typer.Argument(help="Where the image sets lie, or shall lie.")] = Path(
        "data"
    ),
    download: Annotated[
        list[str] | None,
        typer.Option(help="cifar10, cifar100, svhn or hmc; may be given several times."),
    ] = None,
) -> None:
    """What image data is in a folder, read and checked; and how to get what is not there."""
    data_folder.show_folder(folder, fetch=tuple(download or ()), console=Console())


@app.command("report")
def write_report(
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
    with blame_damage(runs):
        page = finish.write_page(runs, out)
        print_line(f"Page: {page}")
        for line in finish.write_companions(runs, page, figures=figures):
            print_line(line)


@app.command("pool")
def pool_runs(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of cifar, two or more.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to, new or empty.")],
) -> None:
    """The members of several CIFAR runs as one ensemble.

    From the predictions that the runs keep, each weighted by its members; the folder is a run's,
    which report takes beside others. Runs may differ in seed, in rate and in method.
    """
    with blame_damage(runs):
        path = cifar_pool.pool(runs, out)
    for line in finish.finish_run(path, Console()):
        print_line(line)


def _run(
    name: str,
    configs: ModuleType,
    run: Callable[..., Path],
    /,  # a Config may have fields of these names
    *,
    resume: Path | None,
    out: Path | None,
    **given: Any,
) -> None:
    """Do the work, then show what came of it, also where Ctrl-C cut it short."""
    if resume is None:
        time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        config = configs.configure(out=out or Path("runs") / f"{name}-{time}", **given)
    else:
        refuse_other_place(resume, out)
        config = configs.reconfigure(resume, **given)
    stopped = False
    try:
        run(config, resume=resume is not None, note=note)
    except KeyboardInterrupt:
        stopped = True
        note("stopped; what is done is kept")
    if not stopped or finish.has_results(config.out):
        for line in finish.finish_run(config.out, Console()):
            print_line(line)
    if stopped:
        raise typer.Exit(INTERRUPTED)
