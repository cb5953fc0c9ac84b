"""The 16 corruptions at 5 intensities, on a photograph that scikit-learn brings along.

python docs/figures/corruptions.py    (seconds; writes corruptions.png beside itself)
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn import functional as F

from stochens_lab.data.corruptions import CORRUPTIONS, INTENSITIES, corrupt

TOP, LEFT, SIDE = 40, 190, 352  # of the piece of the photograph


def photograph() -> Tensor:
    """A flower as CIFAR would have it, uint8 [1, 3, 32, 32]."""
    piece = load_sample_image("flower.jpg")[
        TOP : TOP + SIDE, LEFT : LEFT + SIDE
    ]
    channels = torch.tensor(piece).permute(2, 0, 1).unsqueeze(0)
    return F.adaptive_avg_pool2d(channels.float(), 32).round().byte()


def main() -> None:
    x = photograph()
    figure = Figure(figsize=(10.6, 6.2), layout="constrained")
    axes = figure.subplots(len(CORRUPTIONS) // 2, 2)
    for k, (ax, name) in enumerate(
        zip(axes.T.flat, CORRUPTIONS, strict=True)
    ):
        row = [x, *(corrupt(x, name, i) for i in range(1, INTENSITIES + 1))]
        strip = torch.cat(
            [F.pad(tile, [1] * 4, value=255) for tile in row], 3
        )[0]
        ax.imshow(strip.permute(1, 2, 0).numpy(), interpolation="nearest")
        ax.set_ylabel(
            name.replace("_", "\n"),
            rotation=0,
            ha="right",
            va="center",
            fontsize=9,
        )
        ax.set_yticks([])
        ax.set_xticks(
            [34 * i + 16.5 for i in range(INTENSITIES + 1)],
            ["clean", *"12345"],
        )
        if (k + 1) % len(axes):
            ax.set_xticks([])
        ax.tick_params(length=0, labelsize=9)
        ax.spines[:].set_visible(False)
    path = Path(__file__).with_suffix(".png")
    figure.savefig(
        path, dpi=90, facecolor="white", pil_kwargs={"optimize": True}
    )


if __name__ == "__main__":
    main()
