"""`python -m stochens_lab` is the command `stochens`."""

import sys

EXTRA = ("typer", "rich", "matplotlib", "jinja2", "sklearn", "pyarrow", "PIL")


def main() -> None:
    """Run a command, or say in one sentence that the extra is missing."""
    try:
        from stochens_lab.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in EXTRA:
            raise
        sys.exit(
            f"error: the command stochens needs {error.name}: pip install 'stochens[lab]'. "
            "The library works without it: import stochens"
        )
    run()


if __name__ == "__main__":
    main()
