"""Damages files of every kind that we write, and reads them again.

    python -m tests.faults.damage --files 10000    # as many of either sort

Where there are checksums, every change must be refused, by InputError. Files without them, which
others write, may be damaged in a way that still reads: then what is read must be plain data of the
right kind and shape. Anything else is a fault, such as an error of another kind.
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
from stochens import InputError
from stochens.files import storage
from stochens.posterior import saved
from stochens.run.checkpoints import Checkpoints
from stochens_lab.data.hmc_reference import load_hmc_reference
from stochens_lab.data.images import load_images
from stochens_lab.report import finish
from stochens_lab.report.run_folder import SavedRun, blame_damage

NET = stochens.MLP(2, 4, 2)


def saved_posterior(folder: Path) -> Callable[[], str]:
    stochens.fit(NET, stochens.toy_set("a", n=20), members=3, epochs=1).save(folder / "saved")
    return lambda: digest(saved.tensors(stochens.load(folder / "saved", NET)))


def checkpoint(folder: Path) -> Callable[[], str]:
    kept = Checkpoints(folder / "kept", "test")
    kept.save(1, {"t": torch.arange(50.0)}, {"step": 1})

    def read() -> str:  # not by `latest`, which lays a damaged one aside
        tensors, about = storage.read_folder(folder / "kept" / "000000001", "test")
        return digest(tensors) + str(about["step"])

    return read


def reference(folder: Path) -> Callable[[], str]:
    """Probabilities have no checksum either: rows must stay distributions."""
    probs = np.full((10_000, 10), 0.1, np.float32)
    np.save(folder / "hmc_probs.npy", probs)

    def read() -> str:
        return _distributions(load_hmc_reference(folder))

    return read


def _distributions(found: torch.Tensor) -> str:
    sums = found.double().sum(1)
    if found.shape != (10_000, 10) or not bool(((sums - 1).abs() < 2e-3).all()):
        raise AssertionError("no distributions")
    return ""


def table(folder: Path) -> Callable[[], str]:
    """The same as text; a number may become another, and a row stays a distribution."""
    (folder / "probs.csv").write_text("0.1,0.2,0.05,0.15,0.1,0.1,0.1,0.1,0.05,0.05\n" * 10_000)
    return lambda: _distributions(load_hmc_reference(folder))


def parquet(folder: Path) -> Callable[[], str]:
    from tests.lab.data.image_files import CIFAR10, pixels, write_parquet

    names = {"label": CIFAR10}
    write_parquet(folder / "data" / "test.parquet", pixels(2), {"label": [3, 4]}, names=names)
    return _images(folder)


def batch(folder: Path) -> Callable[[], str]:
    from tests.lab.data.image_files import pixels, write_batch

    write_batch(folder / "data" / "test_batch.bin", pixels(2), [3, 4])
    return _images(folder)


def _images(folder: Path) -> Callable[[], str]:
    def read() -> str:
        x, y, classes = load_images(folder / "data", "cifar10", "test")
        if x.shape != (len(y), 3, 32, 32) or x.dtype != torch.uint8 or len(classes) != 10:
            raise AssertionError(f"no images: {x.shape} {x.dtype}")
        if not bool(((y >= 0) & (y < 10)).all()):
            raise AssertionError(f"no labels: {y}")
        return ""

    return read


def run(folder: Path) -> Callable[[], str]:
    from tests.lab.report.sample import sample_run

    sample_run(folder / "run", sets=("a",))

    def read() -> str:
        found = SavedRun(folder / "run")
        told = [found.about, found.metrics, found.training, found.sampler]
        return json.dumps(told) + digest({k: torch.from_numpy(a) for k, a in found.arrays.items()})

    return read


def older_run(folder: Path) -> Callable[[], str]:
    """One without checksums: its page is made, or it is refused."""
    from tests.lab.report.sample import sample_run

    sample_run(folder / "run", sets=("a",))
    (folder / "run" / storage.CHECKSUMS).unlink()

    def read() -> str:
        with blame_damage([folder / "run"]):
            finish.write_page([folder / "run"], folder / ".page.html")
        return ""

    return read


def digest(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        found.update(name.encode() + t.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


CHECKED = {"saved posterior": saved_posterior, "checkpoint": checkpoint, "run folder": run}
UNCHECKED = {
    "run folder without checksums": older_run,
    "parquet": parquet,
    "binary batch": batch,
    "HMC reference": reference,
    "HMC reference as CSV": table,
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


def _ours(file: Path) -> bool:
    """No file to damage: a lock, or nothing of it is left to change."""
    return file.name.startswith(".") or not file.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chance, told = random.Random(args.seed), {}
    share = {kind: -(-args.files // len(kinds)) for kinds in (CHECKED, UNCHECKED) for kind in kinds}
    for kind, make in (CHECKED | UNCHECKED).items():
        folder = Path(tempfile.mkdtemp())
        try:
            read = make(folder)
            want, files = (
                read(),
                [p for p in folder.rglob("*") if p.is_file() and not _ours(p)],
            )
            refused, count = 0, share[kind]
            for _ in range(count):
                file = chance.choice(files)
                content = file.read_bytes()
                while (new := damaged(content, chance)) == content:
                    pass  # a cut at the very end, for one
                file.write_bytes(new)
                try:
                    if read() != want or kind in CHECKED:
                        raise SystemExit(f"{kind}: the damage in {file.name} was not noticed")
                except InputError:
                    refused += 1
                file.write_bytes(content)
            rest = count - refused
            told[kind] = {"files": count, "refused": refused, "read as plain data": rest}
            print(f"{kind}: {count} damaged, {refused} refused, {rest} read", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(told))


if __name__ == "__main__":
    main()
