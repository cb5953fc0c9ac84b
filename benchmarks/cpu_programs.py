"""What runs members on a CPU: vmap, a loop, the network's program, or its members in turns.

    python benchmarks/cpu_programs.py [--only cnn text] [--repeats 5] [--json FILE]

"predict": one draw of all members' outputs with dropout, without gradients. "train": loss and
gradients of all members, each with rows of its own, without noise. CPU time of one thread, the ways
in turns, the least of the repeats: other work on the machine changes it little. "chosen" is what
`program/choice.py` takes where there is enough to do. All ways of a row give the same numbers; the
largest distance to the loop is in the row.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models import NETWORKS, TINY, Network
from stochens import Dropout, objective
from stochens.kernels.noise import divisors, words
from stochens.likelihoods import Categorical
from stochens.members import Params, builder, forward, init
from stochens.methods import stochastic
from stochens.program.apart import Apart
from stochens.program.choice import distance, members_apart
from stochens.program.program import Noise, Program, build
from stochens.program.turns import in_turns
from stochens.randomness.noise import member_noise
from stochens.run.freed import freed_memory_kept
from timing import Report, about

MEMBERS = 4
ROWS = {"tabm": 128, "text": 4, "vit": 8}  # of a member at a time; 16 for the others
Ways = dict[str, Callable[[], list[Tensor]]]


def predictions(network: Network, rows: int) -> tuple[Ways, Program]:
    net = stochastic(network.build(), [Dropout(0.1)]).eval()
    x, _ = network.data(rows, torch.device("cpu"))
    params = init(builder(network.build), members=range(MEMBERS), seed=0)
    program = build(net, x[:4])
    noise = Noise(torch.arange(MEMBERS), torch.tensor([5, 6]))
    apart = Apart(program)

    def engine(kind: Any) -> list[Tensor]:
        with member_noise(*noise, words, divisors):
            return [forward(net, params, x, engine=kind)]

    ways: Ways = {
        "loop": lambda: engine("loop"),
        "vmap": lambda: engine("vmap"),
        "program": lambda: [program(params, x, noise)],
        "turns": lambda: [apart(params, x, noise)],
    }
    return {name: torch.no_grad()(way) for name, way in ways.items()}, program


def trainings(network: Network, rows: int) -> tuple[Ways, Program]:
    net = network.build().train()
    x, y = network.data(4 * rows, torch.device("cpu"))
    params: Params = init(builder(network.build), members=range(MEMBERS), seed=0)
    own = torch.stack([torch.randperm(4 * rows)[:rows] for _ in range(MEMBERS)])
    program = build(net, x[:4])

    def term(**how: Any) -> Any:
        return objective.mean_nll(net, Categorical(), **{"engine": "vmap", **how})

    turns = in_turns(term(program=Apart(program)), program.names, reuse=True)
    terms = {"loop": term(engine="loop"), "vmap": term(), "program": term(program=program)}

    def way(nll: Any) -> Callable[[], list[Tensor]]:
        def step() -> list[Tensor]:
            leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
            losses = nll(leaves, x, y, own)
            losses.sum().backward()
            return [losses.detach(), *(p.grad for p in leaves.values() if p.grad is not None)]

        return step

    return {name: way(nll) for name, nll in {**terms, "turns": turns}.items()}, program


def row_of(kind: str, name: str, network: Network, rows: int, repeats: int) -> dict[str, Any]:
    ways, program = (predictions if kind == "predict" else trainings)(network, rows)
    row: dict[str, Any] = {"network": name, "work": kind, "members": MEMBERS, "batch": rows}
    found: dict[str, list[Tensor]] = {}
    for way in list(ways):
        try:
            found[way] = [t.clone() for t in ways[way]()]
        except RuntimeError as error:  # vmap knows no recurrent layers
            row[way] = " ".join(str(error).split())[:80]
            del ways[way]
    norms = max(float(t.norm()) for t in found["loop"])
    row["off"] = max(
        float((a - b).norm()) / norms
        for way in found
        for a, b in zip(found[way], found["loop"], strict=True)
    )
    assert all(distance(found[way][0], found["loop"][0]) < 1e-2 for way in found)
    times: dict[str, list[float]] = {way: [] for way in ways}
    with freed_memory_kept():
        for _ in range(repeats):
            for way, work in ways.items():
                began = time.process_time()
                work()
                times[way].append(1e3 * (time.process_time() - began))
    row |= {way: [round(min(t), 2), round(max(t), 2)] for way, t in times.items()}
    row["chosen"] = "turns" if members_apart(program, rows, on_gpu=False) else "program"
    if "vmap" in times:
        row["over_vmap"] = round(min(times["vmap"]) / min(times[row["chosen"]]), 2)
    return row


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--work", nargs="*", default=["predict", "train"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; means nothing")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report(args.json, about(clock="CPU time of one thread, ms: least, most"), 1e9)
    networks = TINY if args.tiny else NETWORKS
    for name in args.only:
        for kind in args.work:
            rows = 4 if args.tiny else ROWS.get(name, 16)
            row = row_of(kind, name, networks[name], rows, args.repeats)
            report.add(row, json.dumps(row))


if __name__ == "__main__":
    main()
