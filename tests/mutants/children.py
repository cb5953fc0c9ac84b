"""Tests in forked children: this process imports torch and pytest once, and never stochens, so that
a child imports the package with its fault in it in a fraction of a second.

Linux and macOS only. The tree on disk stays as it is: the fault is compiled in as the module is
imported. Python processes that a test starts by itself see the package without it.
"""

import ast
import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy  # noqa: F401, everything heavy that tests import, so that children have it
import pytest
import torch
from tests.mutants.mutations import MARK, Mutation, marked, mutated
from tests.torchvision_on_cpu import let_torchvision_import

HEAVY = (
    *("hypothesis", "hypothesis.strategies", "_pytest.doctest", "_hypothesis_pytestplugin"),
    *("sklearn.base", "sklearn.datasets", "sklearn.utils.estimator_checks", "matplotlib.pyplot"),
    *("rich.console", "rich.progress", "safetensors.torch", "scipy.stats", "torch.func"),
    *("torch.utils.data", "torchmetrics.functional.classification", "typer.testing"),
    *("concurrent.futures.process", "concurrent.futures.thread", "multiprocessing.pool"),
)
MEMORY = 16 << 30  # bytes of address space; a fault that asks for more is noticed
ENDLESS = "endless: "
PATIENCE = 60.0  # seconds for a test, and ten times what it takes: beyond it is an endless loop


class Ran(NamedTuple):
    """What became of a child's tests."""

    failed: str | None  # the first test that did not pass, or what ended the child
    count: int  # type: ignore[assignment]  # of tests that were run; no tuple's count
    seconds: float


def preload() -> None:
    """Everything but the package. Threads would not live through a fork."""
    torch.set_num_threads(1)
    let_torchvision_import()
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


Change = Callable[[str], ast.Module]  # a module's source -> the tree to compile


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module that is changed on its way, and never from or to its cache."""

    def __init__(self, name: str, path: str, change: Change, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._change, self._names = change, names

    def get_code(self, fullname: str) -> CodeType:
        tree = self._change(Path(self.path).read_text())
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._names)
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of the package that are to be changed."""

    def __init__(self, root: Path, changes: Callable[[str], tuple[Change, dict[str, Any]] | None]):
        self._package, self._changes = root / "src/stochens", changes

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        first, *rest = fullname.split(".")
        if first != "stochens":
            return None
        file = self._package.joinpath(*rest)
        found = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        name = str(found.relative_to(self._package).with_suffix(""))
        change = self._changes(name)
        if change is None or not found.exists():
            return None
        inside = [str(file)] if file.is_dir() else None
        loader = _Changed(fullname, str(found), *change)
        return importlib.util.spec_from_file_location(
            fullname, found, loader=loader, submodule_search_locations=inside
        )

    def install(self) -> None:
        """From now on this process imports what it finds. pytest has a finder of its own, for
        modules whose examples it runs, and puts it to the front: this one must be there again."""
        sys.meta_path[:] = [self, *(f for f in sys.meta_path if f is not self)]


def _with_fault(fault: Mutation, root: Path) -> _Finder:
    def change(source: str) -> ast.Module:
        return mutated(source, fault.path, fault.choice)

    return _Finder(root, lambda name: (change, {}) if name == fault.module else None)


