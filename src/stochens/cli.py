"""The command line."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stochens.errors import InputError
from stochens.experiments import demo as demo_experiment
from stochens.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    help="Stochastic ensembles: how sure a neural network may be, close to its Bayesian posterior.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stochens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Stochastic ensembles: how sure a neural network may be, close to its Bayesian posterior."""


@app.command()
def demo(
    members: Annotated[int, typer.Option(help="Members of each ensemble.")] = 32,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write to; new or empty.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train two small ensembles on handwritten digits and show what they know, in a minute.

    A regular and a dropout ensemble learn scikit-learn's digits; both are then shown patches of
    photographs, which are no digits. Prints every metric with its 95 % interval.
    """
    console = Console()
    comparison = demo_experiment.run(
        demo_experiment.Config(members=members, epochs=epochs, seed=seed, out=out)
    )
    console.print(comparison.table())
    console.print("OOD AUROC: how well confidence tells digits from photographs; 0.5 is chance.")
    console.print(f"Figure:  {out / 'uncertainty.png'}")
    console.print(f"Metrics: {out / 'metrics.json'}")


def main() -> None:
    """Run a command; bad input is one line on stderr and exit code 2, Ctrl-C is 130."""
    try:
        app()
    except InputError as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
