"""Which parameters belong to which node, against explicit loops and against what they move."""

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stochens.methods.nodes import by_node, count, groups, spread
from stochens.networks import FRN

M = 2
properties = settings(max_examples=40, deadline=None)  # a busy machine is no failure

CONVOLUTIONS = [
    getattr(nn, f"Conv{transpose}{d}d")(4, 6, 2, groups=g, stride=2, bias=bias)
    for transpose in ("", "Transpose")
    for d in (1, 2, 3)
    for g, bias in ((1, True), (2, True), (2, False))
]
# layers whose nodes are the channels of their outputs, at axis 1 or (the rest) at the last axis
LAYERS = [
    *CONVOLUTIONS,
    nn.Linear(3, 5),
    nn.Linear(3, 5, bias=False),
    nn.Embedding(7, 4),
    nn.LayerNorm(4),
    nn.LayerNorm(4, bias=False),
    nn.RMSNorm(4),
    nn.GroupNorm(2, 4),
    FRN(4),
]
OTHERS = [
    nn.MultiheadAttention(4, 2),
    nn.MultiheadAttention(4, 2, bias=False),
    nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
    nn.RNN(3, 4),
    nn.GRU(3, 4, num_layers=2, bidirectional=True),
    nn.LSTM(3, 4, num_layers=2, proj_size=2, bidirectional=True),
    nn.LSTM(3, 4, bias=False),
]
CHANNEL_AT_1 = (nn.modules.conv._ConvNd, nn.GroupNorm, FRN)


def name_of(layer: nn.Module) -> str:
    return str(layer).replace("\n", "")[:60]


def own_nodes(layer: nn.Module, name: str, index: tuple[int, ...]) -> int:
    """The node that one element of a parameter leads into, from the layer's definition."""
    if isinstance(layer, nn.modules.conv._ConvTransposeNd) and name == "weight":
        i, o = index[:2]  # input channel i is in group i // (in / groups), which makes out / groups
        return i // (layer.in_channels // layer.groups) * (layer.out_channels // layer.groups) + o
    if isinstance(layer, nn.Embedding):
        return index[1]
    return index[2] if name in ("bias_k", "bias_v") else index[0]


def loop(layer: nn.Module, values: dict[str, Tensor]) -> list[Tensor]:
    """`by_node`, element by element."""
    blocks = []
    for group in groups(layer):
        nodes: dict[int, list[Tensor]] = {}
        for name in group:
            for index in itertools.product(*map(range, values[name].shape[1:])):
                place: tuple[Any, ...] = (slice(None), *index)
                element = values[name][place]  # [M]
                nodes.setdefault(own_nodes(layer, name, index), []).append(element)
        blocks.append(torch.stack([torch.stack(nodes[n], -1) for n in sorted(nodes)], 1))
    return blocks


def stacked(layer: nn.Module) -> dict[str, Tensor]:
    """Distinct numbers in every place, so that a wrong place shows."""
    start, values = 0, {}
    for name, p in layer.named_parameters():
        values[name] = torch.arange(start, start + M * p.numel()).double().view(M, *p.shape)
        start += M * p.numel()
    return values


def check_blocks(layer: nn.Module) -> None:
    blocks = by_node(layer, stacked(layer))
    for block, expected, group in zip(
        blocks, loop(layer, stacked(layer)), groups(layer), strict=True
    ):
        assert torch.equal(block, expected)  # [M, N, D]
        assert block.shape[:2] == (M, count(layer, group))
    everything = torch.cat([v.flatten() for v in stacked(layer).values()])
    assert torch.equal(torch.cat([b.flatten() for b in blocks]).sort().values, everything)


def check_spread(layer: nn.Module) -> None:
    """Node n's value reaches the elements of node n, and no others."""
    for group in groups(layer):
        per_node = torch.arange(count(layer, group))
        for name, axis in group.items():
            p = layer.get_parameter(name)
            reached = spread(layer, name, axis, per_node).expand(p.shape)
            for index in itertools.product(*map(range, p.shape)):
                assert reached[index] == own_nodes(layer, name, index)


@pytest.mark.parametrize("layer", LAYERS + OTHERS, ids=name_of)
def test_blocks_and_spread_against_loops(layer: nn.Module) -> None:
    check_blocks(layer)
    check_spread(layer)


