"""The published numbers of CIFAR-10-C and CIFAR-100-C, five intensities each.

Source: Hendrycks and Dietterich (2019), "Benchmarking neural network robustness to common
corruptions and perturbations", their script make_cifar_c.py (github.com/hendrycks/robustness).
The numbers for 32x32 images differ from those for ImageNet-C. Each row holds the arguments of the
function of that name, in its order.
"""

from typing import Final

from stochens.errors import InputError, did_you_mean

SIDE: Final = 32  # pixels, all of CIFAR
INTENSITIES: Final = 5

PUBLISHED: Final[dict[str, tuple[tuple[float, ...], ...]]] = {
    # thickness, decay of the fractal
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    # end of the range of zoom factors 1, 1.01, ..., as handed to numpy.arange
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    # standard deviation relative to the pixel
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    # sigma of the blur before and after, rounds of moving pixels (by at most one place)
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),
    # mean and sd of the liquid, sigma of its blur, threshold, strength; for mud (intensities 4
    # and 5) the strength is the sigma of the blur of the drops' edges
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    # photons of a white pixel
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    # radius of the disk, sigma of the blur of its edge
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    # strength and sigma of the displacement, size of the affine part; in units of the image's side
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    # sigma
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    # share of the image, share of the frost
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    # factor and shift of the saturation
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    # shift of the value
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    # standard deviation
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    # factor on the distance from the mean
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    # share of the numbers that are replaced by 0 or 1
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    # side of the small image relative to the large one
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
}
CORRUPTIONS: Final = tuple(PUBLISHED)


def check_request(name: str, intensity: int) -> None:
    """The two words that name a corrupted set."""
    if name not in CORRUPTIONS:
        hint = did_you_mean(str(name), CORRUPTIONS) or f"; there are {', '.join(CORRUPTIONS)}"
        raise InputError(f"no corruption is called {name!r}{hint}")
    if isinstance(intensity, bool) or intensity not in range(1, INTENSITIES + 1):
        raise InputError(f"intensity must be 1, 2, 3, 4 or 5, got {intensity!r}")
