"""Run folders like those of `stochens cifar`: the same files, with simulated predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stochens import metrics
from stochens.posterior.predictive import Predictive
from stochens_lab.data.corruptions.published import CORRUPTIONS, INTENSITIES
from stochens_lab.report.page import build
from stochens_lab.report.run_folder import METRICS, TRAINING, RunFolder, SavedRun

SET, CLASSES = "cifar10", 10
OTHERS = ("cifar100", "svhn")


def cifar_run(
    path: Path,
    method: str = "SE1 0.1",
    *,
    closeness: float = 0.85,
    images: int = 300,
    reference: bool = True,
    corruptions: Sequence[str] = CORRUPTIONS,
    complete: bool = True,
    seed: int = 0,
    set_name: str = SET,
    **settings: Any,
) -> SavedRun:
    """`closeness` to the reference is from 0 to 1; the images are the same whatever the seed.

    `images` are those of the test; `settings` change the configuration, images to learn from too.
    """
    config = {"name": set_name, "method": method, "members": 50, "epochs": 300, "images": 50000}
    config |= {"batch_size": 128, "lr": 0.1, "draws": 1, "seed": seed}
    config |= {name.removeprefix("train_"): value for name, value in settings.items()}
    folder = RunFolder(path, experiment="cifar", config=config, device="cpu")
    labels, hmc = _reference(images)
    rng = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(8, images, CLASSES, generator=rng)
    own = hmc.log() * (1.05 - 0.1 * closeness) + (1 - closeness) * 2.2 * noise  # [S, B, C]
    p = Predictive.of(own.softmax(-1))
    folder.predictive((set_name, method, "test"), p)
    folder.arrays[f"{set_name}/points/labels-test"] = labels.numpy()
    _put(folder, (set_name, method, "test"), _measures(p, labels, hmc if reference else None))
    if reference:
        entropy = -(hmc * hmc.log()).sum(-1)
        folder.arrays[f"{set_name}/HMC/test/mean"] = hmc.numpy().astype(np.float32)
        folder.arrays[f"{set_name}/HMC/test/entropy"] = entropy.numpy().astype(np.float32)
        # Published predictions are a mean without its draws.
        alone = {"accuracy": metrics.accuracy(hmc, labels), "NLL": metrics.nll(hmc, labels)}
        alone |= {"ECE": metrics.ece(hmc, labels), "Brier": metrics.brier(hmc, labels)}
        _put(folder, (set_name, "HMC", "test"), alone)
    for k, other in enumerate(OTHERS):
        _put(folder, (set_name, method, other), {"OOD AUROC": 0.83 + 0.01 * k + 0.02 * closeness})
        far = (0.45 * own.roll(k + 1, 1)).softmax(-1)
        folder.predictive((set_name, method, other), Predictive.of(far))
    _corrupted(folder, (set_name, method), corruptions, float(_accuracy(p, labels)), rng)
    measured = _measures(p, labels, hmc)
    folder.put(TRAINING, (set_name, method), training(closeness, config["members"], measured))
    with folder.timed(f"{set_name}/{method} 0000-{int(str(config['members'])) - 1:04d}"):
        pass
    folder.write(complete=complete)
    return SavedRun(path)


def page_of_all(runs: Sequence[SavedRun]) -> str:
    """Their page without the sections of each run, half a second of drawing each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_list_sections", lambda view: [])
        return build.build_page(runs)


def part_of_all(runs: Sequence[SavedRun]) -> str:
    """What stands there before the runs themselves."""
    return page_of_all(runs).split('class="together"')[1].split("<article")[0]


def _accuracy(p: Predictive, labels: torch.Tensor) -> float:
    return float(metrics.accuracy(p.mean, labels))


def _reference(images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels, and predictions right of nine in ten, most of them sure."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (images,), generator=rng)
    logits = 1.3 * torch.randn(images, CLASSES, generator=rng, dtype=torch.double)
    signal = 1.0 + 8 * torch.rand(images, generator=rng, dtype=torch.double)
    logits[torch.arange(images), labels] += signal
    return labels, (0.95 * logits).softmax(-1)


def _measures(p: Predictive, labels: torch.Tensor, hmc: torch.Tensor | None) -> dict[str, float]:
    found = {
        "accuracy": _accuracy(p, labels),
        "NLL": float(metrics.nll(p.mean, labels)),
        "ECE": metrics.ece(p.mean, labels),
        "Brier": float(metrics.brier(p.mean, labels)),
        "AURC": metrics.aurc(p.mean, labels),
        "entropy": float(p.entropy.mean()),
        "MI": float(p.mutual_information.mean()),
    }
    if hmc is not None:
        found["agreement"] = float(metrics.agreement(p.mean, hmc))
        found["variance"] = float(metrics.total_variation(p.mean, hmc))
        found["entropy error"] = float(metrics.entropy_error(p.mean, hmc))
    return found


def _put(folder: RunFolder, keys: tuple[str, ...], values: dict[str, Any]) -> None:
    for name, value in values.items():
        half = 0.0 if value in (0, 1) else 0.005 + 0.01 * float(value)
        about = {"value": float(value), "low": float(value) - half, "high": float(value) + half}
        folder.put(METRICS, (*keys, name), about)


def _corrupted(
    folder: RunFolder,
    keys: tuple[str, str],
    corruptions: Sequence[str],
    clean: float,
    rng: torch.Generator,
) -> None:
    total: dict[str, list[float]] = {}
    for name in corruptions:
        harm = 0.02 + 0.11 * float(torch.rand((), generator=rng))
        for intensity in range(1, INTENSITIES + 1):
            accuracy = clean - harm * intensity
            values = {"accuracy": accuracy, "NLL": 0.25 + 1.9 * (1 - accuracy)}
            values["ECE"] = 0.03 + 0.01 * intensity
            _put(folder, (*keys, f"{name}-{intensity}"), values)
            for metric, value in values.items():
                total.setdefault(metric, []).append(value)
    if total:
        means = {metric: float(np.mean(values)) for metric, values in total.items()}
        _put(folder, (*keys, "corrupted"), means)


def training(closeness: float, members: int, whole: dict[str, float]) -> dict[str, Any]:
    """The curve over members ends with the whole ensemble."""
    steps = [1000 * (i + 1) for i in range(30)]
    about: dict[str, Any] = {
        "steps": 30000,
        "start": "default",
        "kl": {"constant": 2.5e6, "l2": 4200.0, "repulsive": 0.0},
        "loss": 25000.0,
        "loss_sd": 600.0,
        "course": {
            "step": steps,
            "loss": [2e4 + 5e7 / (s + 500) for s in steps],
            "sd": [900.0] * len(steps),
        },
    }
    for key, x, places in (
        ("members curve", "members", [*(n for n in (1, 2, 5, 10, 20) if n < members), members]),
        ("inferences curve", "draws", [1, 4, 16]),
    ):
        first = 1 if x == "members" else 40
        about[key] = {
            x: places,
            "agreement": [0.88 + 0.07 * closeness - 0.06 / (n * first) ** 0.5 for n in places],
            "variance": [0.14 - 0.07 * closeness + 0.06 / (n * first) ** 0.5 for n in places],
            "NLL": [0.45 - 0.15 * closeness + 0.2 / (n * first) ** 0.5 for n in places],
            "accuracy": [0.86 + 0.05 * closeness - 0.05 / (n * first) ** 0.5 for n in places],
        }
    for metric in ("agreement", "variance", "NLL", "accuracy"):
        about["members curve"][metric][-1] = whole[metric]
    return about
