"""Plain networks against their formulas."""

import pytest
import torch
from torch import nn

from stochens import FRN, MLP


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
                assert float(got) == pytest.approx(float(max(scaled, frn.tau[c])), rel=1e-12)


def test_frn_needs_positions_and_starts_as_its_authors_say():
    frn = FRN(2)
    assert frn.weight.tolist() == [1, 1]
    assert frn.bias.tolist() == frn.tau.tolist() == [0, 0]
    with pytest.raises(ValueError, match="use LayerNorm"):
        frn(torch.zeros(3, 2))


def test_frn_statistics_are_float32_in_bf16():
    x = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)  # a bf16 sum would stop at 256
    torch.testing.assert_close(FRN(1).bfloat16()(x), x)
