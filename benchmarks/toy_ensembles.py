"""How long the paper's toy ensembles take: five methods, three sets, 1024 members, 10,000 steps.

    python benchmarks/toy_ensembles.py [--device cpu] [--steps 10000] [--json FILE]

Each row is one whole call, with its set-up: what a user waits for.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from stochens import MLP, toy_set
from stochens_lab.experiments.rows import ENSEMBLES
from stochens_lab.experiments.toy_config import PRESETS, SIZES

FIVE = ("regular", "MultiSWA", "SE1", "SE2", "SE3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=PRESETS["paper"]["steps"])
    parser.add_argument("--methods", nargs="+", default=list(FIVE))
    parser.add_argument("--sets", default="abc")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    members, points = PRESETS["paper"]["members"], PRESETS["paper"]["points"]
    seconds: dict[str, float] = {}
    for set_name in args.sets:
        for method in args.methods:
            data = toy_set(set_name, n=points)
            began = time.perf_counter()
            options = {"members": members, "start": "reset", "seed": 0, "device": args.device}
            ENSEMBLES[method](MLP(*SIZES), data, steps=args.steps, **options)
            seconds[f"{set_name} {method}"] = round(time.perf_counter() - began, 2)
            print(f"{set_name} {method:12} {seconds[f'{set_name} {method}']:8.1f} s", flush=True)
    total = sum(seconds.values())
    print(f"all {total:.0f} s: {members} members, {points} points, {args.steps} steps")
    if args.json:
        on_gpu = torch.device(args.device).type == "cuda"
        machine = torch.cuda.get_device_name() if on_gpu else platform.processor()
        about = {
            "device": machine or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "members": members,
            "points": points,
            "steps": args.steps,
            "seconds": seconds,
            "total": round(total, 1),
        }
        args.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
