"""How much of a trained network is left when its batch norms are converted, before any training?

    python benchmarks/batchnorm.py --json benchmarks/results/batchnorm.json

A small ResNet is trained on 1200 of scikit-learn's digits and measured on the other 597, as it is
and with its norms frozen or replaced; five seeds. "new": the same replacements as they are built,
without what the trained norms hand on. About a minute on one core.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import stochens

SEEDS, TRAIN, CHANNELS = 5, 1200, 16


class Block(nn.Module):
    """x [B, C, H, W] -> the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        outputs: Tensor = (x + self.norm2(self.conv2(inner))).relu()
        return outputs


def trained(x: Tensor, y: Tensor) -> nn.Module:
    """x [N, 1, 8, 8]; in evaluation mode."""
    net = nn.Sequential(
        *(nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU()),
        *(Block(CHANNELS), nn.MaxPool2d(2), Block(CHANNELS)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(15):
        for rows in torch.randperm(len(x)).split(64):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def as_built(net: nn.Module) -> nn.Module:
    """The same with new norms."""
    for module in net.modules():
        if isinstance(module, (stochens.FRN, nn.GroupNorm)):
            module.reset_parameters()
    return net


def accuracies(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = trained(x[:TRAIN], y[:TRAIN])
    nets = {"batch norm": net, "frozen": stochens.freeze_batchnorm(net)}
    nets["FRN"] = stochens.replace_batchnorm(net, "frn")
    nets["FRN, new"] = as_built(stochens.replace_batchnorm(net, "frn"))
    for groups in (1, 4, 8):
        name = f"GroupNorm, {groups} groups"
        nets[name] = stochens.replace_batchnorm(net, "group", groups=groups)
        nets[f"{name}, new"] = as_built(stochens.replace_batchnorm(net, "group", groups=groups))
    with torch.no_grad():
        return {
            name: float((one.eval()(x[TRAIN:]).argmax(1) == y[TRAIN:]).float().mean())
            for name, one in nets.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [accuracies(seed) for seed in range(SEEDS)]
    found = {name: [round(run[name], 4) for run in runs] for name in runs[0]}
    for name, values in found.items():
        print(f"{name:24s} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    if options.json:
        options.json.write_text(json.dumps({"test accuracy by seed": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
