"""Uses arrays in files of a folder, with less memory to take than one of them needs, and prints
what it did. A process of its own, since the limit is one of the process.
"""

import resource
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import stochens

ROWS = 12_000
# bytes: twice 16 MB for a piece and what it is read in, a third of that to predict it, 4 MB for
# each of the columns that are written, 4 MB for a batch of each member and its gradients
ROOM = 72 << 20
OPTIONS = {"members": 2, "method": "regular", "epochs": 1, "batch_size": 500}


def in_use() -> int:
    """Bytes of memory of its own, as the limit counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmData"))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run = stochens.Run(device="cpu", progress=False)
    few, labels = np.ones((50, 2000), np.float32), np.arange(ROWS) % 2
    # what is loaded once
    small = stochens.fit(nn.Linear(2000, 2), (few, labels[:50]), run=run, **OPTIONS)
    small.predict(few, out=folder / "few.zarr")
    sampling = {"samples": 4, "burn_in": 4, "chains": 2, "batch_size": 100, "run": run}
    stochens.sgmcmc(nn.Linear(2000, 2), (few, labels[:50]), **sampling)
    for dtype in (np.float32, np.float64):
        width = 8000 // np.dtype(dtype).itemsize
        path = folder / f"{width}"
        np.memmap(path, dtype, "w+", shape=(ROWS, width))[::100] = 1.0  # a file with holes
        x = np.memmap(path, dtype, "r", shape=(ROWS, width))
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (in_use() + ROOM, hard))
        try:
            np.array(x)
        except MemoryError:
            print("refused")
        net = nn.Linear(width, 2)
        posterior = stochens.fit(net, (x, labels), run=run, validation=0.2, **OPTIONS)
        print("fit")
        stochens.sgmcmc(net, (x, labels), **sampling)
        print("sgmcmc")
        assert len(posterior.predict(x, batch_size=500).mean) == ROWS
        print("predict")
        posterior.predict(x, batch_size=500, out=folder / f"{width}.zarr")
        print("written")
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
