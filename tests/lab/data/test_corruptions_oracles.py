"""Each corruption against the libraries that define it, image by image, on the same random numbers.

Published images are cut off to bytes. Where the library computes in float64 in our order, bytes are
equal; where it computes in float32 or by a Fourier transform, a number that falls on a whole grey
level may fall on either side of it, so bytes differ by one, and seldom.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats
from skimage import color, filters
from sklearn.datasets import load_sample_images
from tests.tolerance import close
from torch import Tensor

from stochens_lab.data.corruptions import CORRUPTIONS, corrupt
from stochens_lab.data.corruptions.blur import zoom_line
from stochens_lab.data.corruptions.colour import hsv_to_rgb, rgb_to_hsv
from stochens_lab.data.corruptions.draws import image_keys, normal, uniform
from stochens_lab.data.corruptions.filters import correlate, disk, gaussian_filter
from stochens_lab.data.corruptions.fog import plasma
from stochens_lab.data.corruptions.frost import EXTENT, TEXTURES, frost_textures
from stochens_lab.data.corruptions.geometry import affine_places, bilinear
from stochens_lab.data.corruptions.outlines import canny, chamfer_distance, equalise
from stochens_lab.data.corruptions.published import PUBLISHED

COUNT = 12
INTENSITIES = pytest.mark.parametrize("intensity", [1, 2, 3, 4, 5])
# blurs, the longest of these sums, have up to 21 * 21 terms below 1, whose weights sum to 1
FLOAT64 = close(torch.float64, terms=441)


def photographs(count: int = COUNT) -> Tensor:
    """uint8 [count, 3, 32, 32]: pieces of scikit-learn's two photographs, flat sky among them."""
    rng = np.random.default_rng(0)
    pieces = []
    for k in range(count):
        photo = Image.fromarray(load_sample_images().images[k % 2])
        left, top = int(rng.integers(500)), int(rng.integers(300))
        pieces.append(np.asarray(photo.crop((left, top, left + 128, top + 128)).resize((32, 32))))
    pieces[0] = np.full((32, 32, 3), 255, np.uint8)
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


def keys(name: str, intensity: int, count: int = COUNT) -> Tensor:
    return image_keys(0, count, seed=0, name=name, intensity=intensity, device=torch.device("cpu"))


def numbers(name: str, intensity: int) -> tuple[float, ...]:
    return PUBLISHED[name][intensity - 1]


def last(x: Tensor) -> np.ndarray:
    """Channels last, as the libraries have them."""
    return x.permute(0, 2, 3, 1).numpy()


def byte(y: np.ndarray) -> np.ndarray:
    return (np.clip(y, 0, 1) * 255).astype(np.uint8)


def compare(name: str, intensity: int, expected: list[np.ndarray], *, share: float = 0.0) -> None:
    """Bytes differ by one at most, and no more than this share of them."""
    ours = last(corrupt(photographs(), name, intensity)).astype(int)
    apart = np.abs(ours - np.stack(expected).astype(int))
    assert apart.max() <= (1 if share else 0)
    assert (apart > 0).mean() <= share


def each(x: Tensor):
    return last(x) / 255.0


@INTENSITIES
@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_normal_noise(name, intensity):
    (sd,) = numbers(name, intensity)
    z = last(normal(keys(name, intensity), 3, 32, 32))
    scale = {"gaussian_noise": 1.0, "speckle_noise": each(photographs())}[name]
    compare(name, intensity, list(byte(each(photographs()) + scale * (sd * z))))


@INTENSITIES
def test_shot_noise_is_poisson(intensity):
    (photons,) = numbers("shot_noise", intensity)
    u = last(uniform(keys("shot_noise", intensity), 3, 32, 32))
    k = stats.poisson.ppf(u, each(photographs()) * photons)
    compare("shot_noise", intensity, list(byte(k / photons)))


