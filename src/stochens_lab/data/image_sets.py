"""What is known of the image sets before any file is read: CIFAR-10, CIFAR-100 and SVHN."""

from typing import NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError, did_you_mean

SIDE = 32  # pixels; the same for all sets here
SPLITS = ("train", "test")


class Images(NamedTuple):
    x: Tensor  # [N, 3, 32, 32] uint8
    y: Tensor  # [N] int64
    classes: tuple[str, ...]  # name of class k


class ImageSet(NamedTuple):
    name: str
    column: str  # of the labels, in parquet files
    classes: int
    names: tuple[str, ...]  # of the classes in order, where they are known
    rows: dict[str, int]  # of each split, when it is whole
    mean: tuple[float, float, float]  # per channel, of the training pixels in [0, 1]
    sd: tuple[float, float, float]
    folders: tuple[str, ...]  # where it may lie below the user's data folder


CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

SETS = {
    "cifar10": ImageSet(
        "cifar10",
        "label",
        10,
        CIFAR10_NAMES,
        {"train": 50_000, "test": 10_000},
        mean=(0.4914, 0.4822, 0.4465),  # Krizhevsky 2009, its 50,000 training images
        sd=(0.2470, 0.2435, 0.2616),
        folders=("cifar10", "cifar10/plain_text", "cifar-10-batches-bin"),
    ),
    "cifar100": ImageSet(
        "cifar100",
        "fine_label",
        100,
        (),
        {"train": 50_000, "test": 10_000},
        mean=(0.5071, 0.4865, 0.4409),  # Krizhevsky 2009, its 50,000 training images
        sd=(0.2673, 0.2564, 0.2762),
        folders=("cifar100", "cifar100/cifar100", "cifar-100-binary"),
    ),
    "svhn": ImageSet(
        "svhn",
        "label",
        10,
        tuple("0123456789"),
        {"train": 73_257, "test": 26_032},
        mean=(0.4377, 0.4438, 0.4728),  # Netzer et al. 2011, the 73,257 cropped training digits
        sd=(0.1980, 0.2010, 0.1970),
        folders=("svhn", "svhn/cropped_digits"),
    ),
}


def find_set(name: str) -> ImageSet:
    """
    >>> find_set("cifar10").rows["test"]
    10000
    """
    if name not in SETS:
        raise InputError(
            f"the image sets are {', '.join(SETS)}, got {name!r}{did_you_mean(name, SETS)}"
        )
    return SETS[name]


def normalise(x: Tensor, name: str, *, device: str | torch.device | None = None) -> Tensor:
    """(x / 255 - mean) / sd  per channel: bytes [N, 3, 32, 32] to float32 on the device.

    `name` is the set that the network was trained on, also where x is another set.

    >>> x = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    >>> normalise(x, "cifar10")[0, :, 0, 0]
    tensor([2.0591, 2.1265, 2.1158])
    """
    about = find_set(name)
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1] != 3:
        raise InputError(
            f"x must be uint8 images [N, 3, 32, 32], got {x.dtype} {tuple(x.shape)}; "
            "corrupt and shuffle bytes, normalise last"
        )
    mean = torch.tensor(about.mean, device=device or x.device).view(3, 1, 1)
    sd = torch.tensor(about.sd, device=device or x.device).view(3, 1, 1)
    out = x.to(mean.device).to(mean.dtype)  # bytes travel, floats are made on the device
    return out.div_(255).sub_(mean).div_(sd)


def check_labels(y: Tensor, about: ImageSet, where: object) -> None:
    """Every label in [0, classes)."""
    bad = (y < 0) | (y >= about.classes)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise InputError(
            f"{where}: {about.column} of row {row} is {int(y[row])}, not in 0..."
            f"{about.classes - 1}; this is another set, or the file is damaged"
        )


def check_class_names(found: object, about: ImageSet, where: object) -> tuple[str, ...]:
    """The names that a file gives, checked; those known, or numbers, where it gives none."""
    known = about.names or tuple(str(k) for k in range(about.classes))
    if found is None:
        return known
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{where}: the class names of {about.column} are no list of names")
    if len(found) != about.classes or (about.names and tuple(found) != about.names):
        raise InputError(
            f"{where}: {about.column} has the {len(found)} classes {', '.join(found[:3])}, ...; "
            f"expected {about.classes}: {', '.join(known[:3])}, ...; this is another set"
        )
    return tuple(found)
