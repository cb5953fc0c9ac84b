"""Each member's own noise: the right law, and the same in any company."""

import math

import pytest
import torch
from tests.kernels import emulated
from tests.running import gather
from tests.tolerance import trained
from torch import nn

import stochens
from stochens.kernels.noise import divisors, launch, source, words
from stochens.members import builder, forward, init
from stochens.methods import stochastic
from stochens.randomness.noise import (
    bernoulli,
    drop,
    hashed_words,
    member_noise,
    normal,
    over_members,
)

IDS = torch.tensor([4, 0, 9])


def drawn(call, members=IDS, seed=7):
    """[M, ...] of a function that draws, for each member."""
    with member_noise(members, torch.tensor([seed])):
        return over_members(lambda p: call(), (0,))(torch.zeros(len(members)))


def test_the_kernel_is_its_plain_twin():
    for seed, draw, shape in ((0, 0, (1,)), (2**62 + 5, 3, (20, 5)), (9, 1, (7, 3))):
        on = (IDS, torch.tensor([seed]), draw, shape)
        assert torch.equal(words(*on), hashed_words(*on))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 1), (1, 0, 3)])
def test_to_divide_drops_what_a_mask_drops(shape, dtype):
    """To the last bit, signs of zeros and what is no number included; and what is drawn next is the
    same."""
    y = torch.randn(3, 5 if shape[1] else 1, *shape[1:2], 3, dtype=dtype)
    y.view(-1)[:4] = torch.tensor([0.0, -0.0, math.inf, math.nan])[: y.numel()]
    for keep in (0.9, 0.5, 1 / 3):
        with torch.no_grad():
            found = [drop_and_more(y, keep, shape, way) for way in (None, divisors)]
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype
            assert one.numpy().tobytes() == other.numpy().tobytes()


def drop_and_more(y, keep, shape, way):
    def call(y):
        return drop(y, keep, shape), normal(y)

    with member_noise(IDS, torch.tensor([7]), words, way):
        return over_members(call, (0,))(y)


def test_gradients_go_through_masks():
    """Where gradients are on, the mask is kept, which is a quarter of the memory."""
    y = torch.ones(3, 40, requires_grad=True)
    with member_noise(IDS, torch.tensor([7]), words, divisors):
        dropped = over_members(lambda y: drop(y, 0.5, (40,)), (0,))(y)
    dropped.sum().backward()
    assert torch.equal(y.grad, dropped.detach())  # 0 or 2
    with torch.no_grad():
        assert torch.equal(drop_and_more(y, 0.5, (40,), divisors)[0], dropped)


@pytest.mark.parametrize("shape", [(1,), (7, 3), (600,), (2, 0)])
def test_so_is_the_one_for_gpus_on_an_emulated_one(shape):
    seed, kernel = torch.tensor([2**62 + 5]), emulated.compiled("noise_words", source())
    out = torch.empty((3, *shape), dtype=torch.int32)
    launch(kernel, IDS, seed, 2, out)
    assert torch.equal(out, hashed_words(IDS, seed, 2, shape))


def test_members_are_the_same_in_any_company_and_differ_from_each_other():
    like = torch.empty(5, 7)
    for call in (lambda: bernoulli(0.3, (5, 7), like), lambda: normal(like)):
        together = drawn(call)
        assert together.shape == (3, 5, 7)
        alone = [drawn(call, IDS[k : k + 1])[0] for k in range(3)]
        assert all(torch.equal(together[k], alone[k]) for k in range(3))
        assert not torch.equal(together[0], together[1])
        assert not torch.equal(together, drawn(call, seed=8))


def test_every_draw_of_a_pass_is_another():
    like = torch.empty(40)
    first, second = drawn(lambda: torch.stack([normal(like), normal(like)])).unbind(1)
    assert not torch.equal(first, second)


def test_the_laws(float64):
    z = drawn(lambda: bernoulli(0.3, (200_000,), torch.empty(0)))  # sd of a mean: 0.001
    torch.testing.assert_close(z.double().mean(1), torch.full((3,), 0.3), atol=0.005, rtol=0)
    assert bool(drawn(lambda: bernoulli(1.0, (1000,), torch.empty(0))).all())
    assert not bool(drawn(lambda: bernoulli(0.0, (1000,), torch.empty(0))).any())
    eps = drawn(lambda: normal(torch.empty(200_000)))  # [3, n]
    powers = torch.stack([(eps**k).mean(1) for k in (1, 2, 3, 4)], 1)
    want = torch.tensor([0.0, 1.0, 0.0, 3.0]).expand(3, 4)
    torch.testing.assert_close(powers, want, atol=0.1, rtol=0)
    covariance = eps @ eps.T / eps.shape[1] - torch.eye(3)
    assert float(covariance.abs().max()) < 0.02


def test_a_loop_draws_what_vmap_does(float64):
    plain = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 2))
    net = stochastic(plain, [stochens.DropConnect(0.3)])
    params, x = init(builder(plain), members=range(3), seed=0), torch.randn(5, 3)
    outputs = []
    for engine in ("vmap", "loop"):
        with member_noise(IDS, torch.tensor([3])):
            outputs.append(forward(net, params, x, engine=engine))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("network", ["fused", "vmap", "loop"])
@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout", "gaussian", "regular"])
def test_members_are_the_same_in_blocks_of_any_size(float64, xor, method, network):
    """In 1, 2 and 4 blocks; where a kernel runs, under vmap and in a loop."""
    data = xor[0].double(), xor[1]
    activation = nn.ReLU() if network == "fused" else nn.GELU()
    net = nn.Sequential(nn.Linear(2, 8), activation, nn.Linear(8, 2))
    options = {"method": method, "members": 4, "epochs": 5, "batch_size": 20, "seed": 1}
    options["engine"] = "auto" if network == "fused" else network
    whole = stochens.fit(net, data, **gather(**options))
    within = trained(torch.float64, steps=15, rows=20)
    for chunk in (2, 1):
        parted = stochens.fit(net, data, **gather(chunk=chunk, **options))
        for name, p in whole.params.items():
            torch.testing.assert_close(parted.params[name], p, **within)
        torch.testing.assert_close(parted.history.loss, whole.history.loss)
