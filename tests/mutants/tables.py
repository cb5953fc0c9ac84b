"""What is mutated, which tests stand beside it, and which faults are none."""

import ast
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutations import Mutation, drawn, mutations, quotas

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("equivalent.toml")
SEED, COUNT = 0, 300

# Modules, and where their tests are, which are run first; the first line that fits counts. A
# module's own examples are always among them.
BESIDE: dict[str, tuple[str, ...]] = {
    "members": ("tests/test_members.py",),
    "likelihoods/*_views": ("tests/figures/test_*.py", "tests/report/test_*.py"),
    "likelihoods/*": (
        *("tests/test_likelihoods.py", "tests/likelihoods/test_*.py"),
        "tests/posterior/test_*.py",
    ),
    "objective": ("tests/test_objective.py",),
    "metrics/*": ("tests/metrics/test_*.py",),
    "methods/*": ("tests/methods/test_*.py", "tests/test_objective.py"),
    "training/machines": ("tests/training/test_machines.py", "tests/test_cluster.py"),
    "training/*": ("tests/training/test_*.py",),
    "samplers/swag": ("tests/test_swag.py",),
    "samplers/*": ("tests/samplers/test_*.py",),
    "posterior/reporting": ("tests/report/test_*.py",),
    "posterior/export": (
        *("tests/posterior/test_export.py", "tests/posterior/test_parts.py"),
        "tests/inputs/test_export_trees.py",
    ),
    "posterior/machines": ("tests/posterior/test_machines.py", "tests/test_cluster.py"),
    "posterior/*": ("tests/posterior/test_*.py",),
}
# Further tests, for what is left then.
BROADER = (
    *("tests/posterior/test_*.py", "tests/randomness/test_*.py", "tests/run/test_*.py"),
    *("tests/inputs/test_*.py", "tests/description/test_*.py", "tests/program/test_prefix.py"),
    *(
        "tests/test_[cdmnprt]*.py",
        "tests/faults/test_checkpoints.py",
        "tests/faults/test_poison.py",
    ),
    *("tests/faults/test_loaders.py", "tests/lab/workflow/test_kinds.py"),
    *("tests/estimators/test_estimators.py", "tests/kernels/test_fused.py"),
)
# Another sampler's package, whose threads do not live through a fork; minutes, for others than it.
LEFT_OUT = ("tests/samplers/test_samplers_numpyro.py",)
SLOW = (
    *("tests/posterior/test_export.py", "tests/inputs/test_export_trees.py"),
    *("tests/inputs/test_ray_trees.py", "tests/test_cluster.py"),
    *("tests/test_cuda.py", "tests/test_packaging.py"),
    *("tests/test_readme.py", "tests/test_readme_numbers.py", "tests/test_private_names.py"),
)


class Known(NamedTuple):
    """The list of equivalent faults, and of functions that only another machine runs."""

    equivalent: dict[tuple[str, str, str, str], str]  # reason by key
    elsewhere: dict[tuple[str, str], str]  # reason by module and pattern of functions


def known(path: Path = KNOWN) -> Known:
    with path.open("rb") as file:
        table = tomllib.load(file)
    equivalent = {
        (e["module"], e["function"], e["before"], e["after"]): e["reason"]
        for e in table.get("equivalent", [])
    }
    elsewhere = {(e["module"], e["function"]): e["reason"] for e in table.get("elsewhere", [])}
    return Known(equivalent, elsewhere)


def modules(root: Path = ROOT) -> list[str]:
    """Every module that is mutated, by name."""
    package = root / "src/stochens"
    names = (str(p.relative_to(package).with_suffix("")) for p in package.rglob("*.py"))
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in BESIDE))


def source_of(module: str, root: Path = ROOT) -> str:
    return (root / "src/stochens" / f"{module}.py").read_text()


def candidates(module: str, lists: Known, root: Path = ROOT) -> list[Mutation]:
    """Its faults, but for functions that only another machine runs."""
    away = [pattern for name, pattern in lists.elsewhere if name == module]
    return [
        one
        for one in mutations(source_of(module, root), module)
        if not any(fnmatch(one.function, pattern) for pattern in away)
    ]


def draw(
    root: Path = ROOT, *, count: int = COUNT, seed: int = SEED, only: Sequence[str] = ("*",)
) -> list[Mutation]:
    """The faults of this run: `count` over all modules, by their lines; `only` some of those."""
    lists = known()
    possible = {name: candidates(name, lists, root) for name in modules(root)}
    places = {name: len({one.path for one in found}) for name, found in possible.items()}
    lines = {name: _lines(source_of(name, root)) for name in possible if places[name]}
    return [
        one
        for name, share in quotas(lines, places, count).items()
        if any(fnmatch(name, pattern) for pattern in only)
        for one in drawn(possible[name], share, seed)
    ]


def _lines(source: str) -> int:
    """Lines with code on them: no comments, docstrings or empty ones."""
    statements = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt)]
    texts = [
        n
        for n in statements
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant | ast.JoinedStr)
    ]
    held = {line for n in statements for line in range(n.lineno, (n.end_lineno or 0) + 1)}
    held -= {line for n in texts for line in range(n.lineno, (n.end_lineno or 0) + 1)}
    written = source.splitlines()
    return sum(1 for k in held if written[k - 1].strip() and written[k - 1].strip()[0] != "#")


def beside(module: str, root: Path = ROOT) -> list[str]:
    """Test files beside a module, its own examples first."""
    own = f"src/stochens/{module}.py"
    patterns = next(list(ps) for name, ps in BESIDE.items() if fnmatch(module, name))
    found = _files(patterns, root)
    return [own, *(file for file in found if file in patterns or file not in SLOW)]


def broader(root: Path = ROOT) -> list[str]:
    """Every file with tests that may notice a fault: those beside any module, and more."""
    own = [f"src/stochens/{name}.py" for name in modules(root)]
    found = _files([p for ps in BESIDE.values() for p in ps] + list(BROADER), root)
    return own + [file for file in found if file not in SLOW]


def _files(patterns: list[str], root: Path) -> list[str]:
    found = [str(p.relative_to(root)) for pattern in patterns for p in sorted(root.glob(pattern))]
    return [name for name in dict.fromkeys(found) if name not in LEFT_OUT]
