"""What checkpoints cost: training with them against training without, in one run.

    python benchmarks/checkpoints.py [--repeats 5] [--json FILE]

Two parts add up: a look at the clock after every step, and the writing, once in EVERY seconds. The
first is the ratio of two trainings, in turn, so that a noisy machine troubles both; the second is
the time of one checkpoint, whole and on the disk, as a share of the time between two.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import stochens
from stochens.checkpoints import EVERY, Checkpoints
from stochens.networks import ResNet20FRN

NEVER = 1e9


def toy() -> dict[str, Any]:
    x, y = stochens.toy_set("a", n=2000)
    return {"net": stochens.MLP(2, 10, 10, 2), "data": (x, y), "members": 1024, "batch_size": 100}


def images() -> dict[str, Any]:
    x = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = torch.arange(32) % 10
    options = {"optimizer": "sgd", "lr": 0.01}
    return {"net": ResNet20FRN, "data": (x, y), "members": 10, "batch_size": 8, **options}


def seconds(case: dict[str, Any], epochs: int, **options: Any) -> float:
    began = time.perf_counter()
    stochens.fit(epochs=epochs, method="dropout", progress=False, **case, **options)
    return time.perf_counter() - began


def saving(case: dict[str, Any]) -> list[float]:
    """Seconds of each checkpoint, where every step leaves one."""
    found: list[float] = []
    save = Checkpoints.save

    def timed(self: Checkpoints, *args: Any) -> None:
        began = time.perf_counter()
        save(self, *args)
        found.append(time.perf_counter() - began)

    with mock.patch.object(Checkpoints, "save", timed), tempfile.TemporaryDirectory() as folder:
        seconds(case, 2, checkpoint=folder, checkpoint_every=0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for name, case, epochs in (("toy, 1024 members", toy(), 10), ("10 ResNet-20", images(), 2)):
        seconds(case, 1)
        looks = []
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as folder:
                kept = seconds(case, epochs, checkpoint=folder, checkpoint_every=NEVER)
            looks.append(kept / seconds(case, epochs) - 1)
        one = statistics.median(saving(case))
        looking = statistics.median(looks)
        results[name] = {
            "looking": looking,
            "looking_range": [min(looks), max(looks)],
            "checkpoint_seconds": one,
            "writing": one / EVERY,
        }
        print(
            f"{name:18} looking {100 * looking:+.2f} % "
            f"({100 * min(looks):+.2f} to {100 * max(looks):+.2f}), writing "
            f"{100 * one / EVERY:.3f} % ({1000 * one:.0f} ms each {EVERY:.0f} s)"
        )
    if args.json:
        about = {"machine": platform.machine(), "torch": torch.__version__, "cases": results}
        args.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
