"""The command line. Importing a file of commands adds them, in the order of the help page."""

from stochens_lab.cli import fit, predict, experiments  # noqa: F401, I001
from stochens_lab.cli.app import app, main

__all__ = ["app", "main"]
