"""A run folder of `stochens fit`, read back. The model it names is imported only when asked for."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.posterior.posterior import Posterior, load
from stochens_lab.data import examples
from stochens_lab.data.examples import Examples
from stochens_lab.report.run_folder import RUN, SavedRun, refuse_saved
from stochens_lab.workflow.config import EXPERIMENT
from stochens_lab.workflow.model import NAME, Model, import_model
from stochens_lab.workflow.schema import Schema
from stochens_lab.workflow.training import POSTERIOR, SCHEMA


class FittedRun(NamedTuple):
    path: Path
    schema: Schema
    posterior: Posterior

    def read(self, file: Path, *, with_targets: bool) -> Examples:
        """Data that lie as those of the run did."""
        blanks = self.posterior.likelihood.missing == "mask"
        return examples.read(file, self.schema.layout, with_targets=with_targets, blanks=blanks)

    def inputs(self, file: Path) -> Tensor:
        return self.schema.inputs(self.read(file, with_targets=False))


def read_about(path: Path) -> dict[str, Any]:
    """run.json of a run that `stochens fit` made."""
    refuse_saved(path)
    if not (path / RUN).is_file():
        raise InputError(f"{path} is no run: make one with stochens fit --out {path}")
    found = SavedRun(path).about
    if found.get("experiment") != EXPERIMENT:
        raise InputError(f"{path} is a run of stochens {found.get('experiment')!r}, not of fit")
    return found


def load_run(path: Path, model: Model, device: torch.device) -> FittedRun:
    """A run that is whole, with its members in the network that was given."""
    if not read_about(path).get("complete"):
        raise InputError(
            f"{path} is not finished; go on with it: stochens fit --resume {path} --model ..."
        )
    schema = Schema.load(path / SCHEMA)
    return FittedRun(path, schema, load(path / POSTERIOR, model, device=device))


def find_model(path: Path, typed: str | None, same: bool) -> Model:
    """The network by the user's own word: its name, or that the run's is meant."""
    if typed is not None:
        return import_model(typed)
    return import_model(read_model_name(path)) if same else _refuse_to_guess(path)


def read_model_name(path: Path) -> str:
    """The model that a run says it was made with; a name and no more."""
    found = read_about(path).get("config")
    name = found.get("model") if isinstance(found, dict) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{path} names no model; say which: --model MODULE:FUNCTION")
    return name


def _refuse_to_guess(path: Path) -> Model:
    """The name has passed a narrow pattern, so that it may be shown as something to type."""
    name = read_model_name(path)
    raise InputError(
        f"a run holds no code: say --model {name} (which {path} names), or --same-model to take "
        "its word; both import and run that module"
    )
