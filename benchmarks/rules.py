"""Which stacked form of each layer is fastest, and what whole networks reach with them.

    python benchmarks/rules.py [--part layers networks] [--only vit resnet18] [--out FILE]

A probe for the design of issue 20 (one program for any network). It says for the layers of
`models.py` how long forward and backward take in bf16 in each form of `stacked_layers.py`, and
for whole networks of `stacked_networks.py`, with Adam over stacked float32 parameters, the
member-examples a second. Every form is first held against the loop over members in float64 on the
CPU, gradients too; on the GPU the distance to a float32 loop stands in the row. All is timed as
CUDA graphs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import stacked_layers as layers
from models import NETWORKS, TINY
from stacked_layers import Form, Problem, Tensors, distance
from stacked_training import check_networks, ways_of
from timing import (
    Report,
    Row,
    about,
    attempt,
    busiest_kernels,
    ceilings,
    graphed,
    graphed_if_possible,
    rate_row,
    step_seconds,
    wait,
    warm,
    warm_caches,
)
from ways import Case, Ready

RESULTS = Path(__file__).parent / "results"
PARTS = ("networks", "layers")
SETS = 2  # of inputs, in turn, so that one does not find all of itself in the cache

Make = Callable[[], Problem]
SHAPES: dict[str, Make] = {
    "linear, MLP": lambda: layers.linear(50, 128, 256, 256),
    "linear, MLP's first": lambda: layers.linear(50, 128, 32, 256),
    "linear, TabM": lambda: layers.linear(32, 256, 992, 992),
    "linear, ViT's qkv": lambda: layers.linear(10, 128 * 64, 192, 576),
    "linear, ViT's up": lambda: layers.linear(10, 128 * 64, 192, 768),
    "linear, text's up": lambda: layers.linear(10, 64 * 128, 256, 1024),
    "attention, ViT": lambda: layers.attention(10, 128, 3, 64, 64),
    "attention, text": lambda: layers.attention(10, 64, 4, 128, 64),
    "layer norm, ViT": lambda: layers.layer_norm(10, 128 * 64, 192),
    "embedding, text": lambda: layers.embedding(10, 64, 128, 8192, 256),
    "conv, ResNet-18's stem": lambda: layers.convolution(10, 128, 3, 64, 32),
    "conv, ResNet-18, 64 at 32": lambda: layers.convolution(10, 128, 64, 64, 32, tuned=True),
    "conv, ResNet-18, 128 at 16": lambda: layers.convolution(10, 128, 128, 128, 16),
    "conv, ResNet-18, 256 at 8": lambda: layers.convolution(10, 128, 256, 256, 8, tuned=True),
    "conv, ResNet-18, 512 at 4": lambda: layers.convolution(10, 128, 512, 512, 4),
    "conv, ResNet-18, stride 2": lambda: layers.convolution(10, 128, 64, 128, 32, stride=2),
    "conv, CNN, 32 at 32": lambda: layers.convolution(20, 128, 32, 32, 32, tuned=True),
    "conv, CNN, 64 at 16": lambda: layers.convolution(20, 128, 64, 64, 16),
    "conv, MobileNetV2, 1x1": lambda: layers.convolution(10, 128, 32, 192, 16, kernel=1),
    "conv, MobileNetV2, depthwise": lambda: layers.convolution(
        10, 128, 192, 192, 16, depthwise=True
    ),
    "group norm, ResNet-18, 64 at 32": lambda: layers.group_norm(10, 128, 64, 32),
    "group norm, ResNet-18, 256 at 8": lambda: layers.group_norm(10, 128, 256, 8),
    "lstm": lambda: layers.lstm(10, 64, 128, 256),
}
SMALL: dict[str, Make] = {
    "linear": lambda: layers.linear(3, 4, 5, 6),
    "attention": lambda: layers.attention(3, 2, 2, 4, 5),
    "layer norm": lambda: layers.layer_norm(3, 4, 6),
    "embedding": lambda: layers.embedding(3, 2, 4, 7, 5),
    "conv": lambda: layers.convolution(3, 2, 4, 5, 6),
    "conv, stride 2": lambda: layers.convolution(3, 2, 4, 5, 6, stride=2),
    "conv, 1x1": lambda: layers.convolution(3, 2, 4, 5, 6, kernel=1),
    "conv, depthwise": lambda: layers.convolution(3, 2, 4, 4, 6, depthwise=True),
    "group norm": lambda: layers.group_norm(3, 2, 4, 5, groups=2),
    "lstm": lambda: layers.lstm(3, 2, 4, 5),
}


# -- layers ----------------------------------------------------------------------------------------


def inputs_of(problem: Problem, device: torch.device, kind: torch.dtype, seed: int) -> Tensors:
    """Canonical tensors, parameters small enough that nothing saturates."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors = [
        torch.randn(shape, generator=generator, device=device).mul(0.1 if k else 1).to(kind)
        for k, shape in enumerate(problem.shapes)
    ]
    if problem.vocabulary:
        size = problem.shapes[0]
        tensors[0] = torch.randint(problem.vocabulary, size, generator=generator, device=device)
    return tensors