@INTENSITIES
def test_impulse_noise_is_salt_and_pepper(intensity):
    (amount,) = numbers("impulse_noise", intensity)
    grey = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    y = corrupt(grey, "impulse_noise", intensity)
    n = y.numel()
    for value in (0, 255):  # five standard deviations of a binomial count
        count, p = int((y == value).sum()), amount / 2
        assert abs(count - n * p) < 5 * (n * p * (1 - p)) ** 0.5
    assert set(y.unique().tolist()) == {0, 100, 255}


@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.4, 0.7, 1.0, 1.92, 6.4])
@pytest.mark.parametrize(("border", "truncate"), [("nearest", 4.0), ("reflect", 3.0)])
def test_gaussian_filter_is_scipys(sigma, border, truncate):
    x = torch.rand(3, 32, 32, dtype=torch.float64)
    expected = [
        ndimage.gaussian_filter(i, sigma, mode=border, truncate=truncate) for i in x.numpy()
    ]
    ours = gaussian_filter(x, sigma, border=border, truncate=truncate)
    torch.testing.assert_close(ours, torch.from_numpy(np.stack(expected)), **FLOAT64)


@INTENSITIES
def test_gaussian_blur(intensity):
    (sigma,) = numbers("gaussian_blur", intensity)
    blurred = [filters.gaussian(i, sigma=sigma, channel_axis=-1) for i in each(photographs())]
    compare("gaussian_blur", intensity, [byte(i) for i in blurred])


@INTENSITIES
def test_glass_blur_by_the_loop(intensity):
    sigma, rounds = numbers("glass_blur", intensity)
    moves = uniform(keys("glass_blur", intensity), int(rounds), 2, 32, 32).numpy() < 0.5
    expected = []
    for x, up_left in zip(each(photographs()), moves, strict=True):
        y = byte(filters.gaussian(x, sigma=sigma, channel_axis=-1))
        for up, left in up_left:
            for h in range(31, 1, -1):
                for w in range(31, 1, -1):
                    here, there = y[h, w], y[h - up[h, w], w - left[h, w]]
                    here[...], there[...] = there, here  # both are views, as in the published loop
        expected.append(byte(filters.gaussian(y / 255.0, sigma=sigma, channel_axis=-1)))
    compare("glass_blur", intensity, expected)


