"""The command line itself, which the files beside this add their commands to."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from stochens.errors import Failed, InputError
from stochens.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    help="Stochastic ensembles: how sure a neural network may be, close to its Bayesian posterior.",
)
INTERRUPTED = 130  # what shells say of Ctrl-C


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


def printable(text: str) -> str:
    """Without the characters that steer a terminal: names may come from anybody's file.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def main() -> None:
    """Run a command; bad input is one line on stderr and exit code 2, work that failed likewise
    and 1, Ctrl-C is 130."""
    try:
        app()
    except (InputError, Failed) as error:
        # escaped: else [n, 3072] would be read as a style, and left out
        said = escape(printable(str(error)))
        Console(stderr=True).print(f"[red]error:[/red] {said}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
