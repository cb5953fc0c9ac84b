"""The noisiest directions of mini-batches and the friction there: known covariances, and what a
momentum has in the long run."""

import math

import pytest
import torch
from tests.tolerance import close
from torch import Tensor

from stochens.samplers import noisy_directions
from stochens.samplers.batch_noise import kick_variance, unknown
from stochens.samplers.noisy_directions import Noisy, along, spread_out

D, LARGE = 40, torch.tensor([100.0, 50.0, 20.0], dtype=torch.float64)
BETA = 0.9


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Four directions of each chain."""
    monkeypatch.setattr(noisy_directions, "COUNT", 4)
    return 4


def directions() -> Tensor:
    """Orthonormal, [D, D]."""
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]


def differences(chains: int, count: int, seed: int = 0) -> Tensor:
    """[count, chains, D]: variances LARGE along the first directions, 1 along the others."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.cat([LARGE, torch.ones(D - 3, dtype=torch.float64)]).sqrt()
    each = torch.randn(count, chains, D, generator=generator, dtype=torch.float64) * size
    return each @ directions().T


def sketched(chains: int, count: int) -> Noisy:
    noisy = noisy_directions.none(torch.zeros(chains, D).double(), 1 - BETA, wanted=True)
    for looks, half in enumerate(differences(chains, count), 1):
        noisy = noisy_directions.sketched(noisy, half, looks)
    return noisy_directions.found(noisy)


def test_the_largest_directions_are_found_and_their_variances(few: int) -> None:
    """A sample of n has principal directions that are off by an angle of about
    sqrt(variance / n) over a gap of sqrt(D): below a tenth in the square for these."""
    chains, n = 20, 400
    noisy = sketched(chains, 403)  # and three that fill no block
    torch.testing.assert_close(
        noisy.v @ noisy.v.mT, torch.eye(few).double().expand(chains, -1, -1),
        **close(torch.float64, terms=D, depth=2 * few, condition=1e3),
    )  # fmt: skip
    inside = (noisy.v[:, :3] @ directions()[:, :3]).square().sum(2)  # of each, in the true ones
    assert float(inside.min()) > 0.9
    for half in differences(chains, n, seed=1):
        noisy, left = noisy_directions.measured(noisy, half)
        nothing = torch.zeros(chains, few).double()
        size = float(half.abs().max()) * D
        within = close(torch.float64, terms=D, depth=3, condition=1e3, scale=size)
        torch.testing.assert_close(along(noisy, left), nothing, **within)
    found = noisy_directions.averaged(noisy, n).square[:, :3].mean(0)
    error = 5 * math.sqrt(2 / n / chains) + 0.1
    assert float((found / LARGE - 1).abs().max()) < error
    assert noisy_directions.share_of(noisy_directions.averaged(noisy, n), 1.0).shape == (chains,)


def test_fewer_differences_than_directions_leave_the_others_out(few: int) -> None:
    noisy = sketched(3, 2)
    assert [int(v.any(1).sum()) for v in noisy.v] == [2, 2, 2]
    x = torch.randn(3, D).double()
    once = spread_out(noisy, along(noisy, x))
    torch.testing.assert_close(spread_out(noisy, along(noisy, once)), once)


@pytest.mark.parametrize("T", [1.0, 0.5])
def test_the_momentum_has_the_temperature_with_noise_and_friction(few: int, T: float) -> None:
    """E p p' = 2 T (1 + B)^-1, B being beta and along each direction beta_j: in the long run, with
    a force that is nothing but the noise of batches."""
    v = directions().T[:few].expand(4000, -1, -1)
    square = torch.tensor([0.8, 0.3, 0.05, 0.0]).double().expand(4000, -1) * T
    noisy = noisy_directions.rubbed(
        Noisy(v.new_zeros(4000, 0, D), v, square, square, v[:, 0]),
        torch.ones(4000).double(), BETA, T, last=True,
    )  # fmt: skip
    friction = torch.tensor([0.8, 0.3, 1 - BETA, 1 - BETA]).double()
    torch.testing.assert_close(noisy.friction[0], friction)
    key, generator = torch.arange(4000), torch.Generator().manual_seed(0)
    p = torch.zeros(4000, D).double()
    for step in range(60):
        kick = torch.randn(4000, D, generator=generator).double() * math.sqrt(2 * (1 - BETA) * T)
        batch = torch.randn(4000, few, generator=generator).double() * square.sqrt()
        p = noisy_directions.turned(noisy, p, kick, key, step, momentum=BETA, T=T)
        p = p + spread_out(noisy, batch)
    for j, beta in enumerate((1 - friction).tolist()):
        mean = float(along(noisy, p)[:, j].square().mean()) / (2 * T / (1 + beta))
        assert abs(mean - 1) < 5 * math.sqrt(2 / 4000)
    free = noisy_directions.as_if_free(noisy, p, BETA)
    assert abs(float(free.square().mean()) / (2 * T / (1 + BETA)) - 1) < 5 * math.sqrt(2 / 4000 / D)
    assert abs(float(along(noisy, free)[:, 0].square().mean()) * (1 + BETA) / 2 / T - 1) < 0.12


def test_what_is_left_of_the_noise_of_a_coordinate(few: int) -> None:
    v = torch.zeros(1, few, D).double()
    v[0, 0, 0], v[0, 1, 1:3] = 1.0, 0.5**0.5
    square = torch.tensor([[2.0, 3.0, 0.0, 0.0]]).double()
    noisy = noisy_directions.rubbed(
        Noisy(v, v, square, square, v[:, 0]), torch.ones(1).double(), BETA, 1.0, last=True
    )
    seen = unknown(torch.ones(1, D).double())._replace(square=torch.full((1, D), 6.4).double())
    injected = kick_variance(seen, 4, 1.0, 2.0, noisy.held)  # 2 less what is left of 1.6
    assert isinstance(injected, Tensor)
    assert injected[0, :4].tolist() == pytest.approx([2.0, 1.9, 1.9, 0.4])


def test_a_chain_that_is_lost_harms_no_other(few: int) -> None:
    noisy = noisy_directions.none(torch.zeros(2, D).double(), 1 - BETA, wanted=True)
    for looks, half in enumerate(differences(2, 9), 1):
        half[1] = torch.tensor([math.nan, math.inf]).repeat(D // 2)
        noisy = noisy_directions.sketched(noisy, half, looks)
    noisy = noisy_directions.found(noisy)
    assert noisy.v[0].isfinite().all()
    assert noisy.v[0].any(1).all()


def test_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(2, 10)
    assert noisy_directions.none(q, 0.1, wanted=True).v.shape == (2, 10, 10)
    assert noisy_directions.none(q, 0.1, wanted=False).v.shape == (2, 0, 10)
    monkeypatch.setattr(noisy_directions, "NUMBERS", 35)
    assert noisy_directions.none(q, 0.1, wanted=True).rows.shape == (2, 6, 10)


def test_the_products_of_a_gpu_are_the_same() -> None:
    generator = torch.Generator().manual_seed(5)
    v, x = torch.randn(3, 4, D, generator=generator), torch.randn(3, D, 2, generator=generator)
    size = float((v.abs() @ x.abs()).max())
    found = noisy_directions._by_sums(v, x)
    torch.testing.assert_close(found, v @ x, **close(torch.float32, terms=D, scale=size))