class _Chosen:
    """A plugin: only these tests, in this order; each is told of on the pipe as it begins."""

    def __init__(self, order: Sequence[str], pipe: int, finder: _Finder | None) -> None:
        self._order = {test: place for place, test in enumerate(order)}
        self._pipe, self._finder = pipe, finder

    def _tell(self, *what: object) -> None:
        os.write(self._pipe, (json.dumps(what) + "\n").encode())

    def pytest_sessionstart(self) -> None:
        if self._finder is not None:
            self._finder.install()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("begin", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("failed", f"import of {report.nodeid}")


class Recorder:
    """A plugin: which statements of the package each test runs, and how long it takes."""

    def __init__(self, root: Path) -> None:
        self._lines: dict[str, set[int]] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self._finder = _Finder(root, self._watched)
        self._finder.install()

    def _watched(self, name: str) -> tuple[Change, dict[str, Any]]:
        seen = self._lines.setdefault(name, set())

        def mark(line: int) -> None:
            if not torch.compiler.is_dynamo_compiling():  # nothing but tensors goes into its graph
                seen.add(line)

        return marked, {MARK: mark}

    def pytest_sessionstart(self) -> None:
        self._finder.install()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for seen in self._lines.values():
            seen.clear()
        worked, began = sum(os.times()[:4]), time.monotonic()
        yield
        one = self.tests.setdefault(item.nodeid, {"passed": True})
        # of the processor: on a busy machine the clock says too much. But some tests wait.
        worked, lasted = sum(os.times()[:4]) - worked, time.monotonic() - began
        one["seconds"] = round(max(worked, lasted / 4), 4)
        one["lines"] = {name: sorted(seen) for name, seen in self._lines.items() if seen}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.tests.setdefault(report.nodeid, {})["passed"] = False


def run_tests(files: Sequence[str], root: Path, plugin: object, *, stop: bool) -> int:
    """pytest on these files, and its exit code."""
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--no-header", "--tb=line"]
    # with the long ones; xdist would know its own marker
    options += ["-m", "long or not long"]
    options += ["-o", "markers=long: for make long\nxdist_group: one process for all of them"]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as base:
        places = [f"--basetemp={base}/tests", f"--rootdir={root}"]
        return int(pytest.main([*options, *(["-x"] if stop else []), *places, *files], [plugin]))


_alive: set[int] = set()  # each leads a process group of its own


@atexit.register
def _end_all() -> None:
    for pid in _alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


class Child:
    """A forked process with a fault (or without one), which runs tests until one fails."""

    def __init__(
        self, fault: Mutation | None, tests: dict[str, float], root: Path, log: Path
    ) -> None:
        """tests: node ids with the seconds that each takes, in the order to run them in."""
        self.tests, self.began = tests, time.monotonic()
        self.count = 0
        self.failed: str | None = None
        self._now: str | None = None  # the test that is running
        self._since = time.monotonic()
        self._text = b""
        self.pipe, theirs = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _be_child(fault, list(tests), root, log, theirs)
        os.close(theirs)
        _alive.add(self.pid)

    def read(self) -> Ran | None:
        """Look what it has told; None while it runs."""
        ready, _, _ = select.select([self.pipe], [], [], 0)
        if ready:
            told = os.read(self.pipe, 1 << 16)
            if not told:
                return self._ended()
            *whole, self._text = (self._text + told).split(b"\n")
            for line in whole:
                self._heard(*json.loads(line))
            if self.failed is not None:
                return self._ended()
        allowed = PATIENCE + 10 * self.tests.get(self._now or "", 3.0)
        if time.monotonic() - self._since > allowed:
            self.failed = f"{ENDLESS}{self._now or 'import'}"
            return self._ended()
        return None

    def _heard(self, what: str, test: str) -> None:
        self._since = time.monotonic()
        if what == "begin":
            self._now, self.count = test, self.count + 1
        elif self.failed is None:
            self.failed = test

    def _ended(self) -> Ran:
        with contextlib.suppress(ProcessLookupError):
            if self.failed is not None:
                os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        _alive.discard(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what a test left behind
        os.close(self.pipe)
        code = os.waitstatus_to_exitcode(status)
        if self.failed is None and code not in (0, 5):  # 5: no such tests
            self.failed = f"ended by {code}: {self._now or 'import'}"
        return Ran(self.failed, self.count, time.monotonic() - self.began)


def _be_child(fault: Mutation | None, tests: list[str], root: Path, log: Path, pipe: int) -> None:
    """In the child: never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        with log.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(root)
        finder = None if fault is None else _with_fault(fault, root)
        if finder is not None:
            finder.install()  # here too, for what conftest.py imports
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        code = run_tests(files, root, _Chosen(tests, pipe, finder), stop=True)
    finally:
        sys.stdout.flush()
        os._exit(code)
