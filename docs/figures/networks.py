"""How many times the compiled loop `fit` is, against members, on one H200.

python docs/figures/networks.py [FILE ...] [--out PNG]

It reads benchmarks/results, or results of benchmarks/networks.py that are
given, and writes networks.png beside itself. A network is drawn from the first
file that has it.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
FILES = [
    RESULTS / "networks-members-h200.json",
    RESULTS / "networks-fit-h200.json",
    RESULTS / "networks-fit-rest-h200.json",
]
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
        own: dict[str, dict[int, float]] = {}
        for row in json.loads(file.read_text())["cases"]:
            if row["way"] == "fit" and "ratio" in row:
                by_members = own.setdefault(row["network"], {})
                by_members[row["members"]] = row["ratio"]
        found = {**own, **found}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--out", type=Path, default=HERE / "networks.png")
    args = parser.parse_args()
    found = ratios(args.files)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
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
    ticks = [
        t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if t < 1.5 * max(every)
    ]
    ticks = [t for t in ticks if t >= 1 or 2 * t > min(every)]
    axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("members")
    axes.set_ylabel("times the compiled loop")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
