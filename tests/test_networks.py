"""Plain networks against their formulas."""

import math
from typing import Any

import pytest
import torch
from tests.tolerance import close, rounding
from torch import nn

from stochens import FRN, MLP, InputError, fit
from stochens.members import builder, init
from stochens.networks import (
    Periodic,
    PiecewiseLinear,
    ResidualBlock,
    ResNet20FRN,
    SmallResNetFRN,
)


def test_mlp_is_its_layers():
    net = MLP(3, 5, 2, activation=nn.Tanh)
    x = torch.randn(4, 3)
    torch.testing.assert_close(net(x), net[2](net[0](x).tanh()))
    with pytest.raises(ValueError, match="at least an input and an output size"):
        MLP(3)


@pytest.mark.parametrize("positions", [(5,), (4, 3), (2, 3, 2)])
def test_frn_by_a_loop(float64, positions):
    frn = FRN(3)
    for p in frn.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 3, *positions)
    frn.requires_grad_(False)
    y = frn(x)
    for b in range(2):
        for c in range(3):
            nu = sum(float(v) ** 2 for v in x[b, c].flatten()) / x[b, c].numel()
            for got, v in zip(y[b, c].flatten(), x[b, c].flatten(), strict=True):
                scaled = frn.weight[c] * v / (nu + 1e-6) ** 0.5 + frn.bias[c]
                # a mean of at most 12 squares, a root, a quotient; scaled and bias may cancel
                within = rounding(torch.float64, terms=12, depth=3, condition=10.0)
                expected = float(max(scaled, frn.tau[c]))
                assert float(got) == pytest.approx(expected, rel=within, abs=within)


def test_frn_needs_positions_and_starts_as_its_authors_say():
    frn = FRN(2)
    assert frn.weight.tolist() == [1, 1]
    assert frn.bias.tolist() == frn.tau.tolist() == [0, 0]
    with pytest.raises(ValueError, match="use LayerNorm"):
        frn(torch.zeros(3, 2))


def test_frn_statistics_are_float32_in_bf16():
    x = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)  # a bf16 sum would stop at 256
    torch.testing.assert_close(FRN(1).bfloat16()(x), x)


def test_the_small_resnet_by_a_loop(float64):
    net = SmallResNetFRN(channels=3, blocks=2, inputs=2, classes=4)
    for p in net.parameters():
        nn.init.normal_(p)
    net.requires_grad_(False)
    x = torch.randn(2, 2, 8, 8)
    for image, logits in zip(x, net(x), strict=True):
        h = _frn_silu(net.norm, _convolved(net.conv, image, stride=2))  # [3, 4, 4]
        assert h.shape == (3, 4, 4)
        for block in net.blocks:
            inner = _frn_silu(block.norm1, _convolved(block.conv1, h))
            h = h + _frn(block.norm2, _convolved(block.conv2, inner))
            h = h * h.sigmoid()
        for k in range(4):
            expected = net.head.weight[k] @ h.mean((1, 2)) + net.head.bias[k]
            # 12 layers, of at most 27 terms
            within = rounding(torch.float64, terms=27, depth=12, condition=100.0)
            assert float(logits[k]) == pytest.approx(float(expected), rel=within, abs=within)


def _convolved(conv: nn.Conv2d, image: torch.Tensor, stride: int = 1) -> torch.Tensor:
    _, height, width = image.shape
    padded = torch.zeros(len(image), height + 2, width + 2)
    padded[:, 1:-1, 1:-1] = image
    out = torch.empty(len(conv.weight), height // stride, width // stride)
    for c, (w, b) in enumerate(zip(conv.weight, conv.bias, strict=True)):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                top, left = stride * i, stride * j
                out[c, i, j] = (w * padded[:, top : top + 3, left : left + 3]).sum() + b
    return out


def _frn(norm: FRN, h: torch.Tensor) -> torch.Tensor:
    rows = []
    for c, plane in enumerate(h):
        scaled = norm.weight[c] * plane / (plane.square().mean() + 1e-6).sqrt() + norm.bias[c]
        rows.append(scaled.clamp_min(float(norm.tau[c])))
    return torch.stack(rows)


def _frn_silu(norm: FRN, h: torch.Tensor) -> torch.Tensor:
    h = _frn(norm, h)
    return h * h.sigmoid()


@pytest.mark.parametrize(("channels", "blocks"), [(4, 0), (6, 1), (8, 2)])
def test_the_small_resnet_has_this_many_parameters(channels, blocks):
    net = SmallResNetFRN(channels=channels, blocks=blocks)
    c = channels
    stem, block, head = 9 * c + c + 3 * c, 2 * (9 * c * c + c + 3 * c), 10 * c + 10
    assert sum(p.numel() for p in net.parameters()) == stem + blocks * block + head
    x = torch.rand(5, 1, 8, 8)
    assert net(x).shape == (5, 10)
    assert torch.equal(net(x), net(x))  # deterministic, in train mode too


@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect", "np-dropout", "gaussian"])
def test_every_method_goes_on_the_small_resnet(method):
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    net = SmallResNetFRN(channels=2, classes=3)
    posterior = fit(net, (x, y), method=method, members=2, epochs=1, progress=False)
    assert posterior.predict(x).probs.shape == (2, 6, 3)


# -- ResNet-20-FRN --------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "parameters"), [(10, 274_042), (100, 279_892)])
def test_resnet20_has_the_size_of_the_paper(classes, parameters):
    net = ResNet20FRN(classes)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, classes)


