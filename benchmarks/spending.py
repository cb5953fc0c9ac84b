"""Many members with one draw, or few with many: what buys more for the same gradients?

Each ensemble of `mclmc` gets the same number of member-steps (two gradients each), shared out over
M members. Half of a member's steps are its warm-up. Either its last draw alone counts, or all of
its draws. How good the ensemble is:

toy a, b, c   total variation to NUTS, mean over a grid of the plane (smaller is closer)
airfoil       NLL of a validation share (15 % of the training rows; needs --data DIR)
digits        NLL of the test digits

    python benchmarks/spending.py --data DIR --out benchmarks/results/spending.json
    python benchmarks/spending.py --plot benchmarks/results/spending.json docs/figures/spending.png
"""

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import stochens
from stochens.members import forward
from stochens_lab.data.digits import read_digits
from stochens_lab.data.tabular import load_table
from timing import Report, about

MEMBERS = (1, 2, 5, 10, 20, 50, 100)
DRAWS = 50  # of each member, spread over the second half of its steps
TRAINING = 300  # steps of Adam of each member, which count as half a step each: one gradient


class Problem(NamedTuple):
    net: stochens.MLP
    data: tuple[Tensor, Tensor]
    x: Tensor  # where it is judged
    judge: Callable[[Tensor], float]  # outputs [S, B, C] of the draws that count
    steps: int  # of all members together
    measure: str
    likelihood: str = "categorical"


def toy(name: str) -> Problem:
    x, y = stochens.toy_set(name, n=200)
    net = stochens.MLP(2, 10, 10, 2)
    low, high = x.min(0).values - 1, x.max(0).values + 1
    axes = [torch.linspace(float(a), float(b), 25) for a, b in zip(low, high, strict=True)]
    grid = torch.cartesian_prod(*axes)  # [625, 2]
    reference = stochens.nuts(net, (x, y), chains=16, samples=500, warmup=500, seed=100)
    truth = forward(net, reference.params, grid).softmax(-1).mean(0)  # [B, C]

    def distance(outputs: Tensor) -> float:
        return float((outputs.softmax(-1).mean(0) - truth).abs().sum(-1).mean() / 2)

    return Problem(net, (x, y), grid, distance, 100_000, "total variation to NUTS")


def airfoil(folder: Path) -> Problem:
    table = load_table(folder, "airfoil")
    x, y = table.held

    def nll(outputs: Tensor) -> float:
        """Of one Gaussian with the mean and the variance of all draws."""
        mean, log_variance = outputs.double().split(1, -1)
        variance = log_variance.exp().mean(0) + mean.var(0, correction=0)
        terms = (y - mean.mean(0)).square() / variance + variance.log() + math.log(2 * math.pi)
        return float(0.5 * terms.mean())

    net = stochens.MLP(x.shape[1], 16, 16, 16, 16, 2)
    return Problem(net, table.rest, x, nll, 100_000, "validation NLL", "heteroscedastic")


def digits() -> Problem:
    x, y, x_test, y_test = (t.flatten(1) if t.dim() == 4 else t for t in read_digits())

    def nll(outputs: Tensor) -> float:
        return float(-outputs.softmax(-1).mean(0)[torch.arange(len(y_test)), y_test].log().mean())

    return Problem(stochens.MLP(64, 16, 10), (x, y), x_test, nll, 30_000, "test NLL")


def spend(problem: Problem, members: int, seed: int) -> dict[str, Any]:
    """One ensemble: its last draws alone, and all of them."""
    each = problem.steps // members - TRAINING // 2
    thin = each // (2 * DRAWS)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps: what they have not reached is measured here
        posterior = stochens.mclmc(
            problem.net,
            problem.data,
            members=members,
            draws_per_member=DRAWS,
            thin=thin,
            warmup=each - DRAWS * thin,
            training=TRAINING,
            likelihood=problem.likelihood,
            seed=seed,
        )
    outputs = forward(problem.net, posterior.params, problem.x)  # [M * DRAWS, B, C]
    return {
        "members": members,
        "seed": seed,
        "last": problem.judge(outputs.unflatten(0, (members, DRAWS))[:, -1]),
        "all": problem.judge(outputs),
        "seconds": round(time.perf_counter() - began, 1),
    }


def plot(found: Path, figure: Path) -> None:
    """Median and range over seeds, against the number of members."""
    from matplotlib import pyplot as plt

    rows = json.loads(found.read_text())["cases"]
    names = list(dict.fromkeys(row["problem"] for row in rows))
    _, axes = plt.subplots(1, len(names), figsize=(3.1 * len(names), 2.9), layout="constrained")
    for ax, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row["problem"] == name]
        counts = sorted({row["members"] for row in mine})
        for kind, label in (("last", "one draw a member"), ("all", f"{DRAWS} draws a member")):
            sets = [[row[kind] for row in mine if row["members"] == m] for m in counts]
            middle = [statistics.median(values) for values in sets]
            ax.plot(counts, middle, marker="o", markersize=3, label=label)
            lows, highs = [min(v) for v in sets], [max(v) for v in sets]
            ax.fill_between(counts, lows, highs, alpha=0.2)
        ax.set(xscale="log", title=name, xlabel="members", ylabel=mine[0]["measure"])
        ax.set_xticks(counts, [str(m) for m in counts])
        ax.minorticks_off()
        if name.startswith("toy"):
            ax.set_yscale("log")
    axes[0].legend(frameon=False)
    plt.savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder with bde-airfoil.npz")
    parser.add_argument("--problems", nargs="*", default=["a", "b", "c", "airfoil", "digits"])
    parser.add_argument("--members", type=int, nargs="*", default=MEMBERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("JSON", "PNG"))
    args = parser.parse_args()
    if args.plot:
        plot(*args.plot)
        return
    report = Report(args.out, about(), budget=3600)
    for name in args.problems:
        if name == "airfoil" and args.data is None:
            print("airfoil needs --data DIR; left out")
            continue
        problem = (
            digits() if name == "digits" else airfoil(args.data) if name == "airfoil" else toy(name)
        )
        title = name if len(name) > 1 else f"toy {name}"
        for members in args.members:
            for seed in range(args.seeds):
                row = {"problem": title, "measure": problem.measure, "steps": problem.steps}
                row |= spend(problem, members, seed)
                report.add(row, f"{title}: {row}")


if __name__ == "__main__":
    main()
