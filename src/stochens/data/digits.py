"""Real images that need no download: scikit-learn's 1797 handwritten digits, and 8x8 patches of
the photographs that it bundles, which are no digits at all."""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor

from stochens.randomness import derive

WHITE = 16.0  # the brightest pixel of the digits


class Digits(NamedTuple):
    x_train: Tensor  # [N, 1, 8, 8], in [0, 1]
    y_train: Tensor  # [N]
    x_test: Tensor
    y_test: Tensor


def digits(*, test_share: float = 0.3, seed: int = 0) -> Digits:
    """The digits, split at random with every class in proportion.

    >>> digits().x_train.shape
    torch.Size([1257, 1, 8, 8])
    """
    x, y = load_digits(return_X_y=True)
    x = (x / WHITE).astype(np.float32).reshape(-1, 1, 8, 8)
    random_state = derive(seed) % 2**32
    parts = train_test_split(x, y, test_size=test_share, stratify=y, random_state=random_state)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return Digits(x_train, y_train, x_test, y_test)


def photo_patches(n: int, *, seed: int = 0) -> Tensor:
    """Grey 8x8 patches of photographs, [n, 1, 8, 8] in [0, 1]: inputs far from any digit.

    Every patch is stretched to the full range, as digits have it, so that brightness alone does not
    tell them apart.

    >>> photo_patches(3).shape
    torch.Size([3, 1, 8, 8])
    """
    rng = np.random.default_rng(derive(seed))
    grey = [image.mean(-1) for image in load_sample_images().images]
    patches = np.empty((n, 1, 8, 8), np.float32)
    for patch in patches:
        image = grey[rng.integers(len(grey))]
        top, left = (int(rng.integers(size - 8)) for size in image.shape)
        cut = image[top : top + 8, left : left + 8]
        low, high = cut.min(), cut.max()
        patch[0] = (cut - low) / max(high - low, 1.0)
    return torch.as_tensor(patches)