def floating(tensors: Tensors) -> Tensors:
    return [t for t in tensors if t.is_floating_point()]


def results(form: Form, tensors: Tensors) -> Tensors:
    """The canonical output and all canonical gradients."""
    own = [t.detach().clone() for t in tensors]
    for t in floating(own):
        t.requires_grad_()
    output = form.unfold(form.call(form.fold(own)))
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)
    grads = torch.autograd.grad((output * weights.to(output.dtype)).sum(), floating(own))
    return [output.detach(), *grads]


EXACT = 1e-12  # float64: sums of at most some hundred terms in another order, each off by 1e-16


def check_layers() -> int:
    """Every form against the loop in float64; the number of forms."""
    count, cpu = 0, torch.device("cpu")
    for name, make in SMALL.items():
        problem = make()
        tensors = inputs_of(problem, cpu, torch.float64, seed=1)
        expected = results(problem.forms[0], tensors)
        for form in problem.forms[1:]:
            if form.on_cpu and not form.name.endswith("compiled"):
                off = distance(results(form, tensors), expected)
                assert off < EXACT, f"{name}, {form.name}: {off} from the loop"
                count += 1
    return count


def layer_row(form: Form, problem: Problem, device: torch.device, *, repeats: int) -> Row:
    """Microseconds of forward and backward."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    tensors = inputs_of(problem, device, kind, seed=0)
    wide = [t.float() if t.is_floating_point() else t for t in tensors]
    off = distance(results(form, tensors), results(problem.forms[0], wide))
    sets = []
    for seed in range(SETS):
        folded = form.fold(inputs_of(problem, device, kind, seed))
        own = [t.detach().requires_grad_(t.is_floating_point()) for t in folded]
        # without a graph: one that is alive here would tie its leaves to this stream, and recording
        # on another stream then fails
        with torch.no_grad():
            outs = form.call(own)
        sets.append((own, [torch.randn_like(out) for out in outs]))

    def step() -> None:
        for own, given in sets:
            torch.autograd.grad(form.call(own), floating(own), given)

    run = graphed(step) if device.type == "cuda" else step
    each = 0.04 if device.type == "cuda" else 0.002
    seconds = [s / SETS for s in step_seconds(run, repeats=repeats, each=each)]
    middle = statistics.median(seconds)
    return {
        "us": 1e6 * middle,
        "spread_us": [1e6 * min(seconds), 1e6 * max(seconds)],
        "tflop_per_s": 3 * problem.flop / middle / 1e12,
        "off": off,
    }


def network_row(
    prepare: Callable[[], Ready], cuda: bool, *, repeats: int, each: float, profile: bool
) -> Row:
    began = time.perf_counter()
    ready = prepare()
    ready.step()
    wait()
    step, more = graphed_if_possible(ready.step) if cuda else (ready.step, Row())
    setup = round(time.perf_counter() - began, 2)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    row = rate_row(step_seconds(step, repeats=repeats, each=each), ready.examples)
    more |= busiest_kernels(step) if profile else {}
    return {**row, "setup_s": setup, "peak_gib": round(peak, 2), **more}


# -- main ------------------------------------------------------------------------------------------


def time_layers(report: Report, device: torch.device, *, tiny: bool, repeats: int) -> None:
    for name, make in (SMALL if tiny else SHAPES).items():
        forms = make().forms
        for k in range(len(forms)):
            row: Row = {"layer": name, "form": forms[k].name}

            def work(k: int = k, make: Make = make) -> Row:
                problem = make()
                return layer_row(problem.forms[k], problem, device, repeats=repeats)

            if tiny and forms[k].name.endswith("compiled"):
                continue
            row |= (
                attempt(work, min(20.0, report.left)) if report.left > 3 else {"error": "no time"}
            )
            said = row.get("error", "")[:80]
            if not said:
                said = (
                    f"{row['us']:10.1f} us {row['tflop_per_s']:8.1f} TFLOP/s  off {row['off']:.1e}"
                )
            report.add(row, f"{name:32} {forms[k].name:36} {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; means nothing")
    parser.add_argument("--budget", type=float, default=470, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=45, help="seconds for one network's row")
    parser.add_argument("--workers", type=int, help="processes that compile; 7 on a GPU")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--profile", action="store_true", help="each network's busiest kernels")
    parser.add_argument("--out", type=Path, help="results/rules-DEVICE.json; with --tiny none")
    parser.add_argument("--warm", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True

    def case_of(name: str) -> Case:
        network = (TINY if args.tiny else NETWORKS)[name]
        return Case(network, network.members, network.batch, network.points, device)

    if args.warm is not None:

        def prepare(words: str) -> None:
            name, way = words.split("/")
            ways_of(name, case_of(name))[way]().step()

        return warm(args.warm, prepare)

    kind = torch.cuda.get_device_name().split()[-1].lower() if cuda else "cpu"
    file = args.out or (None if args.tiny else RESULTS / f"rules-{kind}.json")
    report = Report(file, about(), args.budget)
    cases = [
        (name, way)
        for name in args.only
        for way in ways_of(name, case_of(name))
        if "networks" in args.part and not (args.no_compile and way.endswith("compiled"))
    ]
    cold: dict[str, float] = {}
    workers = (7 if cuda else 0) if args.workers is None else args.workers
    if workers and cases:
        names = [f"{name}/{way}" for name, way in cases if way.endswith("compiled")]
        names = [n for n in names if "/members" not in n]  # the same code as one at a time
        names.sort(key=lambda n: n.split("/")[0] not in ("resnet18", "mobilenet", "vit", "text"))
        options = ["--tiny"] if args.tiny else []
        share = 0.3 * args.budget
        cold = warm_caches(Path(__file__), names, options, workers=workers, seconds=share)
    if cuda:
        report.head |= ceilings()
    try:
        checked = (
            f"{check_layers()} layers and {check_networks()} networks are the loop's, in float64"
        )
    except AssertionError as error:  # said, and the time on the GPU used all the same
        checked = f"WRONG: {error}"
    report.head["checked"] = checked
    print(checked, flush=True)
    each = 0.15 if cuda else 0.01 if args.tiny else 0.3
    peers: dict[str, int] = {}  # one at a time
    for name, way in cases:
        case = case_of(name)
        row: Row = {"network": name, "way": way, "members": case.members, "batch": case.batch}

        def work(way: str = way, name: str = name, case: Case = case) -> Row:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            made = ways_of(name, case)[way]
            return network_row(
                made, cuda, repeats=args.repeats, each=each, profile=args.profile and cuda
            )

        row |= (
            attempt(work, min(args.limit, report.left)) if report.left > 5 else {"error": "no time"}
        )
        if f"{name}/{way}" in cold:
            row["cold_s"] = cold[f"{name}/{way}"]
        if "error" not in row:
            if way.startswith("one at a time"):
                row["members"], peers[name] = 1, row["member_examples_per_s"]
            if name in peers:
                row["ratio"] = round(row["member_examples_per_s"] / peers[name], 3)
        said = row.get("error", "")[:90] or (
            f"{row['member_examples_per_s']:>12,} {row['ms_a_step']:9.3f} ms "
            f"{row.get('ratio', 0):7.2f}x  "
            f"set-up {row['setup_s']:.1f} s, {row['peak_gib']:.1f} GiB"
        )
        report.add(row, f"{name:10} {way:32} {said}  [{row.get('wall_s', 0):.1f} s]")
    if "layers" in args.part:
        time_layers(report, device, tiny=args.tiny, repeats=args.repeats)


if __name__ == "__main__":
    main()
