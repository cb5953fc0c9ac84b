"""A small run folder like that of `stochens toy`: the same files, with few and made-up numbers."""

from pathlib import Path

import torch

from stochens.posterior.predictive import Predictive
from stochens.toy import grid
from stochens_lab.report.run_folder import METRICS, SAMPLER, TRAINING, RunFolder, SavedRun

SIDE = 9  # points along a side of a map
DOMAINS = {"in": 1.0, "out": 10.0}
VALUES = {"agreement": 0.9, "variance": 0.03, "entropy error": 0.05, "MI error": 0.04}
TROUBLE = "3 divergences: a longer warm-up may help"


def sample_run(
    path: Path,
    *,
    sets: tuple[str, ...] = ("a", "b"),
    methods: tuple[str, ...] = ("regular", "SE3", "regular, early"),
    reference: str = "NUTS",
    complete: bool = True,
    seed: int = 0,
) -> SavedRun:
    config = {"preset": "quick", "sets": list(sets), "seed": 0, "curve": [500, 1000]}
    folder = RunFolder(path, experiment="toy", config=config, device="cpu")
    rng = torch.Generator().manual_seed(seed)
    for set_name in sets:
        x = 2 * torch.rand(30, 2, generator=rng) - 1
        folder.arrays[f"{set_name}/points/train"] = x.numpy()
        folder.arrays[f"{set_name}/points/labels"] = (torch.arange(30) % 2).numpy()
        folder.put(SAMPLER, (set_name,), _diagnostics())
        for domain, half_side in DOMAINS.items():
            points = grid(half_side, steps=SIDE)
            folder.arrays[f"{set_name}/points/map-{domain}"] = points.numpy()
            for method in (reference, *methods):
                draws = torch.rand(4, SIDE * SIDE, 1, generator=rng)
                p = Predictive.of(torch.cat([draws, 1 - draws], 2))
                folder.predictive((set_name, method, f"map-{domain}"), p)
        with folder.timed(f"{set_name}/0/{reference}"):
            pass
        for k, method in enumerate((f"{reference}, its own noise", *methods)):
            for domain in DOMAINS:
                for metric, value in VALUES.items():
                    shift = float(torch.rand((), generator=rng)) * 0.1 * value + 0.001 * k
                    interval = {
                        "value": value + shift,
                        "low": value + shift - 0.002,
                        "high": value + shift + 0.002,
                    }
                    folder.put(METRICS, (set_name, method, domain, metric), interval)
        for method in methods:
            folder.put(TRAINING, (set_name, method), _training(method))
            with folder.timed(f"{set_name}/0/0/{method}"):
                pass
    folder.write(complete=complete)
    return SavedRun(path)


def _diagnostics() -> dict[str, object]:
    return {
        "sampler": "nuts",
        "chains": 4,
        "divergences": 3,
        "predictions": {"rhat": 1.004, "ess_bulk": 812.0},
        "troubles": [TROUBLE],
    }


def _training(method: str) -> dict[str, object]:
    steps = [10 * (i + 1) for i in range(20)]
    about: dict[str, object] = {
        "steps": 2000,
        "start": "default",
        "kl": {"constant": 2501.7, "l2": 19.8, "repulsive": 1.7e-15},
        "loss": 25.3,
        "loss_sd": 0.6,
        "course": {"step": steps, "loss": [100 / s + 20 for s in steps], "sd": [1.0] * 20},
    }
    points = {"step": [500, 1000], "mean": [0.05, 0.04], "sd": [0.001, 0.002]}
    if method == "SE3":
        about |= {"curve": {"in": points, "out": points}, "set distance": points}
    return about
