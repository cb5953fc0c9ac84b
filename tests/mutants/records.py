"""A copy of the tree to work in, and which tests run which lines of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutants.children import Recorder, run_tests
from tests.mutants.mutations import Mutation

COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
Tests = dict[str, dict[str, Any]]  # by node id: seconds, and lines by module


def copied_tree(root: Path, into: Path) -> Path:
    """The files of the repository as they are now, so that edits do not disturb a long run."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *COPIED]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    names = {name for name in listed.splitlines() if (root / name).is_file()}
    for name in names:
        target = into / name
        if not target.exists() or target.read_bytes() != (root / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target)
    for path in [p for p in into.rglob("*.py") if str(p.relative_to(into)) not in names]:
        path.unlink()
    return into


def digest(paths: Iterable[Path]) -> str:
    held = hashlib.sha256()
    for path in sorted(paths):
        held.update(path.name.encode() + b"\0" + path.read_bytes())
    return held.hexdigest()[:16]


def test_files(tree: Path) -> list[Path]:
    """All Python files of the tests but this tool's own."""
    return [p for p in (tree / "tests").rglob("*.py") if p.parent.name != "mutants"]


def recorded(tree: Path, files: Iterable[str], folder: Path, workers: int) -> Tests:
    """For each test that passes the lines it runs. Files whose record is still good are not run:
    neither they nor what they ran of the package has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    support = digest(p for p in test_files(tree) if not p.name.startswith("test_"))
    examples = [file for file in files if file.startswith("src/")]
    groups = [examples, *([file] for file in files if file not in examples)]
    wanted = {folder / f"{_named(group)}.json": group for group in groups if group}
    stale = [held for held, group in wanted.items() if not _is_good(tree, group, held, support)]
    running: dict[int, Path] = {}
    began = time.monotonic()
    for number, held in enumerate([*stale, None]):
        while running and (len(running) >= workers or held is None):
            pid, status = os.wait()
            done = running.pop(pid)
            if status:
                raise SystemExit(f"{done.stem} could not be recorded: see {done}.log")
        if held is not None:
            spent = time.monotonic() - began
            print(f"{spent:5.0f} s: recording {number + 1}/{len(stale)} {held.stem}", flush=True)
            running[_recorder(tree, wanted[held], held, support)] = held
    tests: Tests = {}
    for held in wanted:
        record = json.loads(held.read_text())["tests"]
        tests |= {name: one for name, one in record.items() if one["passed"]}
    return tests


def _named(group: list[str]) -> str:
    if len(group) == 1:
        return group[0].replace("/", "-")
    return "examples-" + hashlib.sha256("".join(group).encode()).hexdigest()[:8]


def _is_good(tree: Path, group: list[str], held: Path, support: str) -> bool:
    if not held.exists():
        return False
    record = json.loads(held.read_text())
    sources = {name: tree / "src/stochens" / f"{name}.py" for name in record["modules"]}
    return (
        record["support"] == support
        and record["files"] == digest(tree / file for file in group)
        and all(p.exists() and digest([p]) == record["modules"][n] for n, p in sources.items())
    )


def _recorder(tree: Path, group: list[str], held: Path, support: str) -> int:
    """A child that runs the tests of these files and writes what they ran."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with Path(f"{held}.log").open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(tree)
        package = tree / "src/stochens"
        recorder = Recorder(tree)
        # 0: all passed; 1: some did not; 5: no tests
        code = 0 if run_tests(group, tree, recorder, stop=False) in (0, 1, 5) else 1
        ran = {name for one in recorder.tests.values() for name in one.get("lines", {})}
        record = {
            "support": support,
            "files": digest(tree / file for file in group),
            "modules": {n: digest([package / f"{n}.py"]) for n in sorted(ran)},
            "tests": {n: t for n, t in recorder.tests.items() if "lines" in t},
        }
        held.write_text(json.dumps(record))
    finally:
        sys.stdout.flush()
        os._exit(code)


def covering(fault: Mutation, tests: Tests) -> dict[str, float]:
    """Tests that run the place of the fault, with the seconds that each takes. What is done as the
    module is imported concerns every test that runs any of it."""
    found = {}
    for name, one in tests.items():
        ran = one["lines"].get(fault.module)
        if ran and (not fault.inside or fault.statement in ran):
            found[name] = one["seconds"]
    return found