def test_resnet20_has_three_stages():
    net, shapes = ResNet20FRN(), []
    for block in net.blocks:
        block.register_forward_hook(lambda *io: shapes.append(tuple(io[2].shape[1:])))
    net(torch.randn(1, 3, 32, 32))
    assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def test_resnet20_starts_from_kaimings_normal():
    torch.manual_seed(0)
    net: Any = ResNet20FRN()
    for weight in (net.blocks[8].conv2.weight, net.blocks[3].conv_short.weight):
        sd = (2 / weight[0].numel()) ** 0.5
        # a sample's standard deviation is off by 1 / sqrt(2 n)
        assert abs(float(weight.detach().std()) / sd - 1) < 5 / (2 * weight.numel()) ** 0.5
    first, second = init(builder(net), members=range(2), seed=0)["blocks.0.conv1.weight"]
    assert not torch.equal(first, second)
    assert abs(float(first.std()) / (2 / 144) ** 0.5 - 1) < 5 / (2 * first.numel()) ** 0.5


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_that_changes_the_shape_by_a_loop(float64, stride):
    block: Any = ResidualBlock(2, 3, stride=stride)
    for p in block.parameters():
        nn.init.normal_(p)
    block.requires_grad_(False)
    x = torch.randn(2, 2, 6, 6)
    for image, y in zip(x, block(x), strict=True):
        inner = _frn_silu(block.norm1, _convolved(block.conv1, image, stride=stride))
        corners = image[:, ::stride, ::stride]
        short = torch.einsum("oc,chw->ohw", block.conv_short.weight[:, :, 0, 0], corners)
        short = _frn(block.norm_short, short + block.conv_short.bias[:, None, None])
        h = short + _frn(block.norm2, _convolved(block.conv2, inner))
        within = close(torch.float64, terms=27, depth=6, condition=100.0)
        torch.testing.assert_close(y, h * h.sigmoid(), **within)


def test_frn_gives_the_gradient_of_a_tie_to_tau():
    """As the kernels do; a dropped element is a tie where FRN starts, with beta = tau."""
    frn = FRN(1)
    frn(torch.zeros(1, 1, 4)).sum().backward()
    assert frn.bias.grad.tolist() == [0]
    assert frn.tau.grad.tolist() == [4]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_bins_add_up_to_the_number_itself(float64, scale):
    """sum_k width_k e_k(x) = x - edge_0, whatever the bins are, also far beyond them."""
    learned = scale * torch.randn(200, 3)
    learned[:, 1] = learned[:, 1].round()  # few values, and one where the scale is small
    embed = PiecewiseLinear.of(learned, bins=6).double()
    x = torch.cat([learned, 10 * learned])
    found = embed(x) * embed.width  # [B, bins]
    whole = torch.zeros(len(x), 3).index_add(1, embed.feature, found)
    first = torch.stack([embed.edge[embed.feature == k][0] for k in range(3)])
    # as many terms as bins, and x near an edge cancels
    within = rounding(torch.float64, terms=6, depth=3, condition=100.0)
    torch.testing.assert_close(whole, x - first, rtol=within, atol=within * scale)


def test_bins_are_those_of_the_equation():
    """One below the first edge, one in a bin, one beyond the last; edges are quantiles."""
    embed = PiecewiseLinear([[0.0, 2.0, 3.0, 5.0]])
    found = embed(torch.tensor([[-2.0], [2.5], [9.0]]))
    assert found.tolist() == [[-1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [1.0, 1.0, 3.0]]
    ties = torch.tensor([0.0, 0, 0, 0, 1, 2, 3, 4])[:, None]
    assert PiecewiseLinear.of(ties, bins=4).edge.tolist() == [0.0, 0.5, 2.25]
    for still in (0.5, 3.0, -1e20):  # a feature that never changes
        once = torch.full((5, 1), still)
        assert not PiecewiseLinear.of(once)(once).any()


def test_waves_are_those_of_the_equation(float64):
    embed, x = Periodic(2, waves=3, scale=2.0).requires_grad_(False), torch.randn(4, 2)
    found = embed(x)
    assert found.shape == (4, 12)
    for b in range(4):
        for f in range(2):
            for k in range(3):
                angle = 2 * math.pi * float(embed.frequency[f, k]) * float(x[b, f])
                at = f * 3 + k
                # of angles up to some hundred, in float64
                assert float(found[b, at]) == pytest.approx(math.cos(angle), abs=1e-12)
                assert float(found[b, 6 + at]) == pytest.approx(math.sin(angle), abs=1e-12)


@pytest.mark.filterwarnings("ignore:dropout gives no noise to 0.frequency")
@pytest.mark.parametrize("method", ["regular", "dropout"])
def test_embedded_numbers_are_trained_like_others(method):
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    y = (6 * x[:, :1]).sin()
    bins = PiecewiseLinear.of(x, bins=4)
    for embed, width in ((bins, bins.bins), (Periodic(2, waves=3), 12)):
        net = nn.Sequential(embed, MLP(width, 8, 2))
        options = {"members": 2, "epochs": 20, "likelihood": "heteroscedastic", "lr": 0.01}
        posterior: Any = fit(net, (x, y), method=method, **options)
        assert bool((posterior.history.nll[-1] < posterior.history.nll[0]).all())
    with pytest.raises(ValueError, match="ascending numbers"):
        PiecewiseLinear([[1.0, 1.0]])
    with pytest.raises(InputError, match=r"x must be \[B, 2\]"):
        bins(torch.zeros(3, 4))
    with pytest.raises(InputError, match="scale must be positive"):
        Periodic(2, scale=0)
