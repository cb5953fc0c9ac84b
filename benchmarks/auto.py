"""Does method="auto" choose the method that is closest to the true posterior?

    python benchmarks/auto.py --json benchmarks/results/auto.json

For each data set: NUTS as the truth, every candidate trained in full, and its distance to NUTS
(total variation of the predictive means, over a square where the data are and a square ten times as
wide; for digits over test digits and over noise). Then the trials of method="auto", which never see
NUTS, and what each rule takes: the lowest training KL loss, the highest held-out log-likelihood,
and both as in Auto(by="both"). Some ten minutes on two cores; the table is in results/auto.md.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import stochens
from stochens.toy import uniform_points
from stochens.training.auto import CANDIDATES, RULES, choice, label, run_trials
from stochens.training.request import FitRequest

TRAINING: dict[str, Any] = {"members": 30, "epochs": 250, "batch_size": 50, "lr": 0.01, "seed": 0}
ENERGY = "KL loss without stochasticity"  # no option of Auto: to see what that term does
ALWAYS = ("regular", "dropout 0.1", "np-dropout")  # what one would take without looking
PLACES = ("in domain", "out of domain")
Case = tuple[stochens.MLP, tuple[Tensor, Tensor], dict[str, Tensor]]


def toy(name: str, draw: int) -> Case:
    near, far = (uniform_points(2000, half_side=side, seed=1) for side in (1.0, 10.0))
    data = stochens.toy_set(name, n=200, draw=draw)
    return stochens.MLP(2, 10, 10, 2), data, {"in domain": near, "out of domain": far}


def digits(draw: int) -> Case:
    """4 x 4 images: small enough for NUTS."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)
    x = torch.nn.functional.avg_pool2d(x, 2).flatten(1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw))
    rows, test = order[:200], order[200:1200]
    noise = 2 * torch.randn(1000, 16, generator=torch.Generator().manual_seed(draw))
    y = torch.tensor(labels)
    return (
        stochens.MLP(16, 10, 10),
        (x[rows], y[rows]),
        {"in domain": x[test], "out of domain": noise},
    )


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation of two predictive means [B, C], averaged over inputs."""
    return float(0.5 * (one - other).abs().sum(-1).mean())


def measure(case: Case, samples: int) -> dict[str, Any]:
    net, data, places = case
    reference = stochens.nuts(net, data, chains=4, samples=samples, warmup=samples, progress=False)
    half = [reference.take(slice(2 * k * samples, 2 * (k + 1) * samples)) for k in (0, 1)]
    truth = {place: reference.predict(x).mean for place, x in places.items()}
    options: dict[str, Any] = {**TRAINING, "progress": False}
    far: dict[str, dict[str, float]] = {place: {} for place in places}
    for method in CANDIDATES:
        posterior = stochens.fit(net, data, method=method, **options)
        for place, x in places.items():
            p = posterior.predict(x, draws=4, keep_draws=False)
            far[place][label(method)] = distance(p.mean, truth[place])
    run = stochens.Run(progress=False)
    trials, _ = run_trials(FitRequest(net=net, data=data, run=run, **TRAINING), stochens.Auto())
    chosen = {by: choice(trials.rows, by)[0] for by in RULES}
    energy = {row.label: (row.kl or 0.0) - row.stochasticity for row in trials.rows}
    chosen[ENERGY] = min(energy, key=lambda name: energy[name])
    floor = {
        place: distance(half[0].predict(x).mean, half[1].predict(x).mean)
        for place, x in places.items()
    }
    return {
        "distance": far,
        "floor": floor,
        "chosen": chosen,
        "trials": trials.description()["rows"],
    }


def summary(cases: dict[str, Any]) -> str:
    """Of each rule: how often it takes the closest, its mean rank, how much further it is."""
    lines = [
        'How often the choice of `method="auto"` is the candidate closest to NUTS, which the '
        "trials never see. Toy sets a, b, c with 200 points, 4 x 4 digits with 200.",
        "",
        f"{len(cases)} data sets, {len(CANDIDATES)} candidates. *Times the closest*: the distance "
        "of what was chosen over that of the closest candidate, the mean over data sets. The "
        "default rule was chosen by looking at this table, so its row is no independent test.",
        "",
        "| rule | place | is the closest | mean rank | times the closest |",
        "| --- | --- | --- | --- | --- |",
    ]
    rules = {f"auto, by={by!r}": by for by in RULES} | {ENERGY: ENERGY}
    for name in [*rules, *(f"always {one}" for one in ALWAYS)]:
        for place in PLACES:
            ranks, ratios = [], []
            for case in cases.values():
                far = case["distance"][place]
                own = far[case["chosen"][rules[name]] if name in rules else name[len("always ") :]]
                ranks.append(1 + sum(other < own for other in far.values()))
                ratios.append(own / min(far.values()))
            hits = sum(rank == 1 for rank in ranks)
            row = f"{hits} of {len(ranks)} | {mean(ranks):.1f} | {mean(ratios):.2f}"
            lines.append(f"| {name} | {place} | {row} |")
    floors = []
    for kind in ("toy", "digits"):
        kept = [case["floor"] for name, case in cases.items() if kind in name]
        if kept:
            two = (f"{100 * mean(floor[place] for floor in kept):.1f}" for place in PLACES)
            floors.append(f"{kind} {' / '.join(two)}")
    lines += [
        "",
        "NUTS against itself, two chains against the other two, in domain / out of domain, 1e-2: "
        + "; ".join(floors)
        + ". The distances themselves are in the JSON file.",
    ]
    lines += ["", "| data set | closest, in | out | by held-out | by KL loss | both |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, case in cases.items():
        near = [min(far, key=lambda k: far[k]) for far in case["distance"].values()]
        taken = [case["chosen"][by] for by in RULES]
        lines.append(f"| {name} | {' | '.join([*near, *taken])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path)
    options.add_argument("--draws", type=int, default=3)
    options.add_argument("--samples", type=int, default=300)
    given = options.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    cases: dict[str, Any] = {}
    for draw in range(given.draws):
        todo = {f"toy {name}, draw {draw}": toy(name, draw) for name in "abc"}
        todo[f"digits, draw {draw}"] = digits(draw)
        for name, case in todo.items():
            cases[name] = measure(case, given.samples)
            seconds = round(time.perf_counter() - began)
            print(name, cases[name]["chosen"], f"{seconds} s", flush=True)
            if given.json:  # after each, so that a run that is cut leaves something
                about = {"training": TRAINING, "samples": given.samples, "seconds": seconds}
                given.json.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")
                made = f"Made by `python benchmarks/auto.py --json {given.json}`, {seconds} s.\n\n"
                given.json.with_suffix(".md").write_text(made + summary(cases))
    print(summary(cases))


if __name__ == "__main__":
    main()
