"""400 damaged files of either sort here; `make faults` has 10,000."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_damaged_files_are_refused_or_read_as_written():
    command = [sys.executable, "-m", "tests.faults.damage", "--files", "400", "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
