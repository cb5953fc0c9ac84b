"""The README's picture: what ensembles know and do not know, on toy set a.

python docs/figures/moons.py    (about two minutes on 2 cores; writes moons.png beside itself)
"""

from pathlib import Path

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import stochens
from stochens.toy import grid, toy_set

MEMBERS, EPOCHS, HALF_SIDE, STEPS = 256, 1000, 3.0, 161
METHODS = {
    "regular": stochens.Regular(),
    "dropout (SE1)": stochens.Dropout(0.1),
    "non-parametric (SE3)": stochens.NPDropout(),
    "gaussian, learned": stochens.Gaussian(0.1, learn=True),
}


def main() -> None:
    x, y = toy_set("a")
    points = grid(HALF_SIDE, steps=STEPS)
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    axes = figure.subplots(2, len(METHODS))
    for column, (name, method) in zip(axes.T, METHODS.items(), strict=True):
        posterior = stochens.fit(
            lambda: stochens.MLP(2, 10, 10, 2),
            (x, y),
            method=method,
            members=MEMBERS,
            epochs=EPOCHS,
            batch_size=100,
            lr=0.01,
            optimizer=stochens.Optimizer(schedule="step"),
            start="prior",
        )
        p = posterior.predict(points)
        maps = (("entropy", p.entropy), ("mutual information", p.mutual_information))
        for ax, (what, values) in zip(column, maps, strict=True):
            image = ax.imshow(
                values.view(STEPS, STEPS),
                origin="lower",
                extent=(-HALF_SIDE, HALF_SIDE) * 2,
                cmap="magma",
                vmin=0,
                vmax=float(torch.log(torch.tensor(2.0))),
            )
            colours = ListedColormap(["#7fd8ff", "#ffd479"])
            ax.scatter(*x.T, c=y, s=2, cmap=colours, linewidths=0)
            ax.set_xticks([])
            ax.set_yticks([])
            if ax is axes[0][0] or ax is axes[1][0]:
                ax.set_ylabel(what, fontsize=12)
        column[0].set_title(name, fontsize=12)
    figure.colorbar(image, ax=axes, label="nats", shrink=0.8)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