@INTENSITIES
def test_defocus_blur(intensity):
    radius, sigma = numbers("defocus_blur", intensity)
    span = np.arange(-8, 9)
    inside = (span[:, None] ** 2 + span**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(inside / inside.sum(), (3, 3), sigmaX=sigma)
    assert kernel[5:12, 5:12].sum() == pytest.approx(1)  # the rest is empty
    assert (disk(radius, sigma).numpy() == kernel[5:12, 5:12]).all()
    expected = [cv2.filter2D(i, -1, kernel) for i in each(photographs())]
    ours = last(correlate(photographs().double() / 255, disk(radius, sigma)))
    # 289 weights by a Fourier transform there, 25 of them in turn here
    np.testing.assert_allclose(ours, np.stack(expected), **FLOAT64)
    compare("defocus_blur", intensity, [byte(i) for i in expected], share=0.001)


def zoomed(image: np.ndarray, factor: float) -> np.ndarray:
    crop = int(np.ceil(32 / factor))
    top = (32 - crop) // 2
    middle = image[top : top + crop, top : top + crop]
    large = ndimage.zoom(middle, (factor, factor, 1), order=1)
    start = (len(large) - 32) // 2
    return large[start : start + 32, start : start + 32]


@pytest.mark.parametrize("factor", np.arange(1, 1.27, 0.01).tolist())
def test_zoom_is_scipys(factor):
    x = np.random.default_rng(0).random((32, 32, 3))
    line = zoom_line(factor).numpy()
    ours = np.einsum("ij,kl,jlc->ikc", line, line, x)
    np.testing.assert_allclose(ours, zoomed(x, factor), **FLOAT64)


@INTENSITIES
def test_zoom_blur(intensity):
    factors = np.arange(1, numbers("zoom_blur", intensity)[0], 0.01)
    assert len(factors) == [7, 12, 16, 21, 26][intensity - 1]
    expected = []
    for x in each(photographs()).astype(np.float32):
        total = sum(zoomed(x, factor) for factor in factors)
        expected.append(byte((x + total) / (len(factors) + 1)))
    compare("zoom_blur", intensity, expected, share=0.01)  # its sum is in float32


def plasma_by_a_loop(draws: np.ndarray, decay: float) -> np.ndarray:
    side, wibble, step = 32, 100.0, 32
    f, draw = np.zeros((side, side)), iter(draws)

    def set_mean(row: int, column: int, corners: list[tuple[int, int]]) -> None:
        mean = sum(f[(row + i) % side, (column + j) % side] for i, j in corners) / 4
        f[row, column] = mean + wibble * ((2 * next(draw) - 1) * wibble)

    while step >= 2:
        h = step // 2
        cross = [(-h, 0), (h, 0), (0, -h), (0, h)]
        for row in range(h, side, step):
            for column in range(h, side, step):
                set_mean(row, column, [(-h, -h), (-h, h), (h, -h), (h, h)])
        for row_start, column_start in ((0, h), (h, 0)):
            for row in range(row_start, side, step):
                for column in range(column_start, side, step):
                    set_mean(row, column, cross)
        step, wibble = h, wibble / decay
    return (f - f.min()) / (f.max() - f.min())


@INTENSITIES
def test_fog_by_a_loop(intensity):
    thickness, decay = numbers("fog", intensity)
    k = keys("fog", intensity, 4)
    draws = uniform(k, 1023).numpy()
    fractal = np.stack([plasma_by_a_loop(d, decay) for d in draws])
    # five rounds of means of 4 and a random height, over the whole range at the end
    within = close(torch.float64, terms=5, depth=2 * 5 + 2, condition=10.0)
    np.testing.assert_allclose(plasma(k, 32, decay=decay).numpy(), fractal, **within)
    x = each(photographs(4))
    top = x.max((1, 2, 3), keepdims=True)
    expected = byte((x + thickness * fractal[..., None]) * top / (top + thickness))
    assert (last(corrupt(photographs(4), "fog", intensity)) == expected).all()


@INTENSITIES
def test_frost_blends(intensity):
    image, ice = numbers("frost", intensity)
    u = uniform(keys("frost", intensity), 3) * torch.tensor([TEXTURES, EXTENT, EXTENT])
    expected = []
    for x, (which, top, left) in zip(last(photographs()), u.long().tolist(), strict=True):
        texture = frost_textures()[which].numpy()
        piece = np.roll(texture, (-top, -left), (0, 1))[:32, :32]
        expected.append(np.clip(image * x + ice * piece, 0, 255).astype(np.uint8))
    compare("frost", intensity, expected)


def test_frost_textures_look_like_ice():
    t = frost_textures()
    assert t.shape == (5, 256, 256, 3)
    assert t.min() >= 0
    assert t.max() <= 255
    red, green, blue = t.mean((0, 1, 2))
    assert red < green < blue
    assert ((t.mean((1, 2, 3)) > 100) & (t.mean((1, 2, 3)) < 180)).all()  # neither glass nor snow
    assert (t.std((1, 2, 3)) > 40).all()
    for a in range(5):  # five different ones
        assert all((t[a] - t[b]).abs().mean() > 20 for b in range(a))


def test_hsv_is_scikit_images():
    # every difference of channels, ties and greys too
    levels = torch.tensor([0, 1, 17, 100, 128, 254, 255], dtype=torch.float64) / 255
    rgb = torch.cartesian_prod(levels, levels, levels).view(-1, 1, 1, 3).permute(0, 3, 1, 2)
    hsv = rgb_to_hsv(rgb)
    assert (last(hsv)[:, 0] == color.rgb2hsv(last(rgb)[:, 0])).all()
    assert (last(hsv_to_rgb(hsv))[:, 0] == color.hsv2rgb(last(hsv)[:, 0])).all()


@INTENSITIES
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_colours(name, intensity):
    expected = []
    for x in each(photographs()):
        hsv = color.rgb2hsv(x)
        if name == "brightness":
            hsv[..., 2] = np.clip(hsv[..., 2] + numbers(name, intensity)[0], 0, 1)
        else:
            factor, shift = numbers(name, intensity)
            hsv[..., 1] = np.clip(hsv[..., 1] * factor + shift, 0, 1)
        expected.append(byte(color.hsv2rgb(hsv)))
    compare(name, intensity, expected)


@INTENSITIES
def test_contrast(intensity):
    (factor,) = numbers("contrast", intensity)
    x = each(photographs())
    mean = x.mean((1, 2), keepdims=True)
    # the white image's mean, as numpy sums it, may be 1 - 1e-16
    compare("contrast", intensity, list(byte((x - mean) * factor + mean)), share=0.001)


@INTENSITIES
def test_pixelate_is_pillows(intensity):
    (share,) = numbers("pixelate", intensity)
    small = (int(32 * share),) * 2
    expected = [
        Image.fromarray(x)
        .resize(small, Image.Resampling.BOX)
        .resize((32, 32), Image.Resampling.BOX)
        for x in last(photographs())
    ]
    compare("pixelate", intensity, [np.asarray(x) for x in expected])


def affine(shift: np.ndarray) -> np.ndarray:
    corners = np.array([[26, 26], [26, 6], [6, 6]], np.float32)
    return cv2.getAffineTransform(corners, corners + shift.astype(np.float32))


def test_affine_places_are_opencvs():
    shift = (torch.rand(5, 3, 2, dtype=torch.float64) - 0.5) * 5
    for places, moved in zip(affine_places(shift).numpy(), shift.numpy(), strict=True):
        inverse = cv2.invertAffineTransform(affine(moved))
        grid = np.stack([*np.meshgrid(np.arange(32), np.arange(32)), np.ones((32, 32))])
        # corners in float32
        np.testing.assert_allclose(
            places, (inverse @ grid.reshape(3, -1)).T.reshape(32, 32, 2), atol=1e-5
        )


def test_bilinear_is_scipys():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, 32, 32, dtype=torch.float64, generator=generator)
    places = torch.rand(1, 32, 32, 2, dtype=torch.float64, generator=generator) * 60 - 14
    at = places[0].flip(-1).permute(2, 0, 1).numpy()
    for ours, scipys in (("edge", "reflect"), ("pixel", "mirror")):
        expected = ndimage.map_coordinates(x[0, 0].numpy(), at, order=1, mode=scipys)
        # places up to 46 scaled to [-1, 1] and back, reflected, and four pixels weighed by them
        within = close(torch.float64, terms=4, depth=4, scale=46.0)
        np.testing.assert_allclose(bilinear(x, places, mirror=ours)[0, 0], expected, **within)


