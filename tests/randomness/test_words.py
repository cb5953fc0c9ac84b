"""The random words that all noise is made of: every bit fair, and none like another."""

import torch

from stochens.randomness.noise import hashed_words, normal_numbers


def test_known_words():
    """What kernels/noise.hpp gives, compiled by hand: so that seeds stay what they are."""
    ids, seed = torch.tensor([3, 2**40 + 1]), torch.tensor([-5])
    assert hashed_words(ids, seed, 2, (4,)).tolist() == [
        [-2095370038, 816943484, -1638449099, -1145132539],
        [-1108054859, -1093498326, 874789424, -314780375],
    ]


def test_the_quality_of_words():
    """Each bit and each pair of bits of 2^18 words is a fair coin: of a stream, and of a stream
    against its neighbours in index, member, seed and draw. (2^22 words passed once, too.)"""
    ids, count = torch.arange(4), 1 << 16

    def bits(words):  # [..., 32], each -1 or 1
        return ((words.flatten()[:, None] >> torch.arange(32)) & 1).float() * 2 - 1

    def draw(first=0, seed=0, number=0):
        return hashed_words(ids + first, torch.tensor([seed]), number, (count,))

    words = draw()
    own = bits(words)
    n = own.shape[0]
    within = 5.5 / n**0.5  # the largest of some thousand correlations
    assert float(own.mean(0).abs().max()) < within
    pairs = own.T @ own / n - torch.eye(32)
    assert float(pairs.abs().max()) < within
    others = {
        "next": words.roll(-1, 1),
        "the one after": words.roll(-2, 1),
        "a row of 100 on": words.roll(-100, 1),
        "a power of two on": words.roll(-(1 << 12), 1),
        "member": draw(first=1),
        "seed": draw(seed=1),
        "draw": draw(number=1),
        "high bits of the seed": draw(seed=1 << 40),
    }
    for name, other in others.items():
        across = own.T @ bits(other) / n
        assert float(across.abs().max()) < within, name


def test_words_are_even_and_normal_numbers_are_normal():
    """Chi-square of 2^16 cells of the upper and of the lower half-words; the shares of normal
    numbers in 512 cells of equal chance."""
    words = hashed_words(torch.arange(16), torch.tensor([11]), 4, (1 << 19,))
    for half in (words >> 16 & 0xFFFF, words & 0xFFFF):
        counts = torch.bincount(half.flatten().long(), minlength=1 << 16).double()
        expected = words.numel() / (1 << 16)
        chi2 = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi2 - 65535) < 5 * (2 * 65535) ** 0.5
    eps = normal_numbers(words, torch.float64).flatten()
    cells = torch.special.ndtr(eps).mul(512).long().clamp(0, 511)
    counts = torch.bincount(cells, minlength=512).double()
    expected = eps.numel() / 512
    assert abs(float(((counts - expected) ** 2 / expected).sum()) - 511) < 5 * (2 * 511) ** 0.5
    assert float(eps.abs().max()) < 5.3
