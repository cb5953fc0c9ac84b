"""What checkpoints cost a training, as a share of its time.

    python benchmarks/checkpoints.py [--repeats 5] [--json FILE]

Two parts: a look at the clock and for signals after every step, as a share of a step; the writing,
once in EVERY seconds, as a share of those. What is done once, a digest of data and start and the
last checkpoint, is left out. All in one run.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import stochens
from stochens.errors import TrainingAdvice
from stochens.networks import ResNet20FRN
from stochens.run.checkpoints import EVERY, Checkpoints, kept_in

LOOKS = 20_000


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
        seconds(case, 2, run=stochens.Run(checkpoint=folder, every=0.0))
    return found


def looking() -> float:
    """Seconds of one look where there is nothing to do."""
    with tempfile.TemporaryDirectory() as folder, kept_in(folder, "benchmark", {}) as keep:
        began = time.perf_counter()
        for step in range(LOOKS):
            keep(step, dict)
        return (time.perf_counter() - began) / LOOKS


def step_seconds(case: dict[str, Any], epochs: int) -> float:
    """The set-up cancels in the difference of two trainings."""
    steps: int = (epochs - 1) * -(-len(case["data"][0]) // case["batch_size"])
    first = seconds(case, 1)
    return (seconds(case, epochs) - first) / steps


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    look = statistics.median(looking() for _ in range(args.repeats))
    for name, case, epochs in (("toy, 1024 members", toy(), 10), ("10 ResNet-20", images(), 3)):
        seconds(case, 1)
        step = statistics.median(step_seconds(case, epochs) for _ in range(args.repeats))
        writes = statistics.median(saving(case))
        share = look / step + writes / EVERY
        results[name] = {
            "look_seconds": look,
            "step_seconds": step,
            "checkpoint_seconds": writes,
            "share": share,
        }
        print(
            f"{name:18} {100 * share:.3f} %: {1e6 * look:.1f} us of each step of "
            f"{1000 * step:.1f} ms, {1000 * writes:.0f} ms in each {EVERY:.0f} s"
        )
    if args.json:
        about = {"machine": platform.machine(), "torch": torch.__version__, "cases": results}
        args.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
