"""How many times the compiled loop `fit` is, for eight networks on one H200.

python docs/figures/networks.py    (reads benchmarks/results; writes networks.png beside itself)
"""

import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
FILES = ("networks-fit-h200.json", "networks-fit-rest-h200.json")
NAMES = {
    "mlp": "MLP, 50 members",
    "tabm": "MLP of 4 x 992, 32 members",
    "vit": "ViT, 10 members",
    "cnn": "small CNN, 20 members",
    "text": "text transformer, 10 members",
    "mobilenet": "MobileNetV2, 10 members",
    "resnet18": "ResNet-18, 10 members",
    "lstm": "LSTM, 10 members",
}


def ratios() -> dict[str, float]:
    rows = [
        row
        for file in FILES
        for row in json.loads((RESULTS / file).read_text())["cases"]
    ]
    return {
        row["network"]: row["ratio"] for row in rows if row["way"] == "fit"
    }


def main() -> None:
    found = ratios()
    names = sorted(NAMES, key=found.__getitem__)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    values = [found[name] for name in names]
    bars = axes.barh(
        [NAMES[name] for name in names],
        [value - 1 for value in values],
        left=1,
        color="#3b6ea5",
        height=0.6,
    )
    axes.bar_label(bars, [f"{value:.2f}x" for value in values], padding=4)
    axes.set_xscale("log")
    axes.set_xlim(1, 32)
    axes.set_xticks([1, 2, 4, 8, 16], ["1x", "2x", "4x", "8x", "16x"])
    axes.minorticks_off()
    axes.set_xlabel("times as fast as the compiled loop over members")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "networks.png", dpi=150)


if __name__ == "__main__":
    main()
