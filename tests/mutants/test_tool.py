"""The tool that puts faults into the package: they are what they say, and a child sees them."""

import ast
import os
import subprocess
import sys
from fnmatch import fnmatch

import pytest
from tests.mutants.mutations import drawn, mutated, mutations
from tests.mutants.tables import (
    BESIDE,
    BROADER,
    LEFT_OUT,
    ROOT,
    SLOW,
    beside,
    candidates,
    known,
    modules,
    source_of,
)

SAMPLE = '''
"""A docstring with 3 numbers."""
from typing import Optional

LIMIT: Optional[int] = 5

def f(values: list[int], least: float = 0.5) -> "3":
    """Another 1."""
    assert values != 7
    total = 0
    for v in values:
        if not v < LIMIT and v > 2:
            raise ValueError(f"{v + 1} of {len(values) - 1} is too large")
        total += max(v, least)
    warnings.warn("a text" + str(1 + 1), stacklevel=2)
    return -total
'''


def texts(kind=None):
    return {(m.before, m.after) for m in mutations(SAMPLE, "sample") if kind in (None, m.kind)}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "if not v < LIMIT and v > 2", "if not v <= LIMIT and v > 2"),
        ("comparison", "if not v < LIMIT and v > 2", "if not v < LIMIT and v <= 2"),
        ("negation", "if not v < LIMIT and v > 2", "if v < LIMIT and v > 2"),
        ("boolean", "if not v < LIMIT and v > 2", "if not v < LIMIT or v > 2"),
        ("condition", "if not v < LIMIT and v > 2", "if not (not v < LIMIT and v > 2)"),
        ("constant", "if not v < LIMIT and v > 2", "if not v < LIMIT and v > 3"),
        ("constant", "LIMIT: Optional[int] = 5", "LIMIT: Optional[int] = 4"),
        (
            "constant",
            "def f(values: list[int], least: float=0.5) -> '3'",
            "def f(values: list[int], least: float=1.0) -> '3'",
        ),
        ("arithmetic", "total += max(v, least)", "total -= max(v, least)"),
        ("dropped", "total += max(v, least)", "pass"),
        ("function", "total += max(v, least)", "total += min(v, least)"),
        ("sign", "return -total", "return total"),
        (
            "dropped",
            "raise ValueError(f'{v + 1} of {len(values) - 1} is too large')",
            "pass",
        ),
        ("dropped", "warnings.warn('a text' + str(1 + 1), stacklevel=2)", "pass"),
    ],
)
def test_faults_of_every_kind(kind, before, after):
    assert (before, after) in texts(kind)


def test_texts_annotations_and_assertions_stay():
    """Every other place is one of these statements, and no message or docstring is among them."""
    changed = {before for before, after in texts() if after != "pass"}
    assert changed == {
        "LIMIT: Optional[int] = 5",
        "def f(values: list[int], least: float=0.5) -> '3'",
        "total = 0",
        "if not v < LIMIT and v > 2",
        "total += max(v, least)",
        "return -total",
    }
    for _, after in texts():
        assert "Optional[int]" in after or "Optional" not in after


def test_a_fault_is_one_change_and_the_module_still_compiles():
    """The tree that is compiled differs in the one statement that is shown, for a whole module."""
    source = source_of("training/schedules")
    lines = ast.unparse(ast.parse(source)).splitlines()
    for one in mutations(source, "training/schedules"):
        tree = mutated(source, one.path, one.choice)
        compile(tree, "schedules.py", "exec")
        new = ast.unparse(tree).splitlines()
        assert new != lines
        # a statement left out or taken apart is a line or a few; all else stands as it was
        same = {*new} & {*lines}
        assert len({*lines} - same) <= 8, one


def test_the_draw_depends_on_the_seed_and_hardly_on_other_lines():
    found = mutations(SAMPLE, "sample")
    first = drawn(found, 6, 0)
    assert first == drawn(found, 6, 0)
    assert len({one.path for one in first}) == 6
    assert {one.key for one in first} != {one.key for one in drawn(found, 6, 1)}
    longer = mutations(SAMPLE + "\n\ndef g(a):\n    return a + 1\n", "sample")
    assert len({one.key for one in drawn(longer, 6, 0)} & {one.key for one in first}) >= 4


def test_the_list_of_equivalent_faults_has_no_stale_entry():
    """Each is a fault that its module can still have, and has a reason. Functions that only another
    machine runs are there too."""
    lists = known()
    for name in {key[0] for key in lists.equivalent} | {key[0] for key in lists.elsewhere}:
        assert name in modules()
        possible = candidates(name, lists)
        keys = {one.key for one in possible}
        stale = [key for key in lists.equivalent if key[0] == name and key not in keys]
        assert stale == []
        functions = {one.function for one in mutations(source_of(name), name)}
        for module, pattern in lists.elsewhere:
            if module == name:
                assert any(f == pattern or f.startswith(pattern.rstrip("*")) for f in functions)
    assert all(
        len(reason) > 10 for reason in [*lists.equivalent.values(), *lists.elsewhere.values()]
    )


def test_every_module_has_tests_beside_it():
    """And no line of the table is of modules or tests that are no more."""
    for pattern, tests in BESIDE.items():
        assert any(fnmatch(name, pattern) for name in modules()), pattern
        assert all(any(ROOT.glob(test)) for test in tests), tests
    assert all(any(ROOT.glob(test)) for test in (*BROADER, *LEFT_OUT, *SLOW))
    for name in modules():
        assert len(beside(name)) > 1, name


PROGRAM = """
import sys, time
from pathlib import Path
from tests.mutants.children import Child
from tests.mutants.mutations import mutations
from tests.mutants.tables import ROOT, source_of

assert "stochens" not in sys.modules
found = mutations(source_of("training/schedules"), "training/schedules")
upside_down = next(m for m in found if "(1 - math.cos(" in m.after)
tests = {"tests/training/test_schedules.py::test_the_other_schedules": 0.1,
         "src/stochens/training/schedules.py::stochens.training.schedules": 0.1}
for fault in (upside_down, None):
    child = Child(fault, tests, ROOT, Path(sys.argv[1]))
    while (ran := child.read()) is None:
        time.sleep(0.02)
    print(ran.failed, ran.count)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks children")
@pytest.mark.long
def test_a_child_notices_a_known_fault_and_passes_without_one(tmp_path):
    """The cosine upside down fails its test, which passes where there is no fault."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    with_fault, without = ran.stdout.splitlines()
    assert with_fault == "tests/training/test_schedules.py::test_the_other_schedules 1"
    assert without == "None 1", (tmp_path / "log").read_text()
