"""bfloat16 is taken where its three digits are enough, and not elsewhere."""

import pytest
import torch
from torch import Tensor, nn

import stochens
from stochens.likelihoods import Categorical, Heteroscedastic, Homoscedastic
from stochens.methods import stochastic
from stochens.program.precision import LOST_AT_MOST, auto_dtype, lost_by_rounding


def net(method: str = "regular") -> nn.Module:
    torch.manual_seed(0)
    return stochastic(stochens.MLP(8, 50, 50, 2), method)


X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", ["regular", "dropout", "np-dropout", "gaussian"])
def test_standardised_inputs_stay_apart(method: str) -> None:
    assert lost_by_rounding(net(method), X) < 0.1  # 2^-9 for each of some ten roundings


@pytest.mark.parametrize("x", [X + 1e3, X + 1e4, 1e-3 * X, X[:1].expand(16, 8)])
def test_inputs_that_differ_in_later_digits_do_not(x: Tensor) -> None:
    assert lost_by_rounding(net(), x) > LOST_AT_MOST


def test_it_is_what_the_numbers_say() -> None:
    one = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        one.weight.fill_(1.0)
    x = torch.tensor([[1.0], [1.0 + 2**-9], [2.0]])  # the second is 1 in bfloat16
    off, spread = 2.0**-9, (x - x.mean()).double().norm()
    assert lost_by_rounding(one, x) == pytest.approx(float(off / spread), rel=1e-6)


def test_what_has_no_bfloat16_stays_in_float32() -> None:
    class Frequencies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(self.layer(x)).real

    assert lost_by_rounding(Frequencies(), X) == float("inf")


def test_the_network_is_left_as_it_was() -> None:
    own = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = {name: p.clone() for name, p in own.state_dict().items()}
    state = torch.get_rng_state()
    lost_by_rounding(own, X)
    assert own.training
    assert torch.equal(torch.get_rng_state(), state)
    for name, p in own.state_dict().items():
        assert p.dtype == torch.float32
        assert torch.equal(p, before[name])


def test_regressions_keep_their_digits() -> None:
    assert Categorical.coarse
    assert not any(kind.coarse for kind in (Homoscedastic, Heteroscedastic))
    assert auto_dtype(net(), X, coarse=True) is None  # on a CPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu() -> None:
    own, x = net().cuda(), X.cuda()
    assert auto_dtype(own, x, coarse=True) is torch.bfloat16
    assert auto_dtype(own, x, coarse=False) is None
    assert auto_dtype(own, x + 1e4, coarse=True) is None
    assert auto_dtype(own.double(), x.double(), coarse=True) is None
