"""A network is known by what it computes: nothing that runs one asks for its class.

The tests read the source. What a class is asked for stands in one table, `program/graph.LAYERS`,
and in the files that exchange layers or refuse them.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import stochens
from stochens import networks
from stochens.methods import StochasticLayer

ROOT = Path(stochens.__file__).parent
# What exchanges layers (a method is a rule for layers), refuses them, or describes them; none runs
# a network. `prior` scales by the inputs of a layer, `networks` begins its own.
ABOUT_LAYERS = {"methods", "conversions", "checks", "description", "prior", "networks", "adapter"}
RUNNING = [
    file
    for file in sorted(ROOT.rglob("*.py"))
    if file.relative_to(ROOT).with_suffix("").parts[0] not in ABOUT_LAYERS
]
KNOWN = {
    "program/graph.py": {"Linear", "Conv2d", "FRN"},  # the table
    # a batch norm that is frozen keeps what it was trained with, which members and files must carry
    "posterior/templates.py": {"_BatchNorm", "FrozenBatchNorm"},
    "training/starts.py": {"FrozenBatchNorm"},
    "posterior/shared_noise.py": {"AlwaysDropout"},  # its own, in the place of nn.Dropout
}


def asked(tree: ast.AST) -> Iterator[ast.expr]:
    """Whatever a class is held against: in isinstance, by type(x) is, and in match."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            yield node.args[1]
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_type(side) for side in sides):
                yield from (side for side in sides if not is_type(side))
        if isinstance(node, ast.MatchClass):
            yield node.cls
        if isinstance(node, ast.Subscript) and is_type(node.slice):
            yield node.value
        if isinstance(node, ast.Call) and any(map(is_type, node.args)):  # table.get(type(x))
            yield getattr(node.func, "value", node.func)


def is_type(node: ast.expr) -> bool:
    """type(x), x.__class__, or its name."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__" or (node.attr == "__name__" and is_type(node.value))
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type"


def found(node: ast.expr, module: ModuleType) -> list[Any]:
    """What an expression of names is there, one by one; what it is not is nothing to us."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [one for part in node.elts for one in found(part, module)]
    if isinstance(node, ast.BinOp):
        return [*found(node.left, module), *found(node.right, module)]
    try:
        value = eval(ast.unparse(node), dict(vars(module)))
    except Exception:  # a name of a function's own
        return []
    several = isinstance(value, (tuple, list, set, frozenset, dict))
    return list(value) if several else [value]


def networks_asked(code: str, module: ModuleType) -> set[str]:
    """Classes of networks and layers that the code asks for; not nn.Module, which all are, and not
    StochasticLayer and its kinds, whose noise a kernel has to know."""
    values = [value for node in asked(ast.parse(code)) for value in found(node, module)]
    own = [v for v in values if isinstance(v, type) and issubclass(v, nn.Module)]
    names = [v for v in values if isinstance(v, str) and hasattr(networks, v)]
    known = [v for v in own if v is not nn.Module and not issubclass(v, StochasticLayer)]
    return {v.__name__ for v in known} | {*names}


def test_what_runs_a_network_does_not_ask_what_it_is() -> None:
    seen: dict[str, set[str]] = {}
    for file in RUNNING:
        place = file.relative_to(ROOT)
        name = ".".join(["stochens", *place.with_suffix("").parts]).removesuffix(".__init__")
        try:
            module = importlib.import_module(name)
        except ImportError:  # of an extra that is not installed
            continue
        if names := networks_asked(file.read_text(), module):
            seen[str(place)] = names
    assert seen == KNOWN


def test_networks_of_our_own_are_named_by_nobody_who_runs_them() -> None:
    for file in RUNNING:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "stochens.networks":
                names = {alias.name for alias in node.names}
                allowed = {"__init__.py": {"FRN", "MLP"}, "estimators.py": {"MLP"}}
                assert names <= allowed.get(file.name, {"FRN"}), file
            if isinstance(node, ast.ImportFrom) and node.module == "stochens":
                assert "networks" not in {alias.name for alias in node.names}, file


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(net, MLP)",
        "isinstance(net, (int, nn.Sequential))",
        "isinstance(net, nn.Linear | None)",
        "type(net) is networks.ResNet20FRN",
        "MLP == type(net)",
        "net.__class__ is MLP",
        "type(net) in (MLP, nn.Linear)",
        "type(net) in TABLE",
        "TABLE.get(type(net))",
        "TABLE[type(net)]",
        "type(net).__name__ == 'MLP'",
        "match net:\n    case MLP():\n        pass",
    ],
)
def test_the_reader_sees_it(code: str) -> None:
    here = ModuleType("here")
    vars(here).update(MLP=stochens.MLP, nn=nn, networks=networks, TABLE={stochens.MLP: 1})
    assert networks_asked(code, here)


def test_the_reader_lets_others_pass() -> None:
    here = ModuleType("here")
    vars(here).update(nn=nn, torch=torch, StochasticLayer=StochasticLayer)
    for code in ("isinstance(x, nn.Module)", "type(x) is torch.Tensor", "isinstance(x, here)"):
        assert not networks_asked(code, here)
    assert not networks_asked("isinstance(layer, StochasticLayer)", here)
