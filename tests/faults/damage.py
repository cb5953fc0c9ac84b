"""Damages files of every kind that we write, and reads them again.

    python -m tests.faults.damage --files 10000

A reader may give back exactly what was written, or raise InputError. Anything else is a fault: a
crash of another kind, or content that is not what was written.
"""

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stochens
from stochens import InputError, storage
from stochens.checkpoints import Checkpoints
from stochens.data import plain_pickle
from stochens.data.hmc_reference import hmc_reference

NET = stochens.MLP(2, 4, 2)


def saved_posterior(folder: Path) -> Callable[[], str]:
    stochens.fit(NET, stochens.toy_set("a", n=20), members=3, epochs=1).save(folder / "saved")
    return lambda: digest(stochens.load(folder / "saved", NET)._tensors())


def checkpoint(folder: Path) -> Callable[[], str]:
    kept = Checkpoints(folder / "kept", "test")
    kept.save(1, {"t": torch.arange(50.0)}, {"step": 1})

    def read() -> str:  # not by `latest`, which lays a damaged one aside
        tensors, about = storage.read_folder(folder / "kept" / "000000001", "test")
        return digest(tensors) + str(about["step"])

    return read


def batch(folder: Path) -> Callable[[], str]:
    """A pickled batch of images has no checksum: what is read must be arrays and labels."""
    from tests.data.image_files import python2_batch

    (folder / "batch").write_bytes(python2_batch(np.zeros((2, 3072), np.uint8), [3, 4]))

    def read() -> str:
        found = plain_pickle.read_pickle((folder / "batch").read_bytes())
        plain = (bytes, str, int, list, np.ndarray, type(None), bool, tuple, dict)
        if not all(isinstance(value, plain) for value in found.values()):
            raise AssertionError(f"something was built: {found}")
        return ""

    return read


def reference(folder: Path) -> Callable[[], str]:
    """Probabilities have no checksum either: rows must stay distributions."""
    probs = np.full((10_000, 10), 0.1, np.float32)
    np.save(folder / "hmc_probs.npy", probs)

    def read() -> str:
        found = hmc_reference(folder)
        sums = found.double().sum(1)
        if found.shape != (10_000, 10) or not bool(((sums - 1).abs() < 2e-3).all()):
            raise AssertionError("no distributions")
        return ""

    return read


def digest(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        found.update(name.encode() + t.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


KINDS = {
    "saved posterior": saved_posterior,
    "checkpoint": checkpoint,
    "python batch": batch,
    "HMC reference": reference,
}


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, bytes cut off, put in, left out or repeated."""
    at = chance.randrange(len(content) + 1)
    match chance.randrange(5):
        case 0:
            at = min(at, len(content) - 1)
            return (
                content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
            )
        case 1:
            return content[:at]
        case 2:
            return content[:at] + chance.randbytes(chance.randint(1, 9)) + content[at:]
        case 3:
            return content[:at] + content[at + chance.randint(1, 9) :]
        case _:
            return content[:at] + content[max(0, at - chance.randint(1, 99)) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chance, told = random.Random(args.seed), {}
    for kind, make in KINDS.items():
        folder = Path(tempfile.mkdtemp())
        try:
            read = make(folder)
            want, files = (
                read(),
                [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"],
            )
            refused = 0
            count = args.files // len(KINDS)
            for _ in range(count):
                file = chance.choice(files)
                content = file.read_bytes()
                file.write_bytes(damaged(content, chance))
                try:
                    if read() != want:
                        raise SystemExit(f"{kind}: {file.name} was read as something else")
                except InputError:
                    refused += 1
                file.write_bytes(content)
            told[kind] = {"files": count, "refused": refused, "read as written": count - refused}
            print(f"{kind}: {count} damaged files, {refused} refused", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(told))


if __name__ == "__main__":
    main()
