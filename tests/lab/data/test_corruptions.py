"""What holds for every corruption."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from stochens import InputError
from stochens_lab.data.corruptions import CORRUPTIONS, apply, corrupt
from stochens_lab.data.corruptions.draws import image_keys, normal, uniform
from stochens_lab.data.corruptions.published import PUBLISHED

EVERY = pytest.mark.parametrize("name", CORRUPTIONS)
WITHOUT_CHANCE = {
    "zoom_blur",
    "defocus_blur",
    "gaussian_blur",
    "saturate",
    "brightness",
    "contrast",
    "pixelate",
}
PAPERS = (  # Table 3 of the paper, in its order
    "fog zoom_blur speckle_noise glass_blur spatter shot_noise defocus_blur elastic_transform "
    "gaussian_blur frost saturate brightness gaussian_noise contrast impulse_noise pixelate"
)


def photographs(count: int = 6) -> Tensor:
    """uint8 [count, 3, 32, 32], every sixth pixel of scikit-learn's photographs."""
    photos = load_sample_images().images
    corners = [(37 * k % 230, 61 * k % 440) for k in range(count)]
    pieces = [
        photos[k % 2][top : top + 192 : 6, left : left + 192 : 6]
        for k, (top, left) in enumerate(corners)
    ]
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


def test_the_papers_corruptions():
    assert " ".join(CORRUPTIONS) == PAPERS
    assert list(apply.FUNCTIONS) == list(CORRUPTIONS)
    assert all(len(rows) == 5 for rows in PUBLISHED.values())


@EVERY
def test_bytes_to_bytes(name):
    x = photographs()
    before = x.clone()
    for intensity in range(1, 6):
        y = corrupt(x, name, intensity)
        assert y.dtype == torch.uint8
        assert y.shape == x.shape
        assert not y.equal(x)
        assert x.equal(before)
    assert corrupt(x[:0], name, 1).shape == (0, 3, 32, 32)


@EVERY
def test_an_image_depends_on_its_place_alone(name, monkeypatch):
    x = photographs()
    whole = corrupt(x, name, 3)
    monkeypatch.setitem(apply.CHUNK, "cpu", 4)
    assert corrupt(x, name, 3).equal(whole)
    assert corrupt(x[2:5], name, 3, first=2).equal(whole[2:5])
    assert corrupt(x.flip(0).flip(0), name, 3).equal(whole)  # strides do not matter


@EVERY
def test_seeds(name):
    x = photographs(1).expand(2, -1, -1, -1)
    one, two = corrupt(x, name, 4, seed=1), corrupt(x, name, 4, seed=2)
    assert one.equal(corrupt(x, name, 4, seed=1))
    if name in WITHOUT_CHANCE:
        assert one.equal(two)
        assert one[0].equal(one[1])
    else:
        assert not one.equal(two)
        assert not one[0].equal(one[1])  # two images do not share their numbers


@EVERY
def test_more_intensity_is_farther_from_the_image(name):
    x = photographs(24)
    apart = [
        (corrupt(x, name, i).double() - x.double()).square().mean().item() for i in range(1, 6)
    ]
    assert apart[0] > 0
    # The published rows of these are no ladder: saturate first takes colour away and then adds it,
    # elastic trades the affine part for displacement, glass blur goes back in sigma, spatter turns
    # from water to mud, and frost adds light at first and dims the image later.
    if name not in {"saturate", "elastic_transform", "glass_blur", "spatter", "frost"}:
        assert apart == sorted(apart)
    assert max(apart) < 255**2 / 4


@EVERY
def test_black_and_white_images_do_not_break(name):
    flat = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 32, 32)
    y = corrupt(flat, name, 5)
    if name in WITHOUT_CHANCE - {"brightness", "saturate"} | {"elastic_transform", "glass_blur"}:
        assert y.equal(flat)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(1, 3, 32, 32), "fog", 1), r"uint8 \[N, 3, 32, 32\], got float32 \(1, 3, 32"),
        ((torch.zeros(1, 32, 32, 3).byte(), "fog", 1), r"got uint8 \(1, 32, 32, 3\)"),
        ((torch.zeros(3, 32, 32).byte(), "fog", 1), r"got uint8 \(3, 32, 32\)"),
        ((torch.zeros(1, 3, 32, 32).byte(), "fogg", 1), r"'fogg'; did you mean 'fog'\?"),
        ((torch.zeros(1, 3, 32, 32).byte(), "rain", 1), r"'rain'; there are fog, zoom_blur"),
        ((torch.zeros(1, 3, 32, 32).byte(), "fog", 0), "intensity must be 1, 2, 3, 4 or 5, got 0"),
        ((torch.zeros(1, 3, 32, 32).byte(), "fog", 6), "got 6"),
        ((torch.zeros(1, 3, 32, 32).byte(), "fog", 2.5), "got 2.5"),
        ((torch.zeros(1, 3, 32, 32).byte(), "fog", True), "got True"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        corrupt(*arguments)


def test_draws_are_uniform_and_normal():
    cpu = torch.device("cpu")
    keys = image_keys(0, 200, seed=0, name="fog", intensity=1, device=cpu)
    other = image_keys(0, 200, seed=0, name="fog", intensity=2, device=cpu)
    u, z = uniform(keys, 3000), normal(keys, 3000)
    n = u.numel()
    # five standard errors each
    assert abs(u.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(z.mean()) < 5 * n**-0.5
    assert abs(z.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((z**4).mean() - 3) < 5 * (96 / n) ** 0.5
    for a, b in ((z[:-1], z[1:]), (z[:, :-1], z[:, 1:]), (z[:, :1500], z[:, 1500:])):
        assert abs((a * b).mean()) < 5 * a.numel() ** -0.5
    assert abs((z * normal(other, 3000)).mean()) < 5 * n**-0.5
    assert uniform(keys, 8, skip=3)[:, :5].equal(uniform(keys, 8)[:, 3:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@EVERY
def test_the_same_on_a_gpu(name):
    x = photographs()
    for intensity in (1, 3, 5):
        ours = corrupt(x.cuda(), name, intensity).cpu()
        apart = (ours.int() - corrupt(x, name, intensity).int()).abs()
        # the two have different logarithms and cosines: a last bit may decide a grey level
        assert apart.max() <= 1
        assert (apart > 0).double().mean() < 1e-3
