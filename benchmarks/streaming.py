"""Memory and time of predictions at a loader of 10 GB: in a file, batch by batch, or all at once.

    python benchmarks/streaming.py [--gb 10] [--way parquet] [--json FILE]

The loader makes its rows on the fly, 1000 numbers each. Memory is the peak of the resident set
above what it was before the prediction, with the model, torch and pyarrow loaded. Each way is
measured in a process of its own, since a peak only rises.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import stochens

WIDTH, ROWS = 1000, 500  # numbers of a row, and rows of a batch: 2 MB
WAYS = ("parquet", "zarr", "batches", "predict")


class Blocks(IterableDataset[torch.Tensor]):
    """Batches [500, 1000] of float32, no two alike, and so many bytes of them."""

    def __init__(self, size: float) -> None:
        self.count = max(1, round(size / (4 * WIDTH * ROWS)))
        self._first = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self._first + 1e-3 * (k % 1000) for k in range(self.count))


def loader(size: float) -> "DataLoader[torch.Tensor]":
    return DataLoader(Blocks(size), batch_size=None)


def resident() -> int:
    """Bytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Bytes at most so far."""
    # not ru_maxrss, which begins at that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def use(posterior: stochens.Posterior, way: str, x: Any, folder: Path) -> int:
    """Predict at x in one of the ways; how many rows there were."""
    if way == "batches":
        return sum(len(p.mean) for p in posterior.predict_batches(x))
    if way == "predict":
        return len(posterior.predict(x, keep_draws=False).mean)
    posterior.predict(x, out=folder / f"{len(list(folder.iterdir()))}.{way}", progress=False)
    return 0


def measure(way: str, size: float) -> dict[str, Any]:
    """In this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first = next(iter(loader(1)))
    data = (first, torch.arange(ROWS) % 10)
    net = stochens.MLP(WIDTH, 16, 10)
    options: dict[str, Any] = {"method": "dropout", "members": 4, "epochs": 1, "progress": False}
    posterior = stochens.fit(net, data, device="cpu", **options)
    with tempfile.TemporaryDirectory() as folder:
        use(posterior, way, loader(1), Path(folder))
        before, began = resident(), time.perf_counter()
        use(posterior, way, loader(size), Path(folder))
        seconds = time.perf_counter() - began
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "way": way,
        "gb": 4e-9 * WIDTH * ROWS * Blocks(size).count,
        "rows": ROWS * Blocks(size).count,
        "before_mb": before / 1e6,
        "above_mb": (peak() - before) / 1e6,
        "written_mb": written / 1e6,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--way", choices=WAYS, help="one of them, in this process")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.way is not None:
        print(json.dumps(measure(asked.way, 1e9 * asked.gb)))
        return
    cases = []
    for way in WAYS:
        call = [sys.executable, __file__, "--gb", str(asked.gb), "--way", way]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True)
        cases.append(json.loads(done.stdout))
        print(
            "{way:8} {gb:5.1f} GB, {rows:,} rows: {above_mb:4.0f} MB above {before_mb:.0f} MB, "
            "{seconds:.0f} s, {written_mb:.0f} MB written".format(**cases[-1]),
            flush=True,
        )
    if asked.json is not None:
        about = {
            "command": shlex.join(["python", *sys.argv]),
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
            "torch": torch.__version__,
            "load": os.getloadavg()[0],
            "cases": cases,
        }
        asked.json.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
