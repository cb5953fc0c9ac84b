"""Ten LoRA members of a ViT beside ten full ones: time, memory, accuracy and NLL.

    python benchmarks/lora.py [--data FOLDER] [--tiny] [--only "LoRA, last half"] [--out FILE]
    python benchmarks/lora.py --table benchmarks/results/lora-h200.json

A ViT-S with patches of 4 x 4 learns 80 classes of CIFAR-100 (a plain loop, once). Then `fit` makes
posteriors for the other 20: 10,000 images to train on, 2,000 to test. Every row has the same epochs
and batches, and all come from one process on one device. Without --data, images are coloured waves,
a class for each colour and direction.

A step's time is that between the ends of epochs, after the first, so that set-up does not count;
"fit_s" is the whole call. "gpu_gb" is what training takes at most, with the data; "stored_mb" is
what the posterior is. Rates are chosen for one member on images that are held out.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stochens
from models import ViT
from stochens import LastLayer, LoRA, Prior, metrics
from stochens.errors import TrainingAdvice
from stochens.members import shared_by_all
from timing import Report, Row, about, attempt, rate_row, wait

RESULTS = Path(__file__).parent / "results"
OLD, ALL = 80, 100  # classes to learn before, and in all
RANK = 8
FULL, ONE = "ten full members", "one network"
BASE_RATE = 5e-4
HEADING = "## Ten members of a ViT"
WHOLE: dict[str, Any] = {"method": "regular", "start": "module", "prior": Prior(mean="start")}
KINDS: dict[
    str, tuple[dict[str, Any], tuple[float, ...]]
] = {  # of training: options of one member, and the rates to try
    "whole": (WHOLE, (1e-4, 3e-4)),
    "lora": ({"method": LoRA(RANK, layers=("qkv", "proj", "up", "down"))}, (1e-3, 3e-3)),
    "last": ({"method": LastLayer()}, (3e-3, 1e-2)),
}


class Size(NamedTuple):
    width: int
    depth: int
    heads: int
    members: int
    batch: int
    epochs: int
    before: int  # epochs of the base
    side: int  # pixels of an image


SMALL = Size(384, 12, 6, members=10, batch=64, epochs=3, before=12, side=32)
TINY = Size(8, 4, 2, members=2, batch=16, epochs=3, before=2, side=8)


class Task(NamedTuple):
    """Images [N, 3, 32, 32] and labels [N]: of the old classes, of the new ones, and to test on."""

    old: tuple[Tensor, Tensor]
    new: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


# -- data ------------------------------------------------------------------------------------------


def waves(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Coloured waves with noise: class k has its own direction and colour."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % ALL
    angle, colour = 0.1 * y, torch.randn(ALL, 3, generator=generator)[y]
    place = torch.arange(float(side))
    along = angle.cos().view(-1, 1, 1) * place + angle.sin().view(-1, 1, 1) * place.view(-1, 1)
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    wave = torch.sin(0.6 * along + phase).unsqueeze(1) * colour.view(-1, 3, 1, 1)
    return wave + 0.3 * torch.randn(wave.shape, generator=generator), y


def cifar100(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    from stochens_lab.data.image_sets import normalise
    from stochens_lab.data.images import load_images

    images = load_images(folder, "cifar100", split)
    return normalise(images.x, "cifar100"), images.y


def task_of(folder: Path | None, size: Size) -> Task:
    if folder is None:
        x, y = waves(60_000 if size.side == 32 else 300, size.side)
        ends = len(x) // 6 * 5
        train, test = (x[:ends], y[:ends]), (x[ends:], y[ends:])
    else:
        train, test = cifar100(folder, "train"), cifar100(folder, "test")

    def part(data: tuple[Tensor, Tensor], new: bool) -> tuple[Tensor, Tensor]:
        x, y = data
        rows = (y >= OLD) == new
        return x[rows], y[rows] - OLD * new

    return Task(part(train, False), part(train, True), part(test, True))


# -- the network that all begin with ---------------------------------------------------------------


def base_of(size: Size, data: tuple[Tensor, Tensor], device: torch.device) -> nn.Module:
    """Trained on the old classes by a plain loop, images mirrored at random; with a new head."""
    torch.manual_seed(0)
    net = ViT(size.width, size.depth, size.heads, size.side)
    net.head = nn.Linear(size.width, OLD)
    net = net.to(device)
    x, y = (t.to(device) for t in data)
    batch = min(4 * size.batch, len(x))
    steps = size.before * (len(x) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=BASE_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, BASE_RATE, total_steps=steps)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), device=device)
        images = torch.where(
            torch.rand(batch, 1, 1, 1, device=device) < 0.5, x[rows], x[rows].flip(3)
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = net(images)
        loss = F.cross_entropy(outputs.float(), y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"base: {steps} steps, loss {float(loss.detach()):.3f}", flush=True)
    net.head = nn.Linear(size.width, ALL - OLD)
    return net.cpu()


# -- rows ------------------------------------------------------------------------------------------


def ways(depth: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """A row's name -> its kind, and its options of `fit`."""

    def last(share: float) -> tuple[str, ...]:
        return tuple(f"blocks.{k}.*" for k in range(depth - round(share * depth), depth))

    every = KINDS["lora"][0]
    return {
        ONE: ("whole", WHOLE | {"members": 1}),
        FULL: ("whole", WHOLE),
        "LoRA, last sixth": ("lora", {"method": LoRA(RANK, layers=last(1 / 6))}),
        "LoRA, last quarter": ("lora", {"method": LoRA(RANK, layers=last(1 / 4))}),
        "LoRA, last half": ("lora", {"method": LoRA(RANK, layers=last(1 / 2))}),
        "last layer": ("last", KINDS["last"][0]),
        "LoRA, attention": ("lora", {"method": LoRA(RANK)}),
        "LoRA, all linear layers": ("lora", every),
    }


