"""What natural gradients cost: SE1 members of ResNet-20-FRN by SGD and by `Natural`, on one GPU.

python benchmarks/natural.py [--members 10 50] [--out benchmarks/results/natural-h200.json]
python benchmarks/natural.py --update [--members 10]   # the update alone, on any CPU
"""

import argparse
import contextlib
import itertools
import statistics
import time
from pathlib import Path

import torch

import stochens
from stochens.networks import ResNet20FRN
from stochens.training.natural import NaturalGradient
from timing import Report, Row, about, attempt, rate_row
from ways import Enough

POINTS, BATCH, EACH = 6400, 64, 0.5
OPTIMIZERS = ("sgd", "natural")


def measure(optimizer: str, members: int, repeats: int) -> Row:
    """The rate between the ends of epochs, after the first."""
    x, y = torch.randn(POINTS, 3, 32, 32), torch.randint(0, 10, (POINTS,))
    marks: list[tuple[float, int]] = []

    def show(done: int, total: int, note: str | None) -> None:
        if note is not None and note.startswith("loss"):  # the end of an epoch
            marks.append((time.perf_counter(), done))
            if len(marks) > repeats and marks[-1][0] - marks[0][0] > repeats * EACH:
                raise Enough

    with contextlib.suppress(Enough):
        stochens.fit(
            ResNet20FRN,
            (x, y),
            method=stochens.Dropout(0.1),
            optimizer=optimizer,
            lr=1e-4,
            members=members,
            epochs=10**6,
            batch_size=BATCH,
            device="cuda",
            progress=show,
        )
    gaps = [(t1 - t0, n1 - n0) for (t0, n0), (t1, n1) in itertools.pairwise(marks)]
    return rate_row([members * t / n for t, n in gaps], members * BATCH)


def measure_update(members: int, repeats: int) -> Row:
    """A draw and a step, by CPU time, beside the step of fused SGD, in turns."""
    sizes = {name: p.shape for name, p in ResNet20FRN().named_parameters()}
    params = {name: torch.randn(members, *size) for name, size in sizes.items()}
    plain = [p.clone().requires_grad_() for p in params.values()]
    sgd = torch.optim.SGD(plain, lr=0.1, momentum=0.9, nesterov=True, fused=True)
    natural = NaturalGradient(
        params,
        stochens.Natural(),
        lr=0.1,
        examples=50_000,
        slopes=dict.fromkeys(params, 5.0),
        means=None,
        steps=10_000,
        members=tuple(range(members)),
        seed=0,
    )
    times: dict[str, list[float]] = {"sgd": [], "draw": [], "step": []}
    for k in range(repeats + 2):
        for p in plain:
            p.grad = 1e-3 * torch.randn_like(p)
        for name, call in {
            "sgd": sgd.step,
            "draw": lambda k=k: natural.draw(k),
            "step": natural.step,
        }.items():
            if name == "step":  # what a pass would have left
                theta = natural.theta()
                theta.grad = 1e-3 * torch.randn_like(theta)
            begun = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - begun))
    found = {f"{name}_ms": round(statistics.median(t[2:]), 2) for name, t in times.items()}
    return {"members": members, "numbers": sum(p.numel() for p in plain), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="*", default=[10, 50])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--update", action="store_true", help="the optimiser's part alone")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.update:
        for members in args.members:
            print(measure_update(members, args.repeats))
        return
    report = Report(args.out, about(), budget=300)
    for members in args.members:
        times: dict[str, float] = {}
        for optimizer in OPTIMIZERS:
            row = attempt(lambda o=optimizer, m=members: measure(o, m, args.repeats), 120)  # type: ignore[misc]
            row |= {"optimizer": optimizer, "members": members, "batch": BATCH}
            times[optimizer] = row.get("ms_a_step", float("nan"))
            if optimizer == "natural":
                row["times_sgd"] = round(times["natural"] / times["sgd"], 3)
            report.add(row, " ".join(f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
