"""The images of a CIFAR run, and the published predictions that it is measured against."""

import dataclasses

from torch import Tensor

from stochens.errors import InputError
from stochens_lab.data.hmc_reference import check_aligned, load_hmc_reference
from stochens_lab.data.image_sets import SETS
from stochens_lab.data.images import find_images, load_images
from stochens_lab.experiments.cifar_config import CifarConfig


@dataclasses.dataclass(frozen=True)
class Images:
    """Bytes [N, 3, 32, 32] and labels [N], and other sets' test images, which are no such thing."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    others: dict[str, Tensor]
    classes: int


def load_cifar(config: CifarConfig) -> Images:
    x, y, names = load_images(config.data, config.name, "train")
    if config.images is not None and config.images > len(x):
        raise InputError(f"images = {config.images}, but there are {len(x)} to train on")
    x_test, y_test, _ = load_images(config.data, config.name, "test")
    few, test = slice(config.images), slice(config.test_images)
    others = {
        name: load_images(config.data, name, "test").x[test]
        for name in SETS
        if name != config.name and find_images(config.data, name, "test") is not None
    }
    return Images((x[few], y[few]), (x_test[test], y_test[test]), others, len(names))


def load_reference(config: CifarConfig, images: Images) -> Tensor | None:
    """HMC's probabilities for the test images, proved to be in their order; None if not there."""
    if config.name != "cifar10":
        return None  # none were published in this form
    labels = load_images(config.data, config.name, "test").y
    try:
        probs = load_hmc_reference(config.data, labels=labels)
    except InputError as error:
        if "has no HMC reference" in str(error):
            return None
        raise
    probs = probs[: config.test_images]
    check_aligned(probs, images.test[1])
    return probs
