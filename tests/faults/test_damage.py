"""100 damaged files of either sort here, or 400; `make faults` has 10,000."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.long import long_but

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("files", long_but({25}, [25, 400]))
def test_damaged_files_are_refused_or_read_as_written(files):
    command = [sys.executable, "-m", "tests.faults.damage", "--files", str(files), "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
