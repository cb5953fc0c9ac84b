"""Training speed: all members at once against one member at a time, in one run.

    python benchmarks/training.py [--members 1024] [--repeats 7] [--json FILE]

The paper's way is a loop over members, each an eager torch training step. Both sides see the same
data, batch, optimiser and objective; the ratio is of time per member-step, and both are measured in
turn, so that a noisy machine troubles both.
"""

import argparse
import json
import platform
import resource
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import stochens
from stochens.errors import TrainingAdvice
from stochens.kernels import mlp

SIZES = (2, 10, 10, 2)
POINTS, BATCH = 2000, 100
LOOP_STEPS = 300  # of the one-member loop, in each repeat


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x, (x[:, 1] > torch.sin(3 * x[:, 0])).long()


def loop_step_seconds(x: torch.Tensor, y: torch.Tensor) -> float:
    """One member, one step at a time: the plain loop."""
    net = stochens.MLP(*SIZES)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step() -> None:
        rows = torch.randint(POINTS, (BATCH,))
        l2 = sum(p.square().sum() for p in net.parameters())
        loss = F.cross_entropy(net(x[rows]), y[rows]) + 0.5 * l2 / POINTS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(20):
        step()
    began = time.perf_counter()
    for _ in range(LOOP_STEPS):
        step()
    return (time.perf_counter() - began) / LOOP_STEPS


def fit_step_seconds(x: torch.Tensor, y: torch.Tensor, members: int, **options: Any) -> float:
    """A step of `fit`, everything in it; the set-up cancels in the difference of two runs."""

    def seconds(epochs: int) -> float:
        began = time.perf_counter()
        stochens.fit(
            lambda: stochens.MLP(*SIZES),
            (x, y),
            members=members,
            epochs=epochs,
            batch_size=BATCH,
            lr=0.01,
            progress=False,
            **options,
        )
        return time.perf_counter() - began

    short, long = 1, 11
    steps = (long - short) * POINTS // BATCH
    first = seconds(short)
    return (seconds(long) - first) / steps


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    x, y = data()
    cases: dict[str, dict[str, Any]] = {
        "regular": {"method": "regular"},
        "regular, vmap": {"method": "regular", "run": stochens.Run(engine="vmap")},
        "dropout": {"method": "dropout"},
        "dropconnect": {"method": "dropconnect"},
        "np-dropout": {"method": "np-dropout"},
        "gaussian": {"method": "gaussian"},
    }
    if not mlp.available():
        print("no C++ compiler: every row is vmap's")
    results = {}
    print(f"{args.members} members of {SIZES}, batch {BATCH}, {torch.get_num_threads()} threads")
    print(f"{'':16} {'loop us':>9} {'ours us':>9} {'ratio':>7}   spread")
    for name, options in cases.items():
        ratios, loops, ours = [], [], []
        for _ in range(args.repeats):
            loop = loop_step_seconds(x, y)
            step = fit_step_seconds(x, y, args.members, **options) / args.members
            ratios.append(loop / step)
            loops.append(loop * 1e6)
            ours.append(step * 1e6)
        results[name] = {
            "loop_us": statistics.median(loops),
            "ours_us": statistics.median(ours),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        row = results[name]
        print(
            f"{name:16} {row['loop_us']:9.1f} {row['ours_us']:9.2f} {row['ratio']:6.0f}x   "
            f"{row['ratio_min']:.0f}x to {row['ratio_max']:.0f}x"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.2f} GiB")
    if args.json:
        about = {
            "machine": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "members": args.members,
            "repeats": args.repeats,
            "peak_gib": round(peak, 2),
            "cases": results,
        }
        args.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
