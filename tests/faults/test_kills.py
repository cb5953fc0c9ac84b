"""kill -9 at random moments. `make faults` does it 200 times; here are 5, or 12."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.long import long_but

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", long_but({2}, [2, 12]))
def test_kills_leave_the_results_as_they_are(kills):
    command = [sys.executable, "-m", "tests.faults.kills", "--kills", str(kills), "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert f"{kills} of {kills} kills" in run.stdout
