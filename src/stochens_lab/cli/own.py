"""What the commands for one's own model share: options, completion, and how they speak."""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stochens.comparison import Comparison
from stochens.likelihoods import LIKELIHOODS
from stochens.metrics import Interval
from stochens.training.engines import ENGINES
from stochens_lab.cli.app import printable
from stochens_lab.report.run_folder import RUN, finite
from stochens_lab.workflow.config import NAMES

SEARCHED = ("*", "*/*")  # where run folders are looked for, below what is typed


def complete_method(incomplete: str) -> list[str]:
    return [name for name in NAMES if name.startswith(incomplete)]


def complete_likelihood(incomplete: str) -> list[str]:
    return [name for name in LIKELIHOODS if name.startswith(incomplete)]


def complete_engine(incomplete: str) -> list[str]:
    return [name for name in (*ENGINES, "ray") if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Folders that hold a run.json, two levels down from what is typed."""
    typed = Path(incomplete or ".")
    top = typed if incomplete.endswith("/") or not incomplete else typed.parent
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for pattern in SEARCHED:
            found |= {str(path.parent) for path in top.glob(f"{pattern}/{RUN}")}
    return sorted(path for path in found if path.startswith(incomplete))


RunArgument = Annotated[
    Path, typer.Argument(help="A run folder of stochens fit.", autocompletion=complete_run)
]
Model = Annotated[
    str | None,
    typer.Option(
        help="MODULE:FUNCTION that returns the network, importable from this folder. "
        "It is imported and run: your own code.",
        show_default=False,
    ),
]
SameModel = Annotated[
    bool,
    typer.Option("--same-model", help="Import and run the model that the run names."),
]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; the GPU if there is one.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Draws = Annotated[int, typer.Option(min=1, help="Draws of each member's noise.")]
Seed = Annotated[int, typer.Option(help="Seed of those draws.")]


def note(text: str) -> None:
    """A word beside the result, on stderr."""
    Console(stderr=True).print(
        f"[dim]{escape(printable(text))}[/dim]", highlight=False, soft_wrap=True
    )


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A user of commands has no use for the line of our code that warned."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(f"note: {message}")
        yield


def show(rows: Mapping[str, dict[str, Interval]]) -> None:
    """As a table; names are the user's, and no styles."""
    named = {escape(printable(name)): row for name, row in rows.items()}
    print(Comparison(named))


def say(text: str) -> None:
    Console().print(printable(text), highlight=False, soft_wrap=True, markup=False)


def print_json(content: dict[str, Any] | list[Any]) -> None:
    sys.stdout.write(json.dumps(finite(content), indent=2, allow_nan=False) + "\n")
