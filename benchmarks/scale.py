"""Many machines: what Ray costs here, and what 10,000 members would take on 1 to 256 GPUs.

    python benchmarks/scale.py overhead [--seconds 35] [--blocks 3] [--repeats 2] [--json FILE]
    python benchmarks/scale.py simulate [--json FILE] [--chart FILE]

overhead: the same blocks by the plain engine and by a Ray cluster of this machine, one core each,
checkpoints on, each in a process of its own that has trained nothing before. They take turns,
plain, Ray, Ray, plain, since the machine's speed changes from one minute to the next. The cluster
is up before the clock runs; starting the worker is inside it. Seconds of the clock, and of the
processors (the driver's, and the worker's from its start on).

simulate: no cluster, but its events: blocks as the library cuts them, each with the measured speed
of its size, machines that differ in speed, GPUs that go away at a given rate and come back, blocks
that go on from their last checkpoint. What it assumes is in `Assumed`.
"""

import argparse
import dataclasses
import heapq
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import stochens
from stochens.errors import TrainingAdvice
from stochens.members import Params
from stochens.run.cluster.tasks import cut_evenly
from stochens.training.ensemble import train_ensemble
from stochens.training.request import FitRequest

# Overhead -----------------------------------------------------------------------------------------

BLOCK = 8  # members


class Clock:
    """At the end of every block: what its process has used so far, from its start on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def update(self, params: Params, *, step: int, steps: int) -> None:
        pass

    def finish(self, params: Params) -> tuple[Params, None]:
        (self.folder / f"{os.getpid()}").write_text(str(time.process_time()))
        return params, None

    def state(self) -> Params:
        return {}

    def restore(self, state: Params) -> None:
        pass

    def settings(self) -> dict[str, Any]:
        return {}


def work(epochs: int, blocks: int, engine: str = "auto") -> dict[str, float]:
    """Seconds of one training, of the clock and of processors."""
    x, y = stochens.toy_set("a", n=2000)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU(), torch.nn.Linear(32, 2))
    with tempfile.TemporaryDirectory() as folder:
        used, began, told = time.process_time(), time.perf_counter(), Path(folder) / "told"
        told.mkdir()
        run = stochens.Run(
            engine=engine, chunk=BLOCK, checkpoint=Path(folder) / "kept", progress=False
        )
        train_ensemble(
            FitRequest(
                net=net,
                data=(x, y),
                method="dropout",
                members=BLOCK * blocks,
                epochs=epochs,
                collect=lambda: Clock(told),
                run=run,
            )
        )
        clock, cpu = time.perf_counter() - began, time.process_time() - used
        others = (p for p in told.iterdir() if p.name != str(os.getpid()))
        return {"clock": clock, "cpu": cpu + sum(float(p.read_text()) for p in others)}


def alone(epochs: int, blocks: int, engine: str) -> dict[str, float]:
    """In a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", TrainingAdvice)
    if engine == "ray":
        import ray

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    return work(epochs, blocks, engine)


