"""Layers whose weights all members share: the examples of all members are one batch of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.program.test_program import assert_same, results
from torch import Tensor, nn

from stochens import LastLayer, LoRA, freeze_batchnorm
from stochens.members import Params, forward, forward_each, trainable
from stochens.methods import stochastic
from stochens.program import operators
from stochens.program.choice import STREAMS_FROM, members_apart
from stochens.program.program import build

M, B = 3, 4


class Block(nn.Module):
    """As in MobileNetV2: to more channels, one filter for each of them, back to few."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.up = nn.Conv2d(channels, wide, 1, bias=False)
        self.norm = nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.down = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.depthwise(self.norm(self.up(x)).relu()).tanh())


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def depthwise() -> nn.Module:
    torch.manual_seed(0)
    net = Small()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_()
    return freeze_batchnorm(net).eval().double()


def case(method: Any) -> tuple[nn.Module, Params, Tensor]:
    """The network with this method, members of it that are all apart, and inputs."""
    net = stochastic(depthwise(), method, output="head")
    params = {name: torch.randn(M, *p.shape).double() for name, p in trainable(net).items()}
    return net, params, torch.randn(B, 2, 8, 8, dtype=torch.float64)


CASES = {
    "lora": (LoRA(2, layers=("stem", "up", "down")), False),
    "last layer": (LastLayer(), False),
    "last block": (LastLayer(layers=("blocks.1", "blocks.1.*", "head")), True),
}


@pytest.mark.parametrize("name", CASES)
def test_program_is_vmap_is_loop_where_convolutions_are_frozen(name: str) -> None:
    net, params, x = case(CASES[name][0])
    program = build(net, x)
    each = torch.stack([x, x.flip(0), 2 * x])
    for ours, theirs, given in ((program, forward, x), (program.each, forward_each, each)):
        got = results(lambda p, run=ours, x=given: run(p, x), params)  # type: ignore[misc]
        for engine in ("vmap", "loop"):
            run: Callable[..., Tensor] = theirs
            expected = results(lambda p, e=engine, r=run, x=given: r(net, p, x, engine=e), params)  # type: ignore[misc]
            assert_same(got, expected)


@pytest.mark.parametrize("name", CASES)
def test_only_convolutions_with_weights_of_each_members_own_ask_for_streams(name: str) -> None:
    """A frozen one with groups, or a large one, is one launch for all members."""
    method, own_groups = CASES[name]
    net, _, x = case(method)
    program = build(net, x)
    assert program.grouped == own_groups
    # at 4 x 4 positions: the adapter's A of the stem (3 x 3, 2 channels) is the largest of lora
    largest = {"lora": 2 * 2 * 16 * 2 * 9, "last layer": 0, "last block": 2 * 8 * 16 * 9}[name]
    assert program.own_convolution <= largest
    assert (program.own_convolution > 0) == (largest > 0)
    few = int(STREAMS_FROM / program.mean_convolution) + 1  # enough of any weights
    assert members_apart(program, few, on_gpu=True) == own_groups
    assert members_apart(program, 10**9, on_gpu=True) == (name != "last layer")
    assert members_apart(program, 10**9, on_gpu=False)


def test_a_frozen_convolution_is_one_launch_for_all_members() -> None:
    net, _, x = case(CASES["lora"][0])
    nodes = list(build(net, x)._graphs[0].own.graph.nodes)
    folded = [n.args[0] for n in nodes if n.target is operators.with_batch]
    assert folded.count(torch.ops.aten.conv2d.default) == 1 + 2 * 3  # the stem, two blocks
    grouped = [n.args[4] for n in nodes if n.target is operators.convolve]
    assert len(grouped) <= 1  # A of the stem; those of single positions are products


@pytest.mark.parametrize(("layer", "batch_first"), [(nn.LSTM, True), (nn.GRU, False)])
def test_a_frozen_recurrent_layer_runs_all_members_at_once(layer: Any, batch_first: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(3, 4)
            self.layer = layer(4, 5, bidirectional=True, batch_first=batch_first)
            self.head = nn.Linear(10, 2)

        def forward(self, x: Tensor) -> Tensor:  # [B, T, 3]
            inside = self.into(x)
            if batch_first:
                return self.head(self.layer(inside)[0].mean(1))
            return self.head(self.layer(inside.transpose(0, 1))[0].mean(0))

    torch.manual_seed(0)
    net = Net().double()
    net.layer.requires_grad_(False)
    x = torch.randn(B, 3, 3, dtype=torch.float64)
    program = build(net, x)
    assert not program.own_recurrent
    assert not members_apart(program, 10**9, on_gpu=True)
    targets = [n.target for n in program._graphs[0].shared.graph.nodes]
    assert operators.recur_with_batch in targets
    assert operators.loop_members not in targets
    params = {name: torch.randn(M, *p.shape).double() for name, p in trainable(net).items()}
    expected = results(lambda p: forward(net, p, x, engine="loop"), params)
    assert_same(results(lambda p: program(p, x), params), expected)
    if batch_first:
        assert build(net.requires_grad_(True), x).own_recurrent