@INTENSITIES
def test_elastic_transform(intensity):
    strength, sigma, size = (32 * c for c in numbers("elastic_transform", intensity))
    k = keys("elastic_transform", intensity)
    shift = (2 * uniform(k, 3, 2).numpy() - 1) * size
    noise = 2 * uniform(k, 2, 32, 32, skip=6).numpy() - 1
    expected = []
    for x, s, (right, down) in zip(each(photographs()), shift, noise, strict=True):
        moved = cv2.warpAffine(
            x.astype(np.float32), affine(s), (32, 32), borderMode=cv2.BORDER_REFLECT_101
        )
        dx, dy = (
            strength * filters.gaussian(d, sigma, mode="reflect", truncate=3) for d in (right, down)
        )
        row, column = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
        channels = [
            ndimage.map_coordinates(moved[..., c], [row + dy, column + dx], order=1, mode="reflect")
            for c in range(3)
        ]
        expected.append(byte(np.stack(channels, -1)))
    # OpenCV's float32 places, 1e-5 of a pixel: a flat area may fall by one level
    compare("elastic_transform", intensity, expected, share=0.001)


def liquids(intensity: int, count: int) -> np.ndarray:
    mean, sd, sigma, threshold = numbers("spatter", intensity)[:4]
    layers = mean + sd * normal(keys("spatter", intensity, count), 32, 32).numpy()
    layers = np.stack([filters.gaussian(layer, sigma=sigma) for layer in layers])
    layers[layers < threshold] = 0
    return layers


