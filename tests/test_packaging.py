"""What is built and tried for a release is what pyproject.toml says it is."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LISTED = subprocess.run(
    ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()


@pytest.mark.parametrize("workflow", ["ci.yml", "release.yml"])
def test_every_version_of_python_that_is_promised_is_tried(workflow):
    said = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows" / workflow).read_text())
    promised = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "3." in text]
    assert said is not None
    assert re.findall(r"[\d.]+", said[1]) == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.skipif(not LISTED, reason="no git, or no checkout of it")
@pytest.mark.parametrize("change", ["none", "no kernel", "no py.typed", "a test"])
def test_a_wheel_is_looked_into(change, tmp_path):
    names = {name.removeprefix("src/") for name in LISTED} | {"stochens-0.dist-info/METADATA"}
    wheel = tmp_path / "stochens-0-py3-none-any.whl"
    names -= {"no kernel": {"stochens/kernels/nuts.cu"}, "no py.typed": {"stochens/py.typed"}}.get(
        change, set()
    )
    names |= {"tests/test_layout.py"} if change == "a test" else set()
    with zipfile.ZipFile(wheel, "w") as made:
        for name in sorted(names):
            made.writestr(name, "")
    look = [sys.executable, ".ci/look_into_wheel.py", str(wheel)]
    done = subprocess.run(look, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == (change != "none")
    told = {
        "none": " .cu, ",
        "no kernel": "lacks stochens/kernels/nuts.cu",
        "no py.typed": "lacks stochens/py.typed",
        "a test": "no file of the package: tests/test_layout.py",
    }
    assert told[change] in done.stdout + done.stderr
