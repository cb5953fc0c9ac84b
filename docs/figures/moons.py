"""The README's picture: how sure ensembles are on toy set a, and how sure the posterior is.

python docs/figures/moons.py    (about two minutes on 2 cores; writes moons.png beside itself)
"""

from pathlib import Path

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import stochens
from stochens.toy import grid, toy_set

MEMBERS, HALF_SIDE, STEPS = 256, 3.0, 161


def posteriors() -> dict[str, stochens.Posterior]:
    data, net = toy_set("a"), stochens.MLP(2, 10, 10, 2)
    chains = {
        "chains": 4,
        "samples": 2000,
        "warmup": 1000,
        "target_accept": 0.95,
    }
    training = {
        "members": MEMBERS,
        "epochs": 1000,
        "batch_size": 100,
        "lr": 0.01,
    }
    return {
        "deep ensemble": stochens.fit(
            net, data, method="regular", **training
        ),
        "dropout (SE1)": stochens.fit(
            net, data, method=stochens.Dropout(0.1), **training
        ),
        "Langevin ensemble": stochens.langevin(net, data, members=MEMBERS),
        "NUTS: the posterior": stochens.nuts(net, data, **chains),
    }


def main() -> None:
    x, y = toy_set("a")
    points = grid(HALF_SIDE, steps=STEPS)
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    axes = figure.subplots(2, 4)
    for column, (name, posterior) in zip(
        axes.T, posteriors().items(), strict=True
    ):
        p = posterior.predict(points)
        maps = (
            ("entropy", p.entropy),
            ("mutual information", p.mutual_information),
        )
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
            if name == "deep ensemble":
                ax.set_ylabel(what, fontsize=12)
        column[0].set_title(name, fontsize=12)
    figure.colorbar(image, ax=axes, label="nats", shrink=0.8)
    figure.savefig(
        Path(__file__).with_suffix(".png"), dpi=110, facecolor="white"
    )


if __name__ == "__main__":
    main()