def choose_rate(kind: str, net: nn.Module, task: Task, how: dict[str, Any]) -> tuple[float, Row]:
    options, rates = KINDS[kind]
    x, y = task.new
    held = len(x) // 5
    found: Row = {}
    for rate in rates:
        one = stochens.fit(net, (x[held:], y[held:]), **{**how, **options}, members=1, lr=rate)
        p = one.predict(x[:held], keep_draws=False)
        found[f"{rate:g}"] = round(float(metrics.nll(p.mean.cpu(), y[:held])), 4)
    best = min(found, key=lambda rate: found[rate])
    return float(best), found


def measure(net: nn.Module, task: Task, options: dict[str, Any], size: Size, cuda: bool) -> Row:
    marks: list[float] = []  # ends of epochs; the loss has waited for the GPU

    def log(epoch: int, values: dict[str, float]) -> None:
        marks.append(time.perf_counter())

    before = 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    wait()
    began = time.perf_counter()
    posterior = stochens.fit(net, task.new, **options, run=stochens.Run(log=log))
    wait()
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() - before if cuda else None
    steps = -(-len(task.new[0]) // size.batch)
    members = len(posterior)
    assert len(marks) == options["epochs"], "members were trained in several blocks"
    gaps = [(t1 - t0) / steps for t0, t1 in itertools.pairwise(marks)]
    row = rate_row(gaps, members * size.batch) | {"fit_s": round(seconds, 2)}
    if peak is not None:
        row["gpu_gb"] = round(peak / 1e9, 3)
    kept = [*posterior.params.values(), *shared_by_all(posterior.net).values()]
    row["stored_mb"] = round(sum(t.numel() * t.element_size() for t in kept) / 1e6, 3)
    x, y = task.test
    mean = posterior.predict(x, keep_draws=False).mean.cpu()
    for name, metric in (("accuracy", metrics.accuracy), ("nll", metrics.nll)):
        value, low, high = metrics.bootstrap(metric, mean, y, resamples=300)
        row |= {name: round(value, 4), f"{name}_interval": [round(low, 4), round(high, 4)]}
    return row


def add_ratios(rows: list[Row]) -> None:
    """Times a step of ten full members, and the memory of one network."""
    by_way = {row["way"]: row for row in rows if "error" not in row}
    for row in by_way.values():
        if FULL in by_way and row["way"] != ONE:
            full = by_way[FULL]
            row["times_faster"] = round(full["ms_a_step"] / row["ms_a_step"], 2)
            row["fit_times_faster"] = round(full["fit_s"] / row["fit_s"], 2)
        if ONE in by_way:
            row["stored_of_one"] = round(row["stored_mb"] / by_way[ONE]["stored_mb"], 3)
            if "gpu_gb" in row:
                row["gpu_of_one"] = round(row["gpu_gb"] / by_way[ONE]["gpu_gb"], 2)


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['way']:26} {row['error'][:100]}"
    return (
        f"{row['way']:26} {row['ms_a_step']:9.2f} ms  fit {row['fit_s']:7.1f} s  "
        f"{row.get('gpu_gb', 0):7.2f} GB  {row['stored_mb']:8.1f} MB  "
        f"accuracy {row['accuracy']:.4f}  NLL {row['nll']:.4f}  rate {row['rate']:g}"
    )


