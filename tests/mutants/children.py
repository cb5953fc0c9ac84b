"""Tests in forked children: this process imports torch and pytest once, and never stochens, so that
a child imports the package with its fault in it in a fraction of a second.

Linux and macOS only. The tree on disk stays as it is: the fault is compiled in as the module is
imported. Python processes that a test starts by itself see the package without it.
"""

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
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy  # noqa: F401, everything heavy that tests import, so that children have it
import pytest
import torch
from tests.mutants.mutations import Mutation, mutated

HEAVY = (
    *("hypothesis", "hypothesis.strategies", "_pytest.doctest", "_hypothesis_pytestplugin"),
    *("sklearn.base", "sklearn.datasets", "sklearn.utils.estimator_checks", "matplotlib.pyplot"),
    *("rich.console", "rich.progress", "safetensors.torch", "scipy.stats", "torch.func"),
    *("torch.utils.data", "torchmetrics.functional.classification", "typer.testing"),
    *("concurrent.futures.process", "concurrent.futures.thread", "multiprocessing.pool"),
)
MEMORY = 16 << 30  # bytes of address space; a fault that asks for more is noticed
PATIENCE = 30.0  # seconds for a test, and ten times what it takes: beyond it is an endless loop


class Ran(NamedTuple):
    """What became of a child's tests."""

    failed: str | None  # the first test that did not pass, or what ended the child
    count: int  # of tests that were run
    seconds: float


def preload() -> None:
    """Everything but the package. Threads would not live through a fork."""
    torch.set_num_threads(1)
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class _Faulty(importlib.machinery.SourceFileLoader):
    """Loads a module with a fault, and never from or to its cache."""

    def __init__(self, name: str, path: str, fault: Mutation) -> None:
        super().__init__(name, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        tree = mutated(source, self._fault.path, self._fault.choice)
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, fault: Mutation) -> None:
        self._name, self._path, self._fault = name, str(path), fault

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self._name:
            return None
        loader = _Faulty(fullname, self._path, self._fault)
        package = [str(Path(self._path).parent)] if self._path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=loader, submodule_search_locations=package
        )


def install(fault: Mutation, root: Path) -> None:
    """From now on this process imports the module with the fault."""
    name = "stochens." + fault.module.replace("/", ".").removesuffix(".__init__")
    path = root / "src/stochens" / f"{fault.module}.py"
    sys.meta_path.insert(0, _Finder(name, path, fault))


def _to_the_front() -> None:
    """pytest imports modules whose examples it runs by a finder of its own, which comes after."""
    sys.meta_path.sort(key=lambda finder: not isinstance(finder, _Finder))


class _Chosen:
    """A plugin: only these tests, in this order; each is told of on the pipe as it begins."""

    def __init__(self, order: Sequence[str], pipe: int) -> None:
        self._order = {test: place for place, test in enumerate(order)}
        self._pipe = pipe

    def _tell(self, *what: object) -> None:
        os.write(self._pipe, (json.dumps(what) + "\n").encode())

    def pytest_sessionstart(self) -> None:
        _to_the_front()

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
    """A plugin: which lines of the package each test runs, and how long it takes."""

    def __init__(self, package: Path) -> None:
        self._package = str(package) + os.sep
        self._lines: dict[str, set[int]] = {}
        self._known: dict[CodeType, set[int] | None] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {}
        self._known = {}
        began = time.monotonic()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        lines = {file: sorted(seen) for file, seen in self._lines.items() if seen}
        one = self.tests.setdefault(item.nodeid, {"passed": True})
        one |= {"seconds": round(time.monotonic() - began, 4), "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.tests.setdefault(report.nodeid, {})["passed"] = False

    def _called(self, frame: Any, event: str, arg: object) -> Any:
        code = frame.f_code
        if code not in self._known:
            own = code.co_filename.startswith(self._package) and code.co_name != "<module>"
            self._known[code] = self._seen(code) if own else None
        seen = self._known[code]
        if seen is None:
            return None

        def line(frame: Any, event: str, arg: object) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return line

        return line

    def _seen(self, code: CodeType) -> set[int]:
        file = code.co_filename.removeprefix(self._package).removesuffix(".py")
        return self._lines.setdefault(file, set())


def run_tests(files: Sequence[str], root: Path, plugin: object, *, stop: bool) -> int:
    """pytest on these files, and its exit code."""
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--no-header", "--tb=line"]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as base:
        places = [f"--basetemp={base}/tests", f"--rootdir={root}"]
        return int(pytest.main([*options, *(["-x"] if stop else []), *places, *files], [plugin]))


class Child:
    """A forked process with a fault (or without one), which runs tests until one fails."""

    def __init__(
        self, fault: Mutation | None, tests: dict[str, float], root: Path, log: Path
    ) -> None:
        """tests: node ids with the seconds that each takes, in the order to run them in."""
        self.tests, self.began = tests, time.monotonic()
        self.count, self.failed = 0, None
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
            self.failed = f"endless: {self._now or 'import'}"
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
        if fault is not None:
            install(fault, root)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        code = run_tests(files, root, _Chosen(tests, pipe), stop=True)
    finally:
        sys.stdout.flush()
        os._exit(code)
