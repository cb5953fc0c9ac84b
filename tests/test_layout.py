"""The layout is the architecture: a file imports only from its left."""

import ast
import inspect
from pathlib import Path

import pytest

import stochens

ORDER = [
    ["version", "errors"],
    ["randomness", "files", "information", "progress"],
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
    ["metric_inputs"],
    ["metrics"],
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


def test_data_flows_one_way():
    for file in ROOT.rglob("*.py"):
        own = file.relative_to(ROOT).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in LEVEL, f"{own} has no place in the order"
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module == "stochens":
                names = [f"stochens.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stochens."):
                names = [node.module]
            for name in names:
                other = part(name)
                right = other == own or LEVEL[other] < LEVEL[own]
                assert right, f"{file.relative_to(ROOT)} imports {name}, which is not to its left"


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
