"""Training speed of `stochens.program`, the traced and stacked network, beside its peers.

    python benchmarks/programs.py [--only vit text] [--ways ...] [--budget 240] [--out FILE]
    python benchmarks/programs.py --smoke       # tiny networks on a CPU: does it run?

A step is: gather the batches, forward, loss, backward, Adam with the prior's L2, in bf16 with
float32 parameters.

- program: all members by stacked operators, compiled; "program, tuned" with torch.compile's search
  for the fastest products, "program, autocast" in float32 under autocast, "program, eager" without
  torch.compile.
- program, streams: each member's own compiled program on a side stream, parameters stacked;
  "program, apart": likewise with tensors of each member's own.
- compiled loop: one member at a time, as a competent user writes it.
- fit; "fit, bf16": the library as it comes, and in bf16. It chooses among the ways above by itself.

All but `fit` are timed as one CUDA graph of the whole step; `ms_without_graph` is the step without
it. Before that, every network in small is held against the loop over members in float64 on the
device, and the noise of eager and compiled programs against that of vmap.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models import NETWORKS, TINY, Network
from stacked_layers import distance
from stacked_networks import Params
from stacked_training import on_side_streams, stacked
from stochens.kernels.noise import words
from stochens.members import forward
from stochens.methods import stochastic
from stochens.networks import MLP
from stochens.program.apart import Apart
from stochens.program.program import Noise, Program, build
from stochens.randomness.noise import member_noise
from timing import (
    Report,
    Row,
    about,
    attempt,
    ceilings,
    graphed_if_possible,
    rate_row,
    step_seconds,
    tidy,
    wait,
    warm,
    warm_caches,
)
from ways import FITS, Case, Ready, compiled_loop, fit_row

RESULTS = Path(__file__).parent / "results"
FIVE = ["mlp", "cnn", "vit", "text", "resnet18"]
EXACT = 1e-10  # float64: ||a - b|| / ||b||, errors of 1e-16 over some thousand operations


def program_of(case: Case, dtype: torch.dtype | None) -> Program:
    x, _ = case.data()
    return build(case.network.build().to(case.device), x[: case.batch], dtype=dtype)


def by_program(
    case: Case, *, compiled: bool, autocast: bool = False, mode: str | None = None
) -> Ready:
    kind = torch.bfloat16 if case.cuda and not autocast else None
    program = program_of(case, kind)

    def outputs(params: Params, x: Tensor) -> Tensor:
        with torch.autocast(case.device.type, torch.bfloat16, enabled=autocast and case.cuda):
            return program.each(params, x)

    return stacked(case, outputs, compiled=compiled, cast=not autocast, mode=mode)


def on_streams(case: Case) -> Ready:
    """Stacked parameters, one compiled program that each member runs on a stream of its own."""
    program = program_of(case, torch.bfloat16 if case.cuda else None)
    return stacked(case, Apart(program, compiled=True).each, compiled=False, cast=False)


def apart_on_streams(case: Case) -> Ready:
    """Likewise where each member's parameters are tensors of their own."""
    program = program_of(case, torch.bfloat16 if case.cuda else None)
    return on_side_streams(case, compiled=True, forward=program.one)


WAYS: dict[str, Callable[[Case], Ready]] = {
    "program": lambda case: by_program(case, compiled=True),
    "program, streams": on_streams,
    "program, apart": apart_on_streams,
    "compiled loop": compiled_loop,
    "program, autocast": lambda case: by_program(case, compiled=True, autocast=True),
    "program, eager": lambda case: by_program(case, compiled=False),
    "program, tuned": lambda case: by_program(
        case, compiled=True, mode="max-autotune-no-cudagraphs"
    ),
}
ORDER = ["program", "program, streams", "fit, bf16", "compiled loop", "fit"]
COMPILED = [way for way in [*WAYS, *FITS] if way != "program, eager"]


# -- is it right? ----------------------------------------------------------------------------------


def off_the_loop(network: Network, device: torch.device) -> float:
    """How far outputs and gradients of the program are from one member after the other."""
    nets = [network.build().double().to(device) for _ in range(3)]
    for net in nets:  # no member may look like another
        for p in net.parameters():
            p.data += 0.1 * torch.randn_like(p)
    params = {
        name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    x, _ = network.data(12, device)
    x = (x if network.words else x.double()).unflatten(0, (3, 4))
    program = build(nets[0], x[0])

    def results(call: Callable[[Params], Tensor]) -> list[Tensor]:
        own = {name: p.clone().requires_grad_() for name, p in params.items()}
        y = call(own)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), list(own.values()))]

    def loop(own: Params) -> Tensor:
        each = [{name: p[k] for name, p in own.items()} for k in range(3)]
        return torch.stack(
            [torch.func.functional_call(nets[0], each[k], (x[k],)) for k in range(3)]
        )

    return distance(results(lambda own: program.each(own, x)), results(loop))


def noise_is_the_same(device: torch.device, *, compiled: bool) -> bool:
    """Whether vmap, the program and the compiled program drop the same nodes."""
    net = stochastic(MLP(4, 64, 64, 2), "dropout").to(device)
    params = {name: torch.stack([p.detach()] * 3) for name, p in net.named_parameters()}
    x = torch.randn(16, 4, device=device)
    ids, seed = torch.tensor([2, 9, 4], device=device), torch.tensor([77], device=device)
    program = build(net, x)
    with torch.no_grad(), member_noise(ids, seed, words):
        expected = forward(net, params, x)
    runs = [program(params, x, Noise(ids, seed))]
    if compiled:
        runs.append(torch.compile(program, dynamic=False)(params, x, Noise(ids, seed)))
    return all(torch.allclose(run, expected, rtol=1e-3, atol=1e-3) for run in runs)


