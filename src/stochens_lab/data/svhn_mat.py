"""SVHN's cropped digits in MATLAB's format: train_32x32.mat and test_32x32.mat.

The format has room for surprises, so a file is read only if it is the published one, byte by byte.
"""

from pathlib import Path

import torch

from stochens.errors import InputError
from stochens.files.hashing import hash_file
from stochens.files.storage import reading
from stochens_lab.data.image_sets import Images, ImageSet

SHA256 = {  # published; torchvision and TensorFlow Datasets check the same
    "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


def find_files(folder: Path, about: ImageSet, split: str) -> list[Path]:
    file = folder / f"{split}_32x32.mat"
    return [file] if about.name == "svhn" and file.is_file() else []


def read(files: list[Path], about: ImageSet, split: str) -> Images:
    """X [32, 32, 3, N] and y [N, 1], where digit 0 is written 10."""
    from scipy.io import loadmat  # comes with scikit-learn

    with reading(files[0]):
        found = hash_file(files[0])
    if found != SHA256[split]:
        raise InputError(f"{files[0]} is not the published file (SHA-256 differs); get it again")
    content = loadmat(files[0], variable_names=["X", "y"])
    x = torch.as_tensor(content["X"]).permute(3, 2, 0, 1).contiguous()  # [N, 3, 32, 32]
    y = torch.as_tensor(content["y"]).flatten().long() % 10  # [N]
    return Images(x, y, about.names)
