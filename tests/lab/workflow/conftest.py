"""Small files of every kind, a module with networks, and commands as a user meets them."""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from stochens_lab.cli import main

CLASSES = ["ash", "birch", "cedar"]
NETS = """
import os, signal
import torch
from torch import nn


def make_net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def two():
    return nn.Sequential(nn.Linear(4, 2))


def real():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def pair():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def grey():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 5, 3))


class Stops(nn.Module):
    "Presses Ctrl-C in its 20th training step, once."

    calls = 0

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x):
        if self.training and x.shape[0] > 4:
            Stops.calls += 1
            if Stops.calls == 20:
                os.kill(os.getpid(), signal.SIGINT)
        return self.inside(x)


def same():
    return Stops()


class Dies(Stops):
    "Fails at once, as one that is killed before its first checkpoint."

    def forward(self, x):
        if self.training and x.shape[0] > 4:
            raise RuntimeError("killed")
        return self.inside(x)


class Sure(nn.Module):
    "Its probabilities are 0 and 1."

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 3)

    def forward(self, x):
        return 1e6 * self.inside(x)


def fails():
    raise RuntimeError("no such layer")


def nothing():
    return 3


number = 3
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def typed(monkeypatch, capsys):
    """`typed("fit", ...)`: what the command answers, and its exit code."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["stochens", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x [rows, 4] and a class of three."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)) * [1, 20, 0.1, 3] + [0, 5, 2, -3]
    return x, (x[:, 0] + rng.normal(size=rows) > 0).astype(int) + (x[:, 3] > 0)


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """A folder with train.*, test.* and the module `trees_nets`."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    here = tmp_path_factory.mktemp("own")
    (here / "trees_nets.py").write_text(NETS)
    for name, rows, seed in (("train", 60, 0), ("test", 25, 1)):
        x, y = table(rows, seed)
        labels = [CLASSES[k] for k in y]
        target = x[:, 0] * 100 + 500
        with (here / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "c", "d", "kind"])
            writer.writerows(
                [*map(repr, row.tolist()), kind] for row, kind in zip(x, labels, strict=True)
            )
        columns = {key: x[:, k] for k, key in enumerate("dbca")}  # in another order
        pq.write_table(
            pa.table({"id": [f"t{i}" for i in range(rows)], **columns, "label": y * 4 + 3}),
            here / f"{name}.parquet",
        )
        np.savez(here / f"{name}.npz", x=x, y=np.array(labels))
        np.savez(here / f"{name}-real.npz", x=x.astype(np.float32), target=target)
        np.savez(here / f"{name}-pair.npz", x=x, y=np.stack([target, -x[:, 1]], 1))
        rng = np.random.default_rng(seed)
        for i, kind in enumerate(labels[:24]):
            folder = here / f"{name}-images" / kind
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (6, 7), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return here


@pytest.fixture
def here(files, monkeypatch) -> Path:
    monkeypatch.chdir(files)
    return files