def check(names: list[str], device: torch.device, *, compiled: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names:
        try:
            off = off_the_loop(TINY[name], device)
            found[f"off_{name}"] = off if off < EXACT else f"WRONG: {off}"
        except Exception as error:  # said, and the time on the GPU used all the same
            found[f"off_{name}"] = f"{type(error).__name__}: {error}"[:200]
    try:
        found["noise"] = "the same" if noise_is_the_same(device, compiled=compiled) else "WRONG"
    except Exception as error:
        found["noise"] = f"{type(error).__name__}: {error}"[:200]
    return found


# -- how fast is it? -------------------------------------------------------------------------------


def measure(case: Case, way: str, *, repeats: int, each: float) -> Row:
    if way in FITS:
        return fit_row(case, FITS[way], intervals=repeats, each=each)
    torch.backends.cudnn.benchmark = True
    if case.cuda:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    ready = WAYS[way](case)
    ready.step()
    wait()
    setup = round(time.perf_counter() - began, 2)
    row: Row = {}
    step = ready.step
    if case.cuda:
        plain = step_seconds(step, repeats=1, each=each)
        row["ms_without_graph"] = 1e3 * plain[0]
        step, more = graphed_if_possible(step)
        row |= more
        row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    seconds = step_seconds(step, repeats=repeats, each=each)
    return {**rate_row(seconds, ready.examples), **row, "setup_s": setup}


def compile_fit(case: Case, way: str) -> None:
    """For its traces in the caches; memory is shared with others now, and must not decide."""
    options: Any = FITS[way]
    if isinstance(options, dict):
        fixed: Any = {**options, "chunk": case.members}
    else:
        fixed = dataclasses.replace(options, chunk=case.members)
    fit_row(case, fixed, intervals=0, each=0.0)


def line_of(row: Row) -> str:
    head = f"{row['network']:9} {row['way']:18} {row['members']:>3} x {row['batch']:<4}"
    if "error" in row:
        return f"{head} {row['error'][:110]}  [{row.get('wall_s', 0):.0f} s]"
    graph = f", {row['ms_without_graph']:.3f} without graph" if "ms_without_graph" in row else ""
    return (
        f"{head} {row['member_examples_per_s']:>12,} {row['ms_a_step']:9.3f} ms{graph}"
        f"   {row.get('ratio', 0):.2f}x   set-up {row.get('setup_s', 0):.1f} s, "
        f"wall {row['wall_s']:.1f} s{'  NO GRAPH' if 'without_graph' in row else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=FIVE, choices=list(NETWORKS))
    parser.add_argument("--ways", nargs="*", default=ORDER, choices=[*WAYS, *FITS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=240, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one row")
    parser.add_argument("--workers", type=int, help="processes that compile; 7 on a GPU")
    parser.add_argument("--smoke", action="store_true", help="tiny networks; figures mean nothing")
    parser.add_argument("--out", type=Path, help="results/programs-DEVICE.json; with --smoke none")
    parser.add_argument("--warm", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")

    def case_of(name: str) -> Case:
        network = (TINY if args.smoke else NETWORKS)[name]
        members, batch, points = network.cpu
        if cuda or args.smoke:
            members, batch, points = network.members, network.batch, network.points
        return Case(network, members, batch, points, device)

    if args.warm is not None:

        def prepare(words: str) -> None:
            name, way = words.split("/")
            case = case_of(name)
            if way in FITS:
                return compile_fit(case, way)
            torch.backends.cudnn.benchmark = True
            WAYS[way](case).step()

        return warm(args.warm, prepare)

    kind = torch.cuda.get_device_name().split()[-1].lower() if cuda else "cpu"
    file = args.out or (None if args.smoke else RESULTS / f"programs-{kind}.json")
    report = Report(file, about(), args.budget)
    cases = [
        (name, way)
        for way in args.ways
        for name in args.only
        if way != "program, apart" or NETWORKS[name].image or "program" not in args.ways
    ]
    cold: dict[str, float] = {}
    workers = (7 if cuda else 0) if args.workers is None else args.workers
    if workers:
        names = [f"{name}/{way}" for name, way in cases if way in COMPILED]
        names.sort(key=lambda n: n.split("/")[0] not in ("resnet18", "vit", "text"))
        options = ["--smoke"] if args.smoke else []
        share = 0.4 * args.budget
        cold = warm_caches(Path(__file__), names, options, workers=workers, seconds=share)
    if cuda:
        report.head |= ceilings()
    report.head["checked"] = check(args.only, device, compiled=cuda)
    print(report.head["checked"], flush=True)
    tidy()
    each = 0.15 if cuda else 0.02
    peers: dict[str, int] = {}
    for name, way in cases:
        case = case_of(name)
        row: Row = {"network": name, "way": way, "members": case.members, "batch": case.batch}

        def work(way: str = way, case: Case = case) -> Row:
            return measure(case, way, repeats=args.repeats, each=each)

        if report.left < 5:
            row["error"] = f"not run: the {args.budget:.0f} s of this run are spent"
        else:
            row |= attempt(work, min(args.limit, report.left))
        if f"{name}/{way}" in cold:
            row["cold_s"] = cold[f"{name}/{way}"]
        if way == "compiled loop":
            row["members"] = 1
            if "error" not in row:
                peers[name] = row["member_examples_per_s"]
        report.add(row, line_of(row))
    for row in report.rows:
        if row["network"] in peers and "error" not in row:
            row["ratio"] = round(row["member_examples_per_s"] / peers[row["network"]], 3)
            print(f"{row['network']:9} {row['way']:18} {row['ratio']:.2f} times the compiled loop")
    report.write()


if __name__ == "__main__":
    main()
