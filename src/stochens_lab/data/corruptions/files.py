"""The official CIFAR-10-C and CIFAR-100-C files: one array for each corruption, and the labels."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens_lab.data.corruptions.published import INTENSITIES, SIDE, check_request

IMAGES = 10_000  # of each intensity, in the order of the test set


def load_corrupted(
    folder: str | Path, name: str, intensity: int, *, labels: Tensor | None = None
) -> Tensor:
    """The images of the official set, uint8 [10000, 3, 32, 32], in the order of the test set.

    folder holds `{name}.npy`, uint8 [50000, 32, 32, 3], intensity after intensity, as unpacked from
    CIFAR-10-C.tar or CIFAR-100-C.tar (zenodo.org/records/2535967 and 3555552). Only the rows that
    are asked for are read. With `labels` [10000], those of the test set in use, the folder's
    `labels.npy` must say the same, so that another order of images or another set cannot pass.

    load_corrupted("data/CIFAR-10-C", "fog", 3).shape  # (10000, 3, 32, 32)
    """
    check_request(name, intensity)
    if labels is not None and not load_corrupted_labels(folder).equal(labels.long().cpu()):
        raise InputError(
            f"{Path(folder) / 'labels.npy'} differs from the labels of the test set; is this its "
            "corrupted set, and are its images in the original order?"
        )
    rows = slice((intensity - 1) * IMAGES, intensity * IMAGES)
    shape = (INTENSITIES * IMAGES, SIDE, SIDE, 3)
    images = np.array(_array(Path(folder) / f"{name}.npy", shape)[rows])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def load_corrupted_labels(folder: str | Path) -> Tensor:
    """The classes of the official sets, int64 [10000]; the same for every corruption.

    `labels.npy` holds them five times, once for each intensity; a file that does not is refused.
    """
    path = Path(folder) / "labels.npy"
    labels = np.array(_array(path, (INTENSITIES * IMAGES,))).reshape(INTENSITIES, IMAGES)
    if (labels != labels[0]).any():
        raise InputError(f"{path}: the labels of the five intensities differ; fetch the file again")
    return torch.from_numpy(labels[0].astype(np.int64))


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array of a file, mapped into memory, its shape checked."""
    if not path.is_file():
        raise InputError(f"{path} is not there; unpack CIFAR-10-C.tar or CIFAR-100-C.tar there")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no whole .npy file ({error}); fetch it again") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape != shape:
        found = f"{getattr(array, 'dtype', type(array))} {getattr(array, 'shape', '')}"
        raise InputError(f"{path} must hold uint8 {shape}, found {found}; is it the official file?")
    return array