@pytest.mark.parametrize("kind", ["drops", "noise", "steps"])
def test_canny_is_opencvs(kind):
    rng = np.random.default_rng(0)
    grey = {
        "drops": (np.concatenate([liquids(i, 60) for i in (1, 2, 3)]) * 255).astype(np.uint8),
        "noise": rng.integers(0, 256, (60, 32, 32)).astype(np.uint8),
        "steps": (rng.integers(0, 5, (60, 8, 8)) * 16).astype(np.uint8).repeat(4, 1).repeat(4, 2),
    }[kind]
    ours = canny(torch.from_numpy(grey).int(), low=50, high=150).numpy()
    expected = np.stack([cv2.Canny(g, 50, 150) for g in grey]) > 0
    assert expected.any()
    assert (ours == expected).all()


@pytest.fixture(params=[False, True])
def ipp(request):
    """OpenCV by its own code, or by Intel's library where it has that."""
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(request.param)
    yield cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(before)


def test_distance_is_opencvs(ipp):
    rng = np.random.default_rng(0)
    outline = rng.random((60, 32, 32)) < rng.random((60, 1, 1)) ** 4
    outline[:, 5, 7] = True
    ours = chamfer_distance(torch.from_numpy(outline)).numpy()
    masks = (255 * ~outline).astype(np.uint8)
    expected = np.stack([cv2.distanceTransform(mask, cv2.DIST_L2, 5) for mask in masks])
    # Intel's steps are not rounded to 16 bits: half a unit more or less, 31 times
    np.testing.assert_allclose(ours, expected, rtol=0, atol=31 * 2.0**-17 if ipp else 0)


def test_equalise_is_opencvs():
    rng = np.random.default_rng(0)
    grey = (rng.random((60, 32, 32)) ** 3 * rng.integers(1, 256, (60, 1, 1))).astype(np.uint8)
    grey[0] = 20  # one level only
    ours = equalise(torch.from_numpy(grey)).numpy()
    assert (ours == np.stack([cv2.equalizeHist(g) for g in grey])).all()


def water_by_opencv(liquid: np.ndarray, strength: float) -> np.ndarray:
    grey = (liquid * 255).astype(np.uint8)
    away = cv2.distanceTransform(255 - cv2.Canny(grey, 50, 150), cv2.DIST_L2, 5)
    away = cv2.blur(np.minimum(away, 20), (3, 3)).astype(np.uint8)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
    lit = cv2.blur(cv2.filter2D(cv2.equalizeHist(away), cv2.CV_8U, relief), (3, 3))
    m = grey * lit.astype(np.float32)
    return m / m.max() * np.float32(strength)


@INTENSITIES
def test_spatter(intensity):
    *_, threshold, strength, muddy = numbers("spatter", intensity)
    expected = []
    for x, liquid in zip(last(photographs()), liquids(intensity, COUNT), strict=True):
        x = x.astype(np.float32) / 255
        if muddy:
            m = filters.gaussian((liquid > threshold).astype(np.float32), sigma=strength)
            m[m < 0.8] = 0
            brown = (np.array([63, 42, 20]) / 255).astype(np.float32)
            expected.append(byte(x * (1 - m[..., None]) + brown * m[..., None]))
        else:
            m = water_by_opencv(liquid, strength)
            turquoise = (np.array([175, 238, 238]) / 255).astype(np.float32)
            expected.append(byte(x + m[..., None] * turquoise))
    compare("spatter", intensity, expected, share=0.001)  # float32 between the axes of the blur


def test_every_corruption_is_here():
    text = Path(__file__).read_text()
    assert all(f'"{name}"' in text for name in CORRUPTIONS)
