"""Shifted digits are what their names say."""

import pytest
import torch

from stochens import InputError
from stochens_lab.data.digits import add_noise, read_digits, rotate


def images(count: int = 20) -> torch.Tensor:
    return read_digits().x_test[:count]


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3, 4])
def test_quarter_turns_are_exact(quarters):
    turned = rotate(images(), degrees=90 * quarters)
    # float32 cosines move a pixel's place by 1e-7 of the image
    torch.testing.assert_close(turned, torch.rot90(images(), quarters, (2, 3)), atol=1e-5, rtol=0)


def test_a_small_turn_by_a_loop():
    x, a = images(1).double(), torch.tensor(30.0).double().deg2rad()
    turned = rotate(x, degrees=30.0)

    def pixel(row: int, column: int) -> float:
        return float(x[0, 0, row, column]) if 0 <= row < 8 and 0 <= column < 8 else 0.0

    for row in range(8):
        for column in range(8):
            u, v = column - 3.5, row - 3.5  # from the centre
            at_column, at_row = (
                float(t) + 3.5 for t in (a.cos() * u - a.sin() * v, a.sin() * u + a.cos() * v)
            )
            left, top = int(at_column // 1), int(at_row // 1)
            right_share, low_share = at_column - left, at_row - top
            expected = sum(
                pixel(top + i, left + j)
                * (low_share if i else 1 - low_share)
                * (right_share if j else 1 - right_share)
                for i in (0, 1)
                for j in (0, 1)
            )
            assert float(turned[0, 0, row, column]) == pytest.approx(expected, abs=1e-12)


def test_only_square_images_can_be_turned():
    with pytest.raises(InputError, match=r"square images \[B, C, H, H\], got \(2, 1, 8, 6\)"):
        rotate(torch.zeros(2, 1, 8, 6), degrees=30)


def test_noise_has_its_standard_deviation_and_its_seed():
    x = read_digits().x_test  # 34,560 pixels
    z = add_noise(x, sd=0.3, seed=1) - x
    assert float(z.std()) == pytest.approx(0.3, rel=0.02)  # five standard errors
    assert abs(float(z.mean())) < 5 * 0.3 / z.numel() ** 0.5
    assert torch.equal(add_noise(x, sd=0.3, seed=1), add_noise(x, sd=0.3, seed=1))
    assert not torch.equal(add_noise(x, sd=0.3, seed=1), add_noise(x, sd=0.3, seed=2))
    assert torch.equal(add_noise(x, sd=0.0), x)
