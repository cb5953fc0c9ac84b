"""What torch.compile has made of a program is there for the next run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stochens.training.engines import COMPILES_SINCE

SCRIPT = """
import json
import torch
from torch import nn
from torch._dynamo.utils import counters
import stochens

net = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
data, run = (x, (x[:, 0] > 0).long()), stochens.Run(engine="compile")
options = {"method": "dropout", "members": 2, "epochs": 1, "batch_size": 4}
posterior = stochens.fit(net, data, run=run, progress=False, **options)
found = counters["inductor"]
loss = posterior.history.loss.flatten().tolist()
print(json.dumps([found["fxgraph_cache_miss"], found["fxgraph_cache_hit"], loss]))
"""


@pytest.mark.long
@pytest.mark.skipif(torch.__version__ < COMPILES_SINCE, reason="engine='compile' is refused")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    """A network with noise: no operator of it keeps torch's cache from knowing it again."""
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def run() -> tuple[int, int, list[float]]:
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
        done = subprocess.run(command, env={**os.environ, **kept}, capture_output=True, check=True)
        missed, hit, loss = json.loads(done.stdout.splitlines()[-1])
        return missed, hit, loss

    missed, hit, loss = run()
    assert missed > 0
    assert hit == 0
    assert run() == (0, missed, loss)
