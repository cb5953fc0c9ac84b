"""Real images that need no download: scikit-learn's 1797 handwritten digits, the same rotated or
noisy, and 8x8 patches of the photographs that it bundles, which are no digits at all."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stochens.errors import InputError
from stochens.randomness.seeds import derive

WHITE = 16.0  # the brightest pixel of the digits
TEST_SHARE = 0.3


class Digits(NamedTuple):
    x_train: Tensor  # [N, 1, 8, 8], in [0, 1]
    y_train: Tensor  # [N]
    x_test: Tensor
    y_test: Tensor


def read_digits(*, seed: int = 0) -> Digits:
    """The digits, split at random with every class in proportion.

    >>> read_digits().x_train.shape
    torch.Size([1257, 1, 8, 8])
    """
    from sklearn.datasets import load_digits  # here: it takes longer to import than torch
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / WHITE).astype(np.float32).reshape(-1, 1, 8, 8)
    random_state = derive(seed) % 2**32
    parts = train_test_split(x, y, test_size=TEST_SHARE, stratify=y, random_state=random_state)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return Digits(x_train, y_train, x_test, y_test)


def cut_photo_patches(n: int, *, seed: int = 0) -> Tensor:
    """Grey 8x8 patches of photographs, [n, 1, 8, 8] in [0, 1]: inputs far from any digit.

    Every patch is stretched to the full range, as digits have it, so that brightness alone does not
    tell them apart.

    >>> cut_photo_patches(3).shape
    torch.Size([3, 1, 8, 8])
    """
    rng = np.random.default_rng(derive(seed))
    from sklearn.datasets import load_sample_images

    grey = [image.mean(-1) for image in load_sample_images().images]
    patches = np.empty((n, 1, 8, 8), np.float32)
    for patch in patches:
        image = grey[rng.integers(len(grey))]
        top, left = (int(rng.integers(size - 8)) for size in image.shape)
        cut = image[top : top + 8, left : left + 8]
        low, high = cut.min(), cut.max()
        patch[0] = (cut - low) / max(high - low, 1.0)
    return torch.as_tensor(patches)


def rotate(x: Tensor, *, degrees: float) -> Tensor:
    """Square images x [B, C, H, H] turned counter-clockwise about their centre; black comes in.

    The pixel at (u, v) is read at  (cos a u - sin a v, sin a u + cos a v), u to the right and v
    down, between its four neighbours (bilinear).

    >>> rotate(torch.eye(3).view(1, 1, 3, 3), degrees=90).round().view(3, 3)
    tensor([[0., 0., 1.],
            [0., 1., 0.],
            [1., 0., 0.]])
    """
    if x.dim() != 4 or x.shape[2] != x.shape[3]:
        raise InputError(f"x must be square images [B, C, H, H], got {tuple(x.shape)}")
    a = math.radians(degrees)
    turn = x.new_tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]])
    places = F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, places, align_corners=False)


def add_noise(x: Tensor, *, sd: float, seed: int = 0) -> Tensor:
    """x + sd * z,  z ~ N(0, 1) for each pixel. Not cut to [0, 1], so that sd is what it says.

    >>> add_noise(torch.zeros(2, 1, 8, 8), sd=0.1).shape
    torch.Size([2, 1, 8, 8])
    """
    generator = torch.Generator().manual_seed(derive(seed))
    z = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x + sd * z.to(x.device)
