"""The real files, where they are."""

import pytest
import torch

from stochens_lab.data.image_sets import SETS, normalise
from stochens_lab.data.images import is_original, load_images


def moments(x: torch.Tensor) -> tuple[list[float], list[float]]:
    """Per-channel mean and standard deviation of bytes [N, 3, 32, 32], in [0, 1]."""
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, sd = [], []
    for channel in range(3):
        share = torch.bincount(x[:, channel].flatten(), minlength=256).double()
        share /= share.sum()
        mean.append(float(share @ values))
        sd.append(float((share @ values**2 - (share @ values) ** 2).sqrt()))
    return mean, sd


def test_cifar10_train(shared_data):
    """The published constants are those of the training pixels; normalised has mean 0, sd 1."""
    images = load_images(shared_data, "cifar10", "train")
    assert images.x.shape == (50_000, 3, 32, 32)
    assert images.y.bincount().tolist() == [5000] * 10
    assert is_original(images, "cifar10", "train")
    mean, sd = moments(images.x)
    assert mean == pytest.approx(SETS["cifar10"].mean, abs=5e-5)
    assert sd == pytest.approx(SETS["cifar10"].sd, abs=5e-5)
    some = normalise(images.x[:5000], "cifar10")
    assert float(some.mean()) == pytest.approx(0, abs=0.02)
    assert float(some.std()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_test(shared_data, name, classes):
    images = load_images(shared_data, name, "test")
    assert images.y.bincount().tolist() == [10_000 // classes] * classes
    assert len(images.classes) == classes
    assert is_original(images, name, "test")
    mean, sd = moments(images.x)
    assert mean == pytest.approx(SETS[name].mean, abs=0.005)  # those are of the training images
    assert sd == pytest.approx(SETS[name].sd, abs=0.005)


def test_svhn(shared_data):
    images = load_images(shared_data, "svhn", "test")
    assert images.x.shape == (5000, 3, 32, 32)
    assert images.classes == tuple("0123456789")
    assert set(images.y.tolist()) == set(range(10))
