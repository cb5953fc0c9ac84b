"""One corruption of one intensity for a whole set of images."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens_lab.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, zoom_blur
from stochens_lab.data.corruptions.colour import brightness, contrast, saturate
from stochens_lab.data.corruptions.draws import image_keys
from stochens_lab.data.corruptions.fog import fog
from stochens_lab.data.corruptions.frost import frost
from stochens_lab.data.corruptions.geometry import elastic_transform, pixelate
from stochens_lab.data.corruptions.noise import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from stochens_lab.data.corruptions.published import PUBLISHED, SIDE, check_request
from stochens_lab.data.corruptions.spatter import spatter

CHUNK = {"cpu": 250, "cuda": 2000}  # images at a time: the cache of the one, launches of the other

FUNCTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    function.__name__: function
    for function in (
        fog,
        zoom_blur,
        speckle_noise,
        glass_blur,
        spatter,
        shot_noise,
        defocus_blur,
        elastic_transform,
        gaussian_blur,
        frost,
        saturate,
        brightness,
        gaussian_noise,
        contrast,
        impulse_noise,
        pixelate,
    )
}


def corrupt(x: Tensor, name: str, intensity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Images as CIFAR-10-C has them: uint8 [N, 3, 32, 32] to the same, on the device of x.

        y_i = f_name(x_i; random numbers of (seed, name, intensity, first + i))

    The functions and their numbers are the published ones (see published.py). An image's result
    depends on nothing but the image and these four; `first` is the place of x[0] in its set, for
    those who hand in a set in pieces. CORRUPTIONS lists the names, intensity goes from 1 to 5.

    >>> x = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
    >>> corrupt(x, "brightness", 1)[0, :, 0, 0].tolist()
    [112, 112, 112]
    >>> corrupt(x, "fog", 3)[1:].equal(corrupt(x[1:], "fog", 3, first=1))
    True
    """
    check_request(name, intensity)
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1:] != (3, SIDE, SIDE):
        got = f"{x.dtype} {tuple(x.shape)}".removeprefix("torch.")
        raise InputError(
            f"x must be uint8 [N, 3, 32, 32], got {got}; corrupt the bytes before you scale them"
        )
    function, numbers = FUNCTIONS[name], PUBLISHED[name][intensity - 1]
    y = torch.empty_like(x)
    size = CHUNK.get(x.device.type, CHUNK["cpu"])
    for top in range(0, len(x), size):
        part = x[top : top + size]
        keys = image_keys(
            first + top,
            len(part),
            seed=seed,
            name=name,
            intensity=intensity,
            device=x.device,
        )
        y[top : top + size] = function(part, keys, *numbers)
    return y