def table(result: Row) -> str:
    """A result as Markdown."""
    heads = ["", "ms a step", "times faster", "GPU memory", "stored", "accuracy", "NLL"]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for row in result["cases"]:
        if "error" in row:
            continue
        times = f"{row['times_faster']:.1f}x" if "times_faster" in row else ""
        gpu = f"{row['gpu_gb']:.2f} GB" if "gpu_gb" in row else ""
        stored = f"{row['stored_of_one']:.2f} networks" if "stored_of_one" in row else ""
        low, high = row["accuracy_interval"]
        accuracy = f"{100 * row['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        low, high = row["nll_interval"]
        nll = f"{row['nll']:.3f} ({low:.3f} to {high:.3f})"
        cells = [row["way"], f"{row['ms_a_step']:.1f}", times, gpu, stored, accuracy, nll]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([f"`{result['command']}`, {result['device']}", "", HEADING, "", *lines]) + "\n"


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder with CIFAR-100")
    parser.add_argument("--only", nargs="*", help="rows")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; means nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--budget", type=float, default=300, help="seconds for everything")
    parser.add_argument("--out", type=Path, help="results/lora-DEVICE.json; with --tiny none")
    parser.add_argument("--table", type=Path, help="this result as Markdown; measure nothing")
    args = parser.parse_args()
    if args.table is not None:
        return print(table(json.loads(args.table.read_text())), end="")
    cuda = torch.cuda.is_available() and args.device != "cpu"
    device = torch.device("cuda" if cuda else "cpu")
    size = TINY if args.tiny else SMALL
    size = size._replace(epochs=args.epochs or size.epochs)
    kind_of_gpu = torch.cuda.get_device_name().split()[-1].lower() if cuda else "cpu"
    file = args.out or (None if args.tiny else RESULTS / f"lora-{kind_of_gpu}.json")
    report = Report(file, about(**size._asdict()), args.budget)
    task = task_of(args.data, size)
    net = base_of(size, task.old, device)
    how = {"epochs": size.epochs, "batch_size": size.batch, "device": device, "progress": False}
    rates: dict[str, float] = {}
    for name, (kind, own) in ways(size.depth).items():
        if args.only and name not in args.only:
            continue

        def work(kind: str = kind, own: dict[str, Any] = own) -> Row:
            if kind not in rates:
                rates[kind], report.head[f"held-out NLL, {kind}"] = choose_rate(
                    kind, net, task, how
                )
            options = {"members": size.members, **own, "lr": rates[kind]}
            row = measure(net, task, {**how, **options}, size, cuda)
            return {"rate": rates[kind], **row}

        row: Row = {"way": name, "batch": size.batch}
        if report.left < 5:
            row["error"] = f"not run: the {args.budget:.0f} s of this run are spent"
        else:
            row |= attempt(work, report.left)
        report.add(row, line_of(row))
    add_ratios(report.rows)
    report.write()
    text = table({**report.head, "cases": report.rows})
    print(text)
    if file is not None:
        file.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
