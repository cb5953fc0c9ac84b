"""The layout is the architecture: a file imports only from its left."""

import ast
import functools
import graphlib
import inspect
import sys
from pathlib import Path

import pytest

import stochens
import stochens_lab

LIBRARY = [
    ["version", "errors", "casts", "text_table"],
    ["private_names", "trees"],
    ["randomness", "files"],
    ["metrics"],
    ["figures"],
    ["networks", "toy"],
    ["conversions"],
    ["recurrent", "products"],
    ["members"],
    ["checks", "adapter"],
    ["moved"],
    ["methods"],
    ["likelihoods"],
    ["prior"],
    ["objective"],
    ["run"],
    ["streams"],
    ["reading"],
    ["data"],
    ["inputs"],
    ["kernels"],
    ["program"],
    ["description"],
    ["reference_noise"],
    ["comparison"],
    ["report"],
    ["posterior"],
    ["training"],
    ["samplers"],
    ["estimators", "lightning"],
]
LABORATORY = [["npz"], ["data"], ["report"], ["experiments"], ["workflow"], ["cli"], ["__main__"]]
ROOTS = {
    "stochens": (Path(stochens.__file__).parent, LIBRARY),
    "stochens_lab": (Path(stochens_lab.__file__).parent, LABORATORY),
}
ROOT = ROOTS["stochens"][0]


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


parsed = functools.cache(lambda file: ast.parse(file.read_text()))


def imported(file: Path, package: str) -> set[str]:
    """Modules of this package that a file imports, as PACKAGE.PART.NAME."""
    found: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == package}
    return found


@pytest.mark.parametrize("package", ROOTS)
def test_data_flows_one_way(package):
    root, order = ROOTS[package]
    level = {name: k for k, names in enumerate(order) for name in names}
    for file in root.rglob("*.py"):
        own = file.relative_to(root).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in level, f"{own} has no place in the order"
        for name in imported(file, package) - {package}:
            other = part(name)
            right = other == own or level.get(other, 0) < level[own]
            assert right, f"{file.relative_to(root)} imports {name}, which is not to its left"


def test_the_library_never_imports_the_laboratory():
    for file in ROOT.rglob("*.py"):
        assert not imported(file, "stochens_lab"), f"{file} imports the laboratory"


@pytest.mark.parametrize("package", ROOTS)
def test_no_two_files_of_a_part_need_each_other(package):
    root, _ = ROOTS[package]
    for folder in filter(Path.is_dir, root.rglob("*")):
        here = f"{package}.{'.'.join(folder.relative_to(root).parts)}"
        own = {f"{here}.{file.stem}" for file in folder.glob("*.py")}
        needs = {f"{here}.{f.stem}": imported(f, package) & own for f in folder.glob("*.py")}
        list(graphlib.TopologicalSorter(needs).static_order())  # raises on a circle


NEEDED = {"torch", "numpy", "safetensors"}


def test_the_library_imports_three_packages_and_no_more():
    """Of what is not Python's own: functions import the rest when it is asked for."""
    for file in ROOT.rglob("*.py"):
        others = ("estimators.py", "lightning.py", "style.py")
        if file.name in others or file.parent.name == "report":
            continue  # of others' classes or with figures in them: they come when asked for
        for node in parsed(file).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {n.split(".")[0] for n in names} - NEEDED - {"stochens"}:
                assert name in sys.stdlib_module_names, f"{file} imports {name}"


@pytest.mark.parametrize("name", ["ray", "fsspec", "arviz", "pyarrow", "wandb", "mlflow"])
def test_what_is_optional_is_imported_when_it_is_asked_for(name):
    for file in ROOTS["stochens_lab"][0].rglob("*.py"):
        for node in parsed(file).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert name not in [found.split(".")[0] for found in names], f"{file} imports {name}"


def test_there_is_one_checksum_and_one_lock():
    """SHA-256 by files/hashing.py, and filelock by run/checkpoints.py."""
    others = {
        "files/hashing.py",
        "training/alike.py",  # a short fingerprint in memory
        "data/hmc_reference.py",  # the order of TensorFlow Datasets is by MD5
        "report/shell.py",  # what a browser compares
    }
    for root, _ in ROOTS.values():
        for file in root.rglob("*.py"):
            text, name = file.read_text(), str(file.relative_to(root))
            assert ("import hashlib" in text) <= (name in others), file
            assert ("filelock import" in text) <= (name == "run/checkpoints.py"), file
            assert "fcntl" not in text, file


def test_no_pickle_is_loaded():
    for file in ROOT.parent.rglob("*.py"):
        text = file.read_text()
        for unsafe in ("torch.load(", "pickle.load", "allow_pickle=True"):
            assert unsafe not in text, f"{file} uses {unsafe}"


def test_every_public_name_is_documented_with_an_example():
    for module in (stochens.calibration, stochens.selection, stochens.acquisition):
        for name in module.__all__:
            assert ">>>" in (getattr(module, name).__doc__ or ""), f"{module.__name__}.{name}"
    for name in set(stochens.__all__) - {"__version__", "metrics"}:
        public = getattr(stochens, name)
        assert ">>>" in (public.__doc__ or ""), name
        if inspect.isclass(public):
            methods = inspect.getmembers(public, inspect.isfunction)
            own = [(n, m) for n, m in methods if m.__module__.startswith("stochens.")]
            for method, function in own:
                # what every method of its kind has is told where the kind is
                told = method.startswith("_") or inspect.getdoc(getattr(public, method))
                assert told or method in ("forward", "options", "rate", "reset_parameters"), (
                    f"{name}.{method} of {function.__module__}"
                )
    for name, metric in inspect.getmembers(stochens.metrics, inspect.isfunction):
        if metric.__module__ == "stochens.metrics" and not name.startswith("_"):
            assert ">>>" in (metric.__doc__ or ""), f"metrics.{name}"


def test_the_laboratory_has_no_class_of_the_librarys_name() -> None:
    """`Run` was both: how something runs, and what a run has left in its folder."""
    classes = {
        node.name
        for file in ROOTS["stochens_lab"][0].rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
    }
    assert "SavedRun" in classes
    assert classes & set(stochens.__all__) == set()
