"""CIFAR-10, CIFAR-100 and SVHN as tensors, from whatever form lies in a folder."""

from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from stochens.errors import InputError
from stochens.files.hashing import hash_bytes
from stochens_lab.data import image_binary, image_parquet, svhn_mat
from stochens_lab.data.image_sets import (
    SETS,
    SPLITS,
    Images,
    ImageSet,
    find_set,
)


class Reader(Protocol):
    def find_files(self, folder: Path, about: ImageSet, split: str) -> list[Path]: ...
    def read(self, files: list[Path], about: ImageSet, split: str) -> Images: ...


READERS: dict[str, Reader] = {
    "parquet": image_parquet,
    "binary batches": image_binary,
    "MATLAB file": svhn_mat,
}

# SHA-256 of the pixels [N, 3, 32, 32] and then the labels (int64, little-endian) in the original
# order, measured on lossless copies that were compared with the originals.
ORIGINAL = {
    ("cifar10", "train"): "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
    ("cifar10", "test"): "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
    ("cifar100", "test"): "9f0797cda23af3231dce0cca7e8d619c0607f6bb8ca05e9b95ff23e4d044c600",
}


class Found(NamedTuple):
    form: str
    place: Path
    files: list[Path]


def load_images(folder: str | Path, name: str, split: str) -> Images:
    """x [N, 3, 32, 32] uint8, y [N] int64 and the class names of one split of a set.

    Parquet files, CIFAR's binary files or SVHN's .mat files are looked for in the folder, in
    FOLDER/cifar10 and the like. The rows keep the order of the files.

    x, y, classes = load_images("data", "cifar10", "test")
    """
    about = find_set(name)
    found = find_images(folder, name, split)
    if found is None:
        raise InputError(f"{folder} has no {name} {split} images; {how_to_get(folder, name)}")
    return READERS[found.form].read(found.files, about, split)


class Task(NamedTuple):
    """Bytes [N, 3, 32, 32] and labels [N] to learn from and to test on, and other sets' test
    images, which are no such thing."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    others: dict[str, Tensor]
    classes: int
    labels: Tensor  # of all test images, also where few are asked for


def load_task(folder: Path, name: str, *, images: int | None, test_images: int | None) -> Task:
    """A set, and those of the others that are in the folder; the first so many images of each."""
    x, y, names = load_images(folder, name, "train")
    if images is not None and images > len(x):
        raise InputError(f"images = {images}, but there are {len(x)} to train on")
    x_test, y_test, _ = load_images(folder, name, "test")
    few, test = slice(images), slice(test_images)
    others = {
        other: load_images(folder, other, "test").x[test]
        for other in SETS
        if other != name and find_images(folder, other, "test") is not None
    }
    return Task((x[few], y[few]), (x_test[test], y_test[test]), others, len(names), y_test)


def find_images(folder: str | Path, name: str, split: str) -> Found | None:
    """Where a split lies and in which form; only names of files are looked at."""
    about = find_set(name)
    if split not in SPLITS:
        raise InputError(f"the splits are {', '.join(SPLITS)}, got {split!r}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; {how_to_get(folder, name)}")
    for place in [*(folder / part for part in about.folders), *_list_itself(folder, about)]:
        for form, reader in READERS.items():
            files = reader.find_files(place, about, split)
            if files:
                return Found(form, place, files)
    return None


def _list_itself(folder: Path, about: ImageSet) -> list[Path]:
    """The folder, unless its name says that it is another set."""
    name = folder.resolve().name
    other = any(name in one.folders for one in SETS.values() if one is not about)
    return [] if other else [folder]


def is_original(images: Images, name: str, split: str) -> bool | None:
    """Whether these are the original pixels and labels in the original order; None: not known."""
    known = ORIGINAL.get((name, split))
    if known is None:
        return None
    return hash_bytes(images.x.numpy().data, images.y.numpy().astype("<i8").data) == known


def how_to_get(folder: str | Path, name: str) -> str:
    """One sentence for a person who has no such files yet."""
    return f"{what_to_put(folder, name)}, or run: stochens data {folder} --download {name}"


def what_to_put(folder: str | Path, name: str) -> str:
    """
    >>> what_to_put("data", "svhn")
    'put SPLIT-00000-of-00001.parquet (ufldl-stanford/svhn, cropped_digits) or SPLIT_32x32.mat
    into data/svhn'
    """
    folder = Path(folder)
    wanted = {
        "cifar10": "train-*.parquet and test-*.parquet (uoft-cs/cifar10) "
        f"into {folder / 'cifar10'} or data_batch_1.bin ... 5 and test_batch.bin "
        f"into {folder / 'cifar-10-batches-bin'}",
        "cifar100": "train-*.parquet and test-*.parquet (uoft-cs/cifar100) "
        f"into {folder / 'cifar100'} or train.bin and test.bin into {folder / 'cifar-100-binary'}",
        "svhn": "SPLIT-00000-of-00001.parquet (ufldl-stanford/svhn, cropped_digits) "
        f"or SPLIT_32x32.mat into {folder / 'svhn'}",
        "hmc": f"probs.csv of the NeurIPS 2021 competition into {folder / 'cifar10'}",
    }[name]
    return f"put {wanted}"
