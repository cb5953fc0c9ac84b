"""Training speed of eight networks: `fit` against the loop that a competent user writes.

    python benchmarks/networks.py [--quick] [--only vit text] [--members 10 1 20] [--out FILE]

With several numbers of members all networks come with the first of them, then all with the next, so
that a run whose --budget is spent has the first ones of each.

A step is: gather the batches, forward, loss, backward, Adam, with the prior's L2. The number that
counts is member-examples a second. All rows of a network come from one process on one device.

"compiled loop" is one member at a time: bf16 autocast, torch.compile, channels_last for images, the
whole step as a CUDA graph, fused Adam. "4x batch" and "10x batch" are the same with one member and
so much more work in one launch: what the GPU could do. On a CPU the peer is "loop", plain float32,
and "compiled loop" the same with torch.compile.
`fit` is timed between the ends of epochs, after the first ones, so that its set-up does not count.
Compiled code is made beforehand by several processes ("cold_s": seconds of each), and is then taken
from torch's caches.
"""

import argparse
import dataclasses
import json
import statistics
import time
import warnings
from pathlib import Path

import torch

from models import NETWORKS, TINY
from stochens.errors import TrainingAdvice
from timing import (
    Report,
    Row,
    about,
    attempt,
    ceilings,
    graphed_if_possible,
    rate_row,
    step_seconds,
    wait,
    warm,
    warm_caches,
)
from ways import FITS, OTHERS, Case, fit_row

RESULTS = Path(__file__).parent / "results"
WAYS = [*OTHERS, *FITS]
ON_GPU = [
    *("compiled loop", "fit", "fit, bf16", "fit, compile, bf16", "vmap + compile"),
    *("4x batch", "10x batch", "jax"),
]
ON_CPU = ["loop", "compiled loop", "fit"]
COMPILED = [
    *("compiled loop", "4x batch", "10x batch"),
    *("vmap + compile", "fit", "fit, bf16", "fit, compile", "fit, compile, bf16"),
]
ONE_MEMBER = ("loop", "compiled loop", "4x batch", "10x batch")


def measure(case: Case, way: str, *, repeats: int, each: float) -> Row:
    torch.backends.cudnn.benchmark = False  # as it comes, unless a way sets it
    if way in FITS:
        return fit_row(case, FITS[way], intervals=repeats, each=each)
    began = time.perf_counter()
    ready = OTHERS[way](case)
    ready.step()
    wait()
    step, more = ready.step, Row()
    if case.cuda and ready.recordable:
        step, more = graphed_if_possible(ready.step)
    more["setup_s"] = round(time.perf_counter() - began, 2)
    seconds = [s / ready.steps for s in step_seconds(step, repeats=repeats, each=each)]
    return {**rate_row(seconds, ready.examples), **more}


def compile_case(case: Case, way: str) -> None:
    """For its traces in the caches."""
    if way in FITS:  # chunk: memory is shared with others now, and must not decide
        one_block = dataclasses.replace(FITS[way], chunk=case.members)
        fit_row(case, one_block, intervals=0, each=0.0)
    else:
        OTHERS[way](case).step()


def add_ratios(rows: list[Row], peer: str) -> None:
    """To each row of a network how many times the peer it is, and the range over the repeats."""
    peers = {r["network"]: r for r in rows if r["way"] == peer and "error" not in r}
    for row in rows:
        if (own := peers.get(row["network"])) is not None and "error" not in row:
            row["ratio"] = round(row["member_examples_per_s"] / own["member_examples_per_s"], 3)
            least, most = row["spread"]
            row["ratio_spread"] = [
                round(least / own["spread"][1], 3),
                round(most / own["spread"][0], 3),
            ]


def line_of(row: Row) -> str:
    head = f"{row['network']:10} {row['way']:20} {row['members']:>4} x {row['batch']:<5}"
    if "error" in row:
        return f"{head} {row['error'][:90]}  [{row.get('wall_s', 0):.0f} s]"
    spread = "{:,} to {:,}".format(*row["spread"])
    graph = "  no graph" if "without_graph" in row else ""
    return (
        f"{head} {row['member_examples_per_s']:>12,} {row['ms_a_step']:9.3f} ms   {spread}"
        f"   set-up {row.get('setup_s', 0):.1f} s, wall {row['wall_s']:.1f} s{graph}"
    )


