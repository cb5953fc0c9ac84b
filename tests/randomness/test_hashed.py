"""Hashed random numbers against splitmix64 in Python's integers, and against their distribution."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.samplers import density
from tests.tolerance import close

from stochens.randomness import hashed

any_key = st.integers(0, 2**63 - 1)
ALARM = 1e-6  # the chance that a right generator fails one of the tests below; the seeds are fixed


def one(value: int) -> torch.Tensor:
    return torch.tensor([value])


@given(z=st.integers(-(2**63), 2**63 - 1))
def test_mix_is_that_of_splitmix64(z):
    assert int(hashed.mix(one(z))) % 2**64 == density.mix(z % 2**64)


def test_splitmix64_by_its_published_numbers():
    """The first outputs for seed 1234567, of the authors' C code (prng.di.unimi.it/splitmix64.c, as
    listed at rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64)."""
    golden = 0x9E3779B97F4A7C15
    got = [density.mix((1234567 + k * golden) % 2**64) for k in range(1, 4)]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(
    key=any_key,
    transition=st.integers(-1, 2**40),
    purpose=st.integers(0, hashed.PURPOSES - 1),
    index=st.integers(0, 2**40),
)
def test_uniform_to_the_bit(key, transition, purpose, index):
    got = hashed.uniform(one(key), one(transition), purpose, one(index))
    assert got.dtype == torch.float64
    assert float(got) == density.uniform(key, transition, purpose, index)


@given(key=any_key, transition=st.integers(-1, 2**40), count=st.integers(1, 9))
def test_normal_is_box_muller(key, transition, count):
    got = hashed.normal(one(key), one(transition), hashed.MOMENTUM, count)
    want = density.normal(key, transition, hashed.MOMENTUM, count)
    # sqrt, log, cos and a product; cos(2 pi u) has the absolute error of 2 pi u; at most 8.5
    within = close(torch.float64, depth=4, condition=2 * math.pi, scale=8.5)
    torch.testing.assert_close(got[0], torch.tensor(want, dtype=torch.float64), **within)


@pytest.mark.parametrize("at_once", [1, 10, 35, 36, 1000])
def test_numbers_are_the_same_however_many_are_made_at_once(monkeypatch, at_once):
    key, transition = torch.tensor([5, 2**62, 77]), torch.tensor([0, 12, 3])
    whole = hashed.normal(key, transition, hashed.MOMENTUM, 12)
    monkeypatch.setattr(hashed, "IN_CACHE", at_once)
    assert torch.equal(hashed.normal(key, transition, hashed.MOMENTUM, 12), whole)


def test_every_chain_has_its_own_key_and_transition():
    """A row depends on its key and its transition alone, not on the other rows."""
    key, transition = torch.tensor([5, 2**62, 77]), torch.tensor([0, 12, 3])
    all_three = hashed.normal(key, transition, 1, 7)
    assert all_three.shape == (3, 7)
    for k in range(3):
        alone = hashed.normal(key[k : k + 1], transition[k : k + 1], 1, 7)
        assert torch.equal(alone[0], all_three[k])
    shape = hashed.uniform(key[:, None], transition[:, None], 0, torch.arange(4)).shape
    assert shape == (3, 4)


def _index_of_the_bits(wanted: int, key: int) -> int:
    """The index at which the 64 bits are `wanted`: splitmix64 is one to one."""

    def unshift(z, by):
        out = z
        for _ in range(64 // by + 1):
            out = z ^ (out >> by)
        return out

    z = unshift(wanted, 31)
    z = unshift(z * pow(0x94D049BB133111EB, -1, 2**64) % 2**64, 27)
    z = unshift(z * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64, 30)
    golden = 0x9E3779B97F4A7C15
    stream = density.mix((key + golden) % 2**64)
    index = (z * pow(golden, -1, 2**64) - stream - 1) % 2**64
    return index - 2**64 if index >= 2**63 else index


@pytest.mark.parametrize("wanted", [0, 2**11, 2**63, 2**64 - 2**12, 2**64 - 1])
def test_never_0_and_never_1(wanted):
    """log(u) and log(1 - u) are finite for every u there is; the largest is all ones."""
    index = _index_of_the_bits(wanted, 9)
    assert density.bits(9, 0, 0, index % 2**64) == wanted
    u = float(hashed.uniform(one(9), one(0), 0, one(index)))
    assert 0 < u < 1


N = 200_000


def _streams():
    """Numbers that follow each other in each of the four ways there are."""
    zero, count = torch.tensor([0]), torch.arange(N)
    key = torch.tensor([123456789])
    purposes = [hashed.uniform(key, torch.arange(N // 8), p, zero) for p in range(8)]
    return {
        "index": hashed.uniform(key, zero, hashed.LEAF, count),
        "transition": hashed.uniform(key, count, hashed.DIRECTION, zero),
        "key": hashed.uniform(count, zero, hashed.LEAF, zero),
        "derived key": hashed.uniform(density.keys(20_000), zero, hashed.LEAF, zero),
        "purpose": torch.stack(purposes, 1).flatten(),
    }


def test_uniform_by_its_distribution():
    for name, u in _streams().items():
        n = len(u)
        assert stats.kstest(u.numpy(), "uniform").pvalue > ALARM, name
        # 256 equal bins of the first and of the last 8 of 32 bits
        for shifted in (u * 256, (u * 2**32) % 256):
            observed = shifted.long().bincount(minlength=256)
            assert stats.chisquare(observed.numpy()).pvalue > ALARM, name
        # neighbours and next but one: the correlation has standard error n^-1/2
        for lag in (1, 2, 8):
            r = torch.corrcoef(torch.stack([u[:-lag], u[lag:]]))[0, 1]
            assert abs(float(r)) < 5 / math.sqrt(n), name


def test_purposes_transitions_and_keys_are_independent():
    """Pairs of whole streams, each way of differing by one."""
    index = torch.arange(50_000)
    streams = {
        (k, t, p): hashed.uniform(torch.tensor([k]), torch.tensor([t]), p, index)
        for k, t, p in itertools.product((7, 8), (0, 1), range(5))
    }
    table = torch.corrcoef(torch.stack(list(streams.values()))).fill_diagonal_(0)
    # 190 correlations of standard error 50000^-1/2; one in 1e4 tables has one beyond 5
    assert float(table.abs().max()) < 5 / math.sqrt(50_000)
    values = torch.cat(list(streams.values()))
    assert len(values.unique()) == len(values)  # a million of 2^52: no overlap


def test_normal_by_its_distribution():
    z = hashed.normal(density.keys(500), torch.full((500,), 3), hashed.MOMENTUM, 400)  # [500, 400]
    flat = z.flatten()
    n = len(flat)
    assert stats.kstest(flat.numpy(), "norm").pvalue > ALARM
    # moments 1, 2, 3, 4 of N(0, 1) are 0, 1, 0, 3, with variances 1, 2, 15, 96; five errors
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = math.sqrt(variance / n)
        assert abs(float(flat.pow(power).mean()) - mean) < 5 * error
    # between parameters and between chains: n^-1/2 again, over some 80,000 and 125,000 pairs
    for rows in (z, z.T):
        table = torch.corrcoef(rows).fill_diagonal_(0)
        assert float(table.abs().max()) < 6 / math.sqrt(rows.shape[1])
    # Box-Muller: the radius of i and the angle of i make one number, none is shared with i + 1
    squares = torch.corrcoef(z.T.square()).fill_diagonal_(0)
    assert float(squares.abs().max()) < 8 / math.sqrt(500)  # squares have heavier tails


def test_a_direction_is_a_fair_coin():
    from stochens.samplers.trajectory import direction

    key = density.keys(1).expand(20_000)
    coin = direction(key, torch.arange(20_000), torch.zeros(20_000, dtype=torch.long))
    assert coin.unique().tolist() == [0, 1]
    assert abs(float(coin.double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(20_000)
