"""Prints the peak of this process's memory in blocks of one member, over the parameters of one:
for one member, and for MEMBERS. A process of its own, since a peak only rises.
"""

import warnings
from pathlib import Path

import torch
from torch import nn

import stochens

MEMBERS = 8
WIDTH = 1000  # 4 MB of parameters


def build() -> nn.Module:
    layers = [nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 2))


def peak() -> float:
    """In bytes."""
    # not ru_maxrss, which begins at that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = torch.ones(16, 8), torch.zeros(16, dtype=torch.long)
    run = stochens.Run(engine="vmap", device="cpu", chunk=1)
    options = {"epochs": 1, "method": "regular", "run": run}
    stochens.fit(nn.Linear(8, 2), data, members=2, **options)  # what torch loads once
    one = 4 * sum(p.numel() for p in build().parameters())
    before = peak()
    for members in (1, MEMBERS):
        stochens.fit(build, data, members=members, **options)
        print((peak() - before) / one)
