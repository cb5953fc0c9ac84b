"""The first look: a regular and a dropout ensemble on scikit-learn's digits, and what they say of
pictures that are no digits."""

import dataclasses
import json
import platform
import time
from pathlib import Path

import torch
from torch import nn

from stochens.data.digits import digits, photo_patches
from stochens.fitting import fit
from stochens.networks import MLP
from stochens.report.compare import Comparison, compare
from stochens.report.figures import save_figure, uncertainty_figure
from stochens.storage import new_folder
from stochens.version import __version__


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    members: int = 32
    epochs: int = 60
    seed: int = 0
    out: Path = Path("runs/demo")


def make_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), MLP(64, 64, 64, 10))


def run(config: Config) -> Comparison:
    """Train, predict, compare; writes metrics.json, uncertainty.png and the posteriors to `out`."""
    out = new_folder(config.out)
    began = time.monotonic()
    data = digits(seed=config.seed)
    photos = photo_patches(len(data.x_test), seed=config.seed)
    predictions, elsewhere = {}, {}
    for method in ("regular", "dropout"):
        posterior = fit(
            make_net,
            (data.x_train, data.y_train),
            method=method,
            members=config.members,
            epochs=config.epochs,
            lr=3e-3,
            seed=config.seed,
        )
        posterior.save(out / method)
        predictions[method] = posterior.predict(data.x_test)
        elsewhere[method] = posterior.predict(photos)
    comparison = compare(predictions, data.y_test, ood=elsewhere, show=False)
    figure = uncertainty_figure(
        predictions, elsewhere, data.y_test, here="digits", there="photographs"
    )
    save_figure(figure, out / "uncertainty.png")
    _write_metrics(config, comparison, time.monotonic() - began)
    return comparison


def _write_metrics(config: Config, comparison: Comparison, seconds: float) -> None:
    rows = {
        method: {name: interval._asdict() for name, interval in row.items()}
        for method, row in comparison.rows.items()
    }
    about = {
        "config": dataclasses.asdict(config) | {"out": str(config.out)},
        "stochens": __version__,
        "torch": torch.__version__,
        "machine": platform.platform(),
        "seconds": round(seconds, 1),
        "metrics": rows,
    }
    (config.out / "metrics.json").write_text(json.dumps(about, indent=2) + "\n")
