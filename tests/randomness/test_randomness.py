"""Seeds that depend only on what they are for."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from stochens.randomness.seeds import derive, member_seed, permutations, seeded

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.lists(st.integers(0, 2**31), max_size=3))
def test_derived_seeds_are_in_range_and_tell_purposes_apart(seed, purpose):
    value = derive(seed, *purpose)
    assert 0 <= value < 2**63
    assert value == derive(seed, *purpose)
    assert value != derive(seed, *purpose, 0)


@given(seeds, st.integers(1, 50), st.integers(0, 20))
def test_permutations_are_permutations_of_their_own(seed, n, epoch):
    both = permutations(n, seed=seed, members=[3, 9], epoch=epoch)
    assert torch.equal(both.sort(1).values, torch.arange(n).expand(2, n))
    assert torch.equal(permutations(n, seed=seed, members=[9], epoch=epoch)[0], both[1])


def test_numpys_integers_are_integers():
    for seed in (3, -1, 2**63 - 1):
        assert derive(np.int64(seed), np.int64(2)) == derive(seed, 2)


def test_members_never_share_a_seed():
    """torch's CPU generator keeps 32 bits, so that a hash would let members collide."""
    low = {member_seed(0, member, 1) & 0xFFFFFFFF for member in range(20_000)}
    assert len(low) == 20_000


def test_orders_are_uniform():
    """Every place of every value, over 4000 members: counts within 5 standard deviations."""
    orders = permutations(5, seed=0, members=range(4000), epoch=0)
    for place in range(5):
        counts = orders[:, place].bincount(minlength=5).float()
        assert float((counts - 800).abs().max()) < 5 * (4000 * 0.2 * 0.8) ** 0.5


def test_seeded_leaves_the_caller_alone():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with seeded(7):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(7):
        assert torch.equal(torch.rand(2), inside)
