"""The layout is the architecture: a file imports only from its left."""

import ast
import graphlib
import inspect
from pathlib import Path

import pytest

import stochens

ORDER = [
    ["version", "errors", "precision"],
    ["private_names"],
    ["randomness", "files", "information", "progress"],
    ["metric_inputs", "ece_noise"],
    ["metrics"],
    ["data"],
    ["networks"],
    ["conversions"],
    ["members"],
    ["checks", "memory", "spread"],
    ["methods"],
    ["likelihoods"],
    ["objective"],
    ["kernels"],
    ["predict"],
    ["cluster"],
    ["result"],
    ["training"],
    ["posteriors"],
    ["estimators"],
    ["report"],
    ["experiments"],
    ["own"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
ROOT = Path(stochens.__file__).parent


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(file: Path) -> set[str]:
    """Modules of ours that a file imports, as stochens.PART.NAME."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stochens":
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found - {"stochens"}


def test_data_flows_one_way():
    for file in ROOT.rglob("*.py"):
        own = file.relative_to(ROOT).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in LEVEL, f"{own} has no place in the order"
        for name in imported(file):
            other = part(name)
            right = other == own or LEVEL.get(other, 0) < LEVEL[own]
            assert right, f"{file.relative_to(ROOT)} imports {name}, which is not to its left"


def test_no_two_files_of_a_part_need_each_other():
    for folder in filter(Path.is_dir, ROOT.iterdir()):
        own = {f"stochens.{folder.name}.{file.stem}" for file in folder.glob("*.py")}
        needs = {f"stochens.{folder.name}.{f.stem}": imported(f) & own for f in folder.glob("*.py")}
        list(graphlib.TopologicalSorter(needs).static_order())  # raises on a circle


@pytest.mark.parametrize("name", ["ray", "fsspec", "arviz", "pyarrow", "wandb"])
def test_what_is_optional_is_imported_when_it_is_asked_for(name):
    """And so `import stochens` never imports it: only functions do."""
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert name not in [found.split(".")[0] for found in names], f"{file} imports {name}"


def test_no_pickle_is_loaded():
    for file in ROOT.rglob("*.py"):
        text = file.read_text()
        for unsafe in ("torch.load(", "pickle.load", "allow_pickle=True"):
            assert unsafe not in text, f"{file} uses {unsafe}"


def test_every_public_name_is_documented_with_an_example():
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
