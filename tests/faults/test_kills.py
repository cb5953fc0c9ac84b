"""kill -9 at random moments. `make faults` does it 200 times; here are 12."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_12_kills_leave_the_results_as_they_are():
    command = [sys.executable, "-m", "tests.faults.kills", "--kills", "12", "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert "12 of 12 kills" in run.stdout
