"""How many times the compiled loop `fit` is: on one H200, and on 2 CPU cores
against members.

python docs/figures/networks.py [--out PNG]

It reads benchmarks/results, which benchmarks/networks.py writes, and writes
networks.png beside itself. On the H200 each network has the number of members
of benchmarks/README.md, and what the other files have beside it.
"""

import argparse
import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
ON_GPU = [  # a point is drawn from the first file that has it
    RESULTS / "networks-own-h200.json",
    RESULTS / "networks-own-2-h200.json",
    RESULTS / "networks-own-3-h200.json",
    RESULTS / "networks-members-h200.json",
    RESULTS / "networks-members-more-h200.json",
    RESULTS / "networks-fit-h200.json",
    RESULTS / "networks-fit-rest-h200.json",
]
ON_CPU = [RESULTS / "networks-members-cpu.json"]
PEER = "compiled loop"
NAMES = {
    "mlp": "MLP",
    "tabm": "MLP of 4 x 992",
    "vit": "ViT",
    "cnn": "small CNN",
    "text": "text transformer",
    "mobilenet": "MobileNetV2",
    "resnet18": "ResNet-18",
    "lstm": "LSTM",
}
COLOURS = [
    "#3b6ea5",
    "#c4552d",
    "#4d8b4d",
    "#8a5aa8",
    "#b08a1e",
    "#4aa3a3",
    "#a63a5f",
    "#707070",
]


def ratios(files: list[Path]) -> dict[str, dict[int, float]]:
    """Of each network the ratio by the number of members."""
    found: dict[str, dict[int, float]] = {}
    for file in filter(Path.exists, files):
        rows = json.loads(file.read_text())["cases"]
        rates = {
            (row["network"], row["way"], row["members"]): row[
                "member_examples_per_s"
            ]
            for row in rows
            if "error" not in row
        }
        own: dict[str, dict[int, float]] = {}
        for (network, way, members), rate in rates.items():
            if way == "fit" and (network, PEER, 1) in rates:
                ratio = rate / rates[network, PEER, 1]
                own.setdefault(network, {})[members] = ratio
        for network, points in own.items():
            found[network] = {**points, **found.get(network, {})}
    return found


def draw(
    axes: Axes, found: dict[str, dict[int, float]], title: str
) -> None:
    for (name, text), colour in zip(NAMES.items(), COLOURS, strict=True):
        if name in found:
            points = sorted(found[name].items())
            axes.plot(
                *zip(*points, strict=True), "o-", c=colour, label=text
            )
    members = sorted({m for by in found.values() for m in by})
    every = [ratio for by in found.values() for ratio in by.values()]
    axes.axhline(1, color="#999999", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(members, [str(m) for m in members])
    coarse, fine = (
        (0.25, 0.5, 1, 2, 4, 8, 16, 32),
        (0.7, 0.8, 0.9, 1, 1.1, 1.2),
    )
    ticks = coarse if max(every) > 2 * min(every) else fine
    ticks = [t for t in ticks if min(every) / 1.5 < t < 1.5 * max(every)]
    axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("members")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "networks.png")
    args = parser.parse_args()
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, ratios(ON_GPU), "one H200, bf16")
    draw(right, ratios(ON_CPU), "2 CPU cores, float32")
    left.set_ylabel("times the compiled loop")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, loc="outside right center"
    )
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
