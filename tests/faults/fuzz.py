"""Fuzzing of the readers that take bytes from strangers, by atheris where it is installed.

    pip install atheris
    python -m tests.faults.fuzz checksums|npz [options of libFuzzer]

Whatever the bytes, a reader returns plain data or raises InputError.
"""

import contextlib
import io
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

from stochens import InputError
from stochens.files import storage
from stochens_lab import npz

PLACE = Path(tempfile.mkdtemp()) / "saved"


def one_folder(data: bytes) -> None:
    """The bytes in the place of a saved folder's checksums, description or tensors."""
    if not PLACE.exists():
        storage.write_folder(PLACE, "fuzz", {"t": torch.arange(4.0)}, {"step": 1})
    names = (storage.CHECKSUMS, storage.DESCRIPTION, storage.TENSORS)
    file = PLACE / names[data[0] % 3 if data else 0]
    whole = file.read_bytes()
    file.write_bytes(data[1:])
    try:
        tensors, about = storage.read_folder(PLACE, "fuzz")
        assert about["step"] == 1
        assert torch.equal(tensors["t"], torch.arange(4.0))
    except InputError:
        pass
    finally:
        file.write_bytes(whole)


def one_npz(data: bytes) -> None:
    """The bytes as they are, and as an array in a file that is right otherwise."""
    with zipfile.ZipFile(inside := io.BytesIO(), "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + data)
    for content in (data, inside.getvalue()):
        with contextlib.suppress(InputError), storage.reading("it"):
            found = npz.read_npz(content, "it")
            assert sum(array.nbytes for array in found.values()) <= len(content)


TARGETS = {"checksums": one_folder, "npz": one_npz}


def main() -> None:
    try:
        import atheris
    except ImportError:
        raise SystemExit("fuzzing needs atheris: pip install atheris") from None
    target = TARGETS[sys.argv.pop(1)]
    watched = [
        (storage, "read_folder"),
        (npz, "read_npz"),
        (npz, "_read_array"),
    ]
    of_numpy = sys.modules[np.lib.format.read_magic.__globals__["__name__"]]
    watched += [(of_numpy, name) for name in ("_read_array_header", "_filter_header")]
    for module, name in watched:
        setattr(module, name, atheris.instrument_func(getattr(module, name)))
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