def table(file: Path) -> str:
    """A result as Markdown: a row for each network, a column for each way."""
    rows: list[Row] = json.loads(file.read_text())["cases"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))

    def cell(network: str, way: str) -> str:
        found = [row for row in rows if (row["network"], row["way"]) == (network, way)]
        texts = [
            "error" if "error" in row else f"{row['member_examples_per_s']:,}"
            for row in sorted(found, key=lambda row: int(row["members"]))
        ]
        return " / ".join(texts)

    lines = ["| network | " + " | ".join(ways) + " |", "| --- " * (len(ways) + 1) + "|"]
    cells = ([name, *(cell(name, way) for way in ways)] for name in networks)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--ways", nargs="*", choices=WAYS)
    parser.add_argument("--members", type=int, nargs="*", help="in place of each network's own")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the compiled loop and fit alone")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; means nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=530, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=75, help="seconds for one row")
    parser.add_argument("--workers", type=int, help="processes that compile; 7 on a GPU")
    parser.add_argument("--out", type=Path, help="results/networks-DEVICE.json; with --tiny none")
    parser.add_argument("--table", type=Path, help="print this result as Markdown, measure nothing")
    parser.add_argument("--warm", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table is not None:
        return print(table(args.table))
    cuda = torch.cuda.is_available() and args.device != "cpu"
    device = torch.device("cuda" if cuda else "cpu")
    networks = TINY if args.tiny else NETWORKS
    peer = "compiled loop" if cuda else "loop"
    ways: list[str] = args.ways or ([peer, "fit"] if args.quick else ON_GPU if cuda else ON_CPU)

    def case_of(name: str, members: int | None) -> Case:
        network = networks[name]
        own, batch, points = network.cpu
        if cuda or args.tiny:
            own, batch, points = network.members, network.batch, network.points
        return Case(network, members or own, batch, points, device)

    if args.warm is not None:

        def prepare(words: str) -> None:
            name, way, members = words.split("/")
            compile_case(case_of(name, int(members)), way)

        return warm(args.warm, prepare)

    cases = [
        (name, way, case_of(name, members))
        for k, members in enumerate(args.members or [None])
        for name in args.only
        for way in ways
        if not (k and way in ONE_MEMBER)
        and not (way in ("4x batch", "10x batch") and not networks[name].wide)
        and not (way == "jax" and name not in ("mlp", "tabm"))
    ]
    kind = torch.cuda.get_device_name().split()[-1].lower() if cuda else "cpu"
    file = args.out or (None if args.tiny else RESULTS / f"networks-{kind}.json")
    report = Report(file, about(), args.budget)
    workers = (7 if cuda else 0) if args.workers is None else args.workers
    cold: dict[str, float] = {}
    if workers:
        names = [f"{name}/{way}/{case.members}" for name, way, case in cases if way in COMPILED]
        heavy = ("resnet18", "mobilenet", "vit", "text")  # first, since they take longest
        turn = {str(m): k for k, m in enumerate(args.members or [])}
        names.sort(key=lambda n: (turn.get(n.split("/")[2], 0), n.split("/")[0] not in heavy))
        options = [*(["--tiny"] if args.tiny else []), "--device", device.type]
        share = 0.4 * args.budget
        cold = warm_caches(Path(__file__), names, options, workers=workers, seconds=share)
    if cuda:
        report.head |= ceilings()
    each = 0.2 if cuda else 0.02 if args.tiny else 0.5
    for name, way, case in cases:

        def work(way: str = way, case: Case = case) -> Row:
            return measure(case, way, repeats=args.repeats, each=each)

        row: Row = {"network": name, "way": way, "members": case.members, "batch": case.batch}
        if way in ONE_MEMBER:
            row["members"] = 1
            row["batch"] *= {"4x batch": 4, "10x batch": 10}.get(way, 1)
        if report.left < 5:
            row["error"] = f"not run: the {args.budget:.0f} s of this run are spent"
        else:
            row |= attempt(work, min(args.limit, report.left))
        if (seconds := cold.get(f"{name}/{way}/{case.members}")) is not None:
            row["cold_s"] = seconds
        report.add(row, line_of(row))
    add_ratios(report.rows, peer)
    report.write()
    print(f"\n{'':10} {'':20} times the {peer}")
    for row in report.rows:
        if "ratio" in row:
            print(f"{row['network']:10} {row['way']:20} {row['members']:>4} {row['ratio']:8.2f}")
    errors = [row for row in report.rows if "error" in row]
    walls = [row.get("wall_s", 0.0) for row in report.rows]
    print(
        f"{len(report.rows)} rows, {len(errors)} with an error, {sum(walls):.0f} s, "
        f"the median row {statistics.median(walls):.1f} s"
    )


if __name__ == "__main__":
    main()
