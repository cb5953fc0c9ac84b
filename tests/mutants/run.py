"""Puts small faults into the package, one at a time, and sees whether the tests notice.

    python -m tests.mutants.run                           # 300 faults, drawn by seed 0
    python -m tests.mutants.run --only 'posteriors/*'     # those of them in these modules
    python -m tests.mutants.run --seed 1 --count 100 --workers 4

First the tests are run once, to know which of them run which lines. Then each fault gets the tests
that run its line: those beside its module, the quickest first, until one fails; then others. A test
that does not end counts as failed. What is found is kept in build/mutants, so that a run that was
stopped goes on. At the end stand the faults that no test noticed, and the score by module.
Those that change nothing that can be seen are listed, with the reason, in equivalent.toml.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.mutants.children import ENDLESS, Child, Ran, preload
from tests.mutants.mutations import Mutation
from tests.mutants.records import Tests, copied_tree, covering, digest, recorded, test_files
from tests.mutants.tables import COUNT, ROOT, SEED, Known, beside, broader, draw, known

BUDGET = 20.0  # seconds that either set of tests of one fault may take, as it takes without it
CONTROLS = 4  # faults whose tests are run without it first
MUST = 0.95  # of the faults that are not equivalent


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="modules, e.g. 'training/*'")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT, help="faults over all modules")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutants")
    parser.add_argument("--beside", action="store_true", help="no tests but those beside a module")
    parser.add_argument("--equivalent", action="store_true", help="try those too that are listed")
    parser.add_argument("--trust", action="store_true", help="keep what an earlier run noticed")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the children end too
    tree = copied_tree(ROOT, options.out / "tree")
    sys.path[:] = [str(tree / "src"), str(tree), *(p for p in sys.path if p != str(ROOT / "src"))]
    os.environ["PYTHONPATH"] = str(tree / "src")
    preload()
    lists, every = known(), draw(tree, count=options.count, seed=options.seed, only=options.only)
    faults = [fault for fault in every if options.equivalent or fault.key not in lists.equivalent]
    results = Results(options.out / "results.jsonl", tree, trust=options.trust)
    for near in (True,) if options.beside else (True, False):
        files = {file for fault in faults for file in beside(fault.module, tree)}
        if not near and any(not results.is_done(fault) for fault in faults):
            files |= set(broader(tree))
        tests = recorded(tree, sorted(files), options.out / "records", options.workers)
        leave_out_frail(faults, tests, results, tree, near=near)
        try_all(faults, tests, results, tree, options.workers, near=near)
    score = report(every, results, lists)
    sys.exit(score < MUST)


class Results:
    """What is known of each fault. Found by the same package and tests, it holds; otherwise only
    the test that noticed it is of use: it is tried first."""

    def __init__(self, path: Path, tree: Path, *, trust: bool) -> None:
        self._path, self._trust = path, trust
        self._state = digest([*(tree / "src").rglob("*.py"), *test_files(tree)])
        self._held: dict[tuple[str, ...], dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            one = json.loads(line)
            self._held[tuple(one["key"])] = one

    def get(self, fault: Mutation) -> dict[str, Any] | None:
        one = self._held.get(fault.key)
        if one is not None and (one["state"] == self._state or (self._trust and one["by"])):
            return one
        return None

    def is_done(self, fault: Mutation, *, near: bool = False) -> bool:
        """Noticed, or tried with all tests; `near`: with those beside it at least."""
        one = self.get(fault)
        return one is not None and (near or bool(one["by"]) or one["all"])

    def noticed_by(self, fault: Mutation) -> str | None:
        """The test that noticed it before, if that is known."""
        by: str | None = self._held.get(fault.key, {}).get("by")
        return by

    def add(self, fault: Mutation, ran: Ran, *, all: bool) -> None:
        before = self.get(fault)
        one = {
            "key": fault.key,
            "state": self._state,
            "by": ran.failed,
            "all": all,
            "tests": ran.count + (before["tests"] if before else 0),
            "seconds": round(ran.seconds, 1),
        }
        self._held[fault.key] = one
        with self._path.open("a") as file:
            file.write(json.dumps(one) + "\n")


def ordered(
    fault: Mutation, tests: Tests, tree: Path, *, near: bool, first: str | None = None
) -> dict[str, float]:
    """The tests that run the place of the fault, with the seconds of each: those in the files
    beside its module (near), or the others. The quickest come first, but of a test with many
    parameters only two before all other tests have had their turn."""
    files = set(beside(fault.module, tree))
    if not near:
        files = {file for file in broader(tree) if file not in files}
    found = {
        name: seconds
        for name, seconds in covering(fault, tests).items()
        if name.split("::")[0] in files or name == first
    }
    turn: dict[str, int] = {}
    ranked = []
    for name in sorted(found, key=lambda name: found[name]):
        function = name.split("[")[0]
        turn[function] = turn.get(function, 0) + 1
        ranked.append((name != first, turn[function] > 2, found[name], name))
    chosen, left = {}, BUDGET
    for *_, seconds, name in sorted(ranked):
        if seconds <= left:
            chosen[name] = seconds
            left -= seconds
    return chosen


def ends(told: str, tree: Path) -> bool:
    """Whether the test that did not end with a fault ends without one, in the same time: on a busy
    machine it may not, and then tells nothing."""
    name = told.removeprefix(ENDLESS)
    return "::" not in name or _alone({name: 0.0}, tree).failed is None


def _alone(tests: dict[str, float], tree: Path) -> Ran:
    """What becomes of these tests without a fault."""
    child = Child(None, tests, tree, tree.parent / "control.log")
    while (ran := child.read()) is None:
        time.sleep(0.02)
    return ran


def leave_out_frail(
    faults: list[Mutation], tests: Tests, results: Results, tree: Path, *, near: bool
) -> None:
    """Tests that fail without a fault, once they are run in another order, would notice anything.
    Some sets of tests are run so, and what fails there is not used."""
    waiting = [fault for fault in faults if not results.is_done(fault, near=near)]
    for fault in random.Random(1).sample(waiting, min(CONTROLS, len(waiting))):
        while chosen := ordered(fault, tests, tree, near=near):
            ran = _alone(chosen, tree)
            if ran.failed is None:
                break
            name = ran.failed.removeprefix(ENDLESS)
            print(f"{ran.failed} fails without a fault, and is not used", flush=True)
            if tests.pop(name, None) is None:
                raise SystemExit(f"tests fail without a fault: see {tree.parent}/control.log")


def try_all(
    faults: list[Mutation],
    tests: Tests,
    results: Results,
    tree: Path,
    workers: int,
    *,
    near: bool,
) -> None:
    """Every fault that is not done, some side by side."""
    waiting = [fault for fault in faults if not results.is_done(fault, near=near)]
    random.Random(0).shuffle(waiting)  # so that the time that is left can be told
    total, began, done, noticed = len(waiting), time.monotonic(), 0, 0
    running: dict[int, tuple[Mutation, Child]] = {}
    while waiting or running:
        slot = next(k for k in range(workers + 1) if k not in running)
        if waiting and slot < workers:
            fault = waiting.pop()
            chosen = ordered(fault, tests, tree, near=near, first=results.noticed_by(fault))
            if chosen:
                log = tree.parent / f"child-{slot}.log"
                running[slot] = fault, Child(fault, chosen, tree, log)
            else:
                nothing = Ran(None, 0, 0.0)
                results.add(fault, nothing, all=not near)
                done += 1
                _progress(done, noticed, total, began, fault, nothing)
            continue
        time.sleep(0.02)
        for slot, (fault, child) in list(running.items()):
            ran = child.read()
            if ran is not None:
                del running[slot]
                if ran.failed and ran.failed.startswith(ENDLESS) and not ends(ran.failed, tree):
                    print(f"{ran.failed} without a fault too, and is not used", flush=True)
                    tests.pop(ran.failed.removeprefix(ENDLESS), None)
                    waiting.append(fault)
                    continue
                results.add(fault, ran, all=not near)
                done, noticed = done + 1, noticed + (ran.failed is not None)
                _progress(done, noticed, total, began, fault, ran)


def _progress(done: int, noticed: int, total: int, began: float, fault: Mutation, ran: Ran) -> None:
    spent = time.monotonic() - began
    left = spent / done * (total - done)
    said = "noticed " if ran.failed else "SURVIVED"
    print(
        f"{done:4d}/{total} {spent:5.0f} s, {left:5.0f} s left, {noticed} noticed | {said} "
        f"{fault.module}:{fault.line} {fault.kind} ({ran.count} tests, {ran.seconds:.1f} s)",
        flush=True,
    )


def report(faults: list[Mutation], results: Results, lists: Known) -> float:
    """The table of survivors and the score by module; returns the score of all."""
    rows: dict[str, list[int]] = {}
    survivors = []
    for fault in faults:
        one = results.get(fault)
        row = rows.setdefault(fault.module, [0, 0, 0])  # noticed, survived, equivalent
        if one is not None and one["by"]:
            row[0] += 1
        elif fault.key in lists.equivalent:
            row[2] += 1
        else:
            row[1] += 1
            survivors.append((fault, one))
    print("\nFaults that no test noticed:\n" if survivors else "\nEvery fault was noticed.")
    for fault, one in survivors:
        where = f"src/stochens/{fault.module}.py:{fault.line}"
        ran = f"{one['tests']} tests" if one and one["tests"] else "no test runs this line"
        print(f"{where} ({fault.kind}; {ran})")
        print(
            f'  [[equivalent]]\n  module = "{fault.module}"\n  function = "{fault.function}"\n'
            f"  before = {_quoted(fault.before)}\n  after = {_quoted(fault.after)}\n"
        )
    print(f"{'module':<28}{'noticed':>8}{'not':>6}{'equivalent':>12}{'score':>8}")
    for name, row in [*rows.items(), ("all", [sum(c) for c in zip(*rows.values(), strict=True)])]:
        print(f"{name:<28}{row[0]:>8}{row[1]:>6}{row[2]:>12}{_score(row):>8.1%}")
    return _score([sum(column) for column in zip(*rows.values(), strict=True)])


def _score(row: list[int]) -> float:
    return row[0] / (row[0] + row[1]) if row[0] + row[1] else 1.0


def _quoted(text: str) -> str:
    return f"'{text}'" if "'" not in text else json.dumps(text, ensure_ascii=False)


if __name__ == "__main__":
    main()
