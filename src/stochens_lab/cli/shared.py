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
from stochens.errors import InputError
from stochens.metrics import Interval
from stochens_lab.cli.app import printable
from stochens_lab.report.run_folder import RUN, finite
from stochens_lab.workflow.config import MODEL

SEARCHED = ("*", "*/*")  # where run folders are looked for, below what is typed


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
Model = Annotated[str | None, MODEL]
SameModel = Annotated[
    bool,
    typer.Option("--same-model", help="Import and run the model that the run names."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Draws = Annotated[int, typer.Option(min=1, help="Draws of each member's noise.")]
Seed = Annotated[int, typer.Option(help="Seed of those draws.")]


def note(text: str) -> None:
    """A word beside the result, on stderr."""
    Console(stderr=True).print(
        f"[dim]{escape(printable(text))}[/dim]", highlight=False, soft_wrap=True
    )


def refuse_other_place(resume: Path, out: Path | None) -> None:
    """A run that is gone on with stays in its folder."""
    if out is not None and out.resolve() != resume.resolve():
        raise InputError(f"--resume goes on in {resume} itself; leave --out {out} away")


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A user of commands has no use for the line of our code that warned."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(f"note: {message}")
        yield


def print_table(rows: Mapping[str, dict[str, Interval]]) -> None:
    """As a table; names are the user's, and no styles."""
    named = {escape(printable(name)): row for name, row in rows.items()}
    print(Comparison(named))


def print_line(text: str) -> None:
    Console().print(printable(text), highlight=False, soft_wrap=True, markup=False)


def print_json(content: dict[str, Any] | list[Any]) -> None:
    sys.stdout.write(json.dumps(finite(content), indent=2, allow_nan=False) + "\n")