def check_channels(layer: nn.Module, x: Tensor) -> None:
    """Another value for node n's parameters moves channel n of the outputs, and no other."""
    (group,) = groups(layer)
    axis = 1 if isinstance(layer, CHANNEL_AT_1) else -1
    with torch.no_grad():
        before = layer(x)
        assert before.shape[axis] == count(layer, group)
        for n in range(count(layer, group)):
            moved = copy.deepcopy(layer)
            one_hot = torch.nn.functional.one_hot(torch.tensor(n), count(layer, group))
            for name, where in group.items():
                moved.get_parameter(name).add_(spread(layer, name, where, one_hot.double()))
            changed = (moved(x) != before).movedim(axis, 0).flatten(1).any(1)
            assert changed.nonzero().flatten().tolist() == [n]


@pytest.mark.parametrize("layer", LAYERS, ids=name_of)
def test_a_node_moves_its_own_channel_only(layer: nn.Module) -> None:
    torch.manual_seed(0)
    layer = copy.deepcopy(layer).double()
    shape: Any = (2, 4, *[4] * (len(getattr(layer, "kernel_size", (1,)))))
    if isinstance(layer, nn.Linear):
        shape = (2, 3)
    x = torch.randint(7, (2, 3)) if isinstance(layer, nn.Embedding) else torch.randn(shape).double()
    check_channels(layer, x)


@properties
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_transposed_convolutions_of_every_shape(
    n_groups: int, per_group_in: int, per_group_out: int, kernel: int, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose1d(
        n_groups * per_group_in, n_groups * per_group_out, kernel, groups=n_groups, bias=bias
    ).double()
    check_blocks(layer)
    check_spread(layer)
    check_channels(layer, torch.randn(1, n_groups * per_group_in, 2).double())


@pytest.mark.parametrize("layer", OTHERS[:3], ids=name_of)
def test_the_last_nodes_of_attention_make_its_outputs(layer: nn.Module) -> None:
    torch.manual_seed(0)
    layer = copy.deepcopy(layer)
    x = [torch.randn(3, 2, width) for width in (4, layer.kdim, layer.vdim)]
    last = groups(layer)[-1]
    with torch.no_grad():
        before = layer(*x)[0]
        for n in range(4):
            moved = copy.deepcopy(layer)
            for name in last:
                moved.get_parameter(name)[n] += 1
            assert (moved(*x)[0] != before).flatten(0, 1).any(0).nonzero().flatten().tolist() == [n]


def test_the_nodes_of_a_recurrent_layer_are_its_gates() -> None:
    """After one step from rest, row n of the gates moves hidden unit n modulo their number."""
    torch.manual_seed(0)
    layer, x = nn.LSTM(3, 4), torch.randn(1, 2, 3)
    (group,) = groups(layer)
    assert count(layer, group) == 16
    with torch.no_grad():
        before = layer(x)[0]
        for n in range(16):
            moved = copy.deepcopy(layer)
            for name in group:
                moved.get_parameter(name)[n] += 1
            changed = (moved(x)[0] != before).flatten(0, 1).any(0).nonzero().flatten().tolist()
            # the forget gate, rows 4 to 7, has nothing to forget yet
            assert changed == ([] if 4 <= n < 8 else [n % 4])


def test_groups_of_layers_with_several_kinds_of_nodes() -> None:
    assert groups(nn.MultiheadAttention(4, 2)) == [
        {"in_proj_weight": 0, "in_proj_bias": 0},
        {"out_proj.weight": 0, "out_proj.bias": 0},
    ]
    apart = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True)
    assert [list(group) for group in groups(apart)] == [
        ["q_proj_weight"],
        ["k_proj_weight"],
        ["v_proj_weight"],
        ["in_proj_bias"],
        ["bias_k"],
        ["bias_v"],
        ["out_proj.weight", "out_proj.bias"],
    ]
    two_layers = nn.LSTM(3, 4, num_layers=2, proj_size=2, bidirectional=True)
    assert [len(group) for group in groups(two_layers)] == [4, 1, 4, 1, 4, 1, 4, 1]
    assert [count(two_layers, group) for group in groups(two_layers)] == [
        16,
        2,
        16,
        2,
        16,
        2,
        16,
        2,
    ]


def test_missing_parameters_are_left_out() -> None:
    """Frozen ones are in no member's values; a block holds what is there."""
    layer = nn.Linear(3, 5)
    values = stacked(layer)
    (block,) = by_node(layer, {"bias": values["bias"]})
    assert torch.equal(block, values["bias"].unsqueeze(-1))
    assert by_node(layer, {}) == []