def one(epochs: int, blocks: int, engine: str) -> dict[str, float]:
    command = [sys.executable, __file__, "one", "--engine", engine]
    command += ["--epochs", str(epochs), "--blocks", str(blocks)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    print(f"{engine}: clock {found['clock']:.1f} s, processors {found['cpu']:.1f} s", flush=True)
    return found


TURNS = ("auto", "ray", "ray", "auto")


def overhead(seconds: float, blocks: int, repeats: int) -> dict[str, Any]:
    import ray

    torch.set_num_threads(1)
    work(1, 1)
    epochs = max(1, round(100 * seconds / work(100, 1)["cpu"]))
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(repeats):
        turns = [(engine, one(epochs, blocks, engine)) for engine in TURNS]
        rounds.append(
            {
                name: {
                    kind: statistics.mean(t[kind] for engine, t in turns if engine == key)
                    for kind in ("clock", "cpu")
                }
                for name, key in (("plain", "auto"), ("ray", "ray"))
            }
        )
        for kind in ("clock", "cpu"):
            print(f"{kind}: {_share(rounds[-1], kind):+.1%}", flush=True)
    return {
        "blocks": blocks,
        "block seconds": statistics.median(r["plain"]["clock"] for r in rounds) / blocks,
        "rounds": rounds,
        "overhead": {
            kind: [f(_share(r, kind) for r in rounds) for f in (statistics.median, min, max)]
            for kind in ("clock", "cpu")
        },
        "load": os.getloadavg()[1],
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "ray": ray.__version__,
    }


def _share(times: dict[str, dict[str, float]], kind: str) -> float:
    return times["ray"][kind] / times["plain"][kind] - 1


# Simulation ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Assumed:
    """All that the simulation takes for given."""

    members: int = 10_000
    images: int = 300 * 40_960  # that each member sees, as the paper's
    # Member-images a second of one H200 by the members of a block: the kernels' training steps of
    # benchmarks/gpu.json, times what is left of 527,475 inside a whole `fit` (462,000 of 50)
    speed: tuple[tuple[int, float], ...] = (
        (1, 86_634.0),
        (10, 374_849.0),
        (25, 479_591.0),
        (50, 527_475.0),
    )
    inside_fit: float = 462_000 / 527_475
    most: int = 50  # members of a block
    start: float = 30.0  # seconds until a block trains: worker, data, CUDA graphs; a guess
    spread: float = 0.03  # standard deviation of the log speed of machines; a guess
    slow: float = 0.02  # share of the machines that run at `slow_speed`; a guess
    slow_speed: float = 0.7
    checkpoint: float = 60.0  # seconds between checkpoints
    noticed: float = 30.0  # seconds until a dead node is noticed; Ray's defaults, roughly
    back: float = 600.0  # seconds until another takes its place; a guess
    failures: float = 0.05  # of a GPU in an hour
    price: float = 4.0  # of a GPU for an hour, in dollars; a guess
    runs: int = 200  # simulations of each case


def block_seconds(assumed: Assumed, members: int) -> float:
    """On a machine of the usual speed."""
    sizes, speeds = zip(*assumed.speed, strict=True)
    speed = float(np.interp(math.log(members), np.log(sizes), speeds)) * assumed.inside_fit
    return members * assumed.images / speed


def cut(assumed: Assumed, gpus: int) -> list[int]:
    """Members of each block, by the rule of `machines._size`."""
    waves = math.ceil(assumed.members / (assumed.most * gpus))
    size = math.ceil(assumed.members / (waves * gpus))
    return [len(block) for block in cut_evenly(range(assumed.members), size)]


def simulated(assumed: Assumed, gpus: int, rng: np.random.Generator) -> dict[str, float]:
    """One run: its hours, the GPU hours that are paid for, the failures."""
    slow = rng.random(gpus) < assumed.slow
    speed = np.exp(rng.normal(0, assumed.spread, gpus)) * np.where(slow, assumed.slow_speed, 1.0)
    waiting = [block_seconds(assumed, members) for members in cut(assumed, gpus)][::-1]
    free = [(0.0, gpu) for gpu in range(gpus)]  # when each is free
    again: list[tuple[float, float]] = []  # (from when on, what is left) of blocks that lost theirs
    busy, failures, end = 0.0, 0, 0.0
    while waiting or again:
        now, gpu = heapq.heappop(free)
        if again and (again[0][0] <= now or not waiting):
            since, left = heapq.heappop(again)
            now = max(now, since)
        else:
            left = waiting.pop()
        needs = assumed.start + left / speed[gpu]
        dies = rng.exponential(3600 / assumed.failures) if assumed.failures else math.inf
        if dies >= needs:
            busy, end = busy + needs, max(end, now + needs)
            heapq.heappush(free, (now + needs, gpu))
            continue
        failures += 1
        busy += dies
        trained = max(0.0, dies - assumed.start)
        kept = trained // assumed.checkpoint * assumed.checkpoint * speed[gpu]
        heapq.heappush(again, (now + dies + assumed.noticed, left - kept))
        heapq.heappush(free, (now + dies + assumed.back, gpu))
    return {"hours": end / 3600, "paid": gpus * end / 3600, "busy": busy / 3600, "died": failures}


def simulate(assumed: Assumed) -> list[dict[str, Any]]:
    rows = []
    for gpus in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        sizes = cut(assumed, gpus)
        alone = block_seconds(assumed, sizes[0]) + assumed.start
        ideal = math.ceil(len(sizes) / gpus) * alone / 3600
        row: dict[str, Any] = {"gpus": gpus, "blocks": len(sizes), "members a block": sizes[0]}
        row["hours, all alike"] = ideal
        cases = {"stragglers": 0.0, "stragglers and failures": assumed.failures}
        for case, rate in cases.items():
            rng = np.random.default_rng(0)
            those = dataclasses.replace(assumed, failures=rate)
            found = [simulated(those, gpus, rng) for _ in range(assumed.runs)]
            hours = [f["hours"] for f in found]
            row[case] = {
                "hours": statistics.median(hours),
                "from": float(np.quantile(hours, 0.05)),
                "to": float(np.quantile(hours, 0.95)),
                "dollars": statistics.median(f["paid"] for f in found) * assumed.price,
                "idle": 1 - sum(f["busy"] for f in found) / sum(f["paid"] for f in found),
                "failures": statistics.fmean(f["died"] for f in found),
            }
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| GPUs | blocks | members of each | hours, all alike | with stragglers | and failures "
        "(5 to 95 %) | failures | idle | dollars |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        slow, both = row["stragglers"], row["stragglers and failures"]
        lines.append(
            f"| {row['gpus']} | {row['blocks']} | {row['members a block']} "
            f"| {row['hours, all alike']:.2f} | {slow['hours']:.2f} "
            f"| {both['hours']:.2f} ({both['from']:.2f} to {both['to']:.2f}) "
            f"| {both['failures']:.1f} | {both['idle']:.0%} | {both['dollars']:.0f} |"
        )
    return "\n".join(lines)


def chart(rows: list[dict[str, Any]], assumed: Assumed, file: Path) -> None:
    """Hours and dollars over GPUs."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    gpus = [row["gpus"] for row in rows]
    both = [row["stragglers and failures"] for row in rows]
    left.fill_between(
        gpus, [b["from"] for b in both], [b["to"] for b in both], alpha=0.25, color="tab:red"
    )
    rate = f"{assumed.failures:g} failures a GPU hour"
    left.plot(gpus, [row["hours, all alike"] for row in rows], "k:", label="all machines alike")
    left.plot(gpus, [row["stragglers"]["hours"] for row in rows], "o-", label="stragglers")
    left.plot(gpus, [b["hours"] for b in both], "s-", color="tab:red", label=f"and {rate}")
    left.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="hours")
    left.set_title(f"{assumed.members:,} members of ResNet-20-FRN", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    right.plot(gpus, [row["stragglers"]["dollars"] for row in rows], "o-")
    right.plot(gpus, [b["dollars"] for b in both], "s-", color="tab:red")
    right.set(xscale="log", xlabel="GPUs", ylabel="dollars", ylim=(0, None))
    right.set_title(f"at {assumed.price:g} dollars a GPU hour", fontsize=10)
    for ax in (left, right):
        ax.set_xticks(gpus, [str(g) for g in gpus], fontsize=8)
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("overhead", "one", "simulate"))
    parser.add_argument("--seconds", type=float, default=35.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--engine", default="auto", help="of one training, which overhead calls")
    parser.add_argument("--epochs", type=int, default=100, help="likewise")
    parser.add_argument("--failures", type=float, default=Assumed.failures, help="a GPU hour")
    parser.add_argument("--price", type=float, default=Assumed.price, help="of a GPU hour")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    args = parser.parse_args()
    found: dict[str, Any]
    if args.what == "one":
        print(json.dumps(alone(args.epochs, args.blocks, args.engine)))
        return
    if args.what == "overhead":
        found = overhead(args.seconds, args.blocks, args.repeats)
        print(f"blocks of {found['block seconds']:.0f} s, median, least, most: {found['overhead']}")
    else:
        assumed = Assumed(failures=args.failures, price=args.price)
        found = {"assumed": dataclasses.asdict(assumed), "rows": simulate(assumed)}
        print(table(found["rows"]))
        if args.chart:
            chart(found["rows"], assumed, args.chart)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
