"""Milliseconds of `posterior.predict` for one example, beside a bare vmap of the same network.

    python benchmarks/latency.py --json benchmarks/results/latency.json

The bare way is what a competent user writes: torch.func.vmap of functional_call over the stacked
parameters, in inference mode, and the mean of the softmax. For dropout it is the same network with
nn.Dropout where ours has noise, and vmap(randomness="different"). "answer" is `predict` with its
mean and entropy read as numbers, as a server does. Ways take turns in one run on one thread, and
time is the CPU's, so that a busy machine slows all of them alike; the ratio is the median over the
ratios of the turns.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import stochens
from models import CNN, ViT
from stochens.members import builder, init
from timing import about

RATE = 0.1


def networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    """Network and the shape of an example."""
    return {
        "MLP 64-50-50-10": (lambda: stochens.MLP(64, 50, 50, 10), (64,)),
        "MLP 64-256-256-10": (lambda: stochens.MLP(64, 256, 256, 10), (64,)),
        "CNN 16 on 16 x 16": (lambda: CNN(width=16, size=16), (3, 16, 16)),
        "ViT 64, 2 blocks, 16 x 16": (
            lambda: ViT(width=64, depth=2, heads=4, size=16),
            (3, 16, 16),
        ),
    }


class AndDropout(nn.Module):
    """A layer and torch's own dropout of its outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.drop = layer, nn.Dropout(RATE)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.drop(self.layer(x))
        return dropped


def with_dropout(net: nn.Module) -> nn.Module:
    """The network with torch's dropout after each layer that `Dropout` has noise on."""
    for path, layer in list(net.named_modules()):
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            owner, _, name = path.rpartition(".")
            setattr(net.get_submodule(owner), name, AndDropout(layer))
    return net


def bare(build: Callable[[], nn.Module], members: int, *, dropout: bool) -> Callable[[Tensor], Any]:
    """x [1, ...] -> the mean probabilities [1, C]."""
    factory = builder(lambda: with_dropout(build()) if dropout else build())
    params, net = init(factory, members=range(members), seed=0), factory().train(dropout)

    def call(own: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(net, own, (x,))
        return outputs

    mapped = vmap(call, in_dims=(0, None), randomness="different" if dropout else "error")

    def predict(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return mapped(params, x).softmax(-1).mean(0)

    return predict


def ours(build: Callable[[], nn.Module], members: int, x: Tensor, method: str) -> Any:
    """`predict` of as many members, which need not be trained to be timed."""
    chosen = "regular" if method == "regular" else stochens.Dropout(RATE)
    rows, y = x.expand(4, *x.shape[1:]).contiguous(), torch.arange(4)
    posterior = stochens.fit(
        build, (rows, y), method=chosen, members=members, epochs=1, progress=False, device="cpu"
    )
    return posterior.predict


def answer(predict: Callable[[Tensor], Any], x: Tensor) -> tuple[list[float], float]:
    """What a server says of one example: its probabilities, and how sure that is."""
    p = predict(x)
    return p.mean[0].tolist(), p.entropy.item()


def seconds(call: Callable[[Tensor], object], x: Tensor, calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        call(x)
    return (time.process_time() - began) / calls


def measure(ways: dict[str, Callable[[Tensor], object]], x: Tensor, turns: int) -> dict[str, Any]:
    """Of each way its milliseconds, and the ratios of ours to each of the bare ways."""
    calls = {}
    for name, way in ways.items():
        seconds(way, x, 3)  # traces, caches, allocations
        calls[name] = max(1, round(0.02 / seconds(way, x, 3)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            times[name].append(seconds(way, x, calls[name]))
    row: dict[str, Any] = {
        f"{name}_ms": round(1e3 * statistics.median(each), 4) for name, each in times.items()
    }
    for ours in ("predict", "answer"):
        for name in (name for name in times if name.startswith("vmap")):
            ratios = sorted(a / b for a, b in zip(times[ours], times[name], strict=True))
            key = f"times_{name}" if ours == "predict" else f"{ours}_times_{name}"
            row[key] = round(statistics.median(ratios), 3)
            row[f"{key}_quartiles"] = [
                round(ratios[len(ratios) // 4], 3),
                round(ratios[-1 - len(ratios) // 4], 3),
            ]
    return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--members", type=int, default=50)
    options.add_argument("--turns", type=int, default=41)
    options.add_argument("--only", default="", help="networks whose name begins so")
    options.add_argument("--json", type=Path)
    args = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    chosen = {n: case for n, case in networks().items() if n.startswith(args.only)}
    for network, (build, shape) in chosen.items():
        x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
        for method in ("regular", "dropout"):
            ways = {"predict": ours(build, args.members, x, method)}
            ways["vmap"] = bare(build, args.members, dropout=False)
            if method == "dropout":
                ways["vmap_with_dropout"] = bare(build, args.members, dropout=True)
            ways["answer"] = functools.partial(answer, ways["predict"])
            row = measure(ways, x, args.turns)
            found[f"{network}, {method}"] = row
            print(f"{network}, {method}: {row}", flush=True)
    if args.json:
        head = about(members=args.members, turns=args.turns, examples=1)
        args.json.write_text(json.dumps({**head, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
