"""Private names of other packages: used in one file only, and what happens where one is gone."""

import ast
import importlib
import logging
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import sklearn.utils.validation
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

import stochens
from stochens import checks, private_names
from stochens.errors import InputError
from stochens.kernels import build
from stochens.posterior.export import _no_word_of_torchvision
from stochens.posterior.export_program import OLDEST_TORCH
from stochens.private_names import NAMES, base

ROOT = Path(stochens.__file__).parent
HOME = "private_names.py"
DOCUMENTED = {"_asdict", "_replace", "_fields", "_make", "_fields_"}  # of named tuples, and ctypes
BY_STRING = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "import_module"}
DATA = stochens.toy_set("a", n=40)
FEW = {"members": 2, "epochs": 2, "lr": 0.01}


def private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Names of attributes that a file of ours makes: methods, fields, and what is set on self."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    found.add(part.name)
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    found.add(part.target.id)
                if isinstance(part, ast.Assign):
                    found |= {t.id for t in part.targets if isinstance(t, ast.Name)}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def of_torch(name: str) -> bool:
    """Whether modules or tensors have it, so that an attribute of ours by that name would be it."""
    return hasattr(nn.Module(), name) or hasattr(Tensor, name)


def foreign(tree: ast.AST, own: set[str]) -> list[str]:
    """Private names of others in a file, where `own` are the attributes that are ours."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if node.attr not in DOCUMENTED and (node.attr not in own or of_torch(node.attr)):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "stochens":
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node)] * any(map(private, names))
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
            found += [ast.unparse(node)] * any(map(private, names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " in node.value:  # a sentence, or what a pickle calls its parts
                continue
            first, *rest = node.value.split(".")
            packages = ("torch", "sklearn", "numpy", "matplotlib", "rich", "ray", "onnx")
            found += [node.value] * (first in packages and any(map(private, rest)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_STRING:
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            names = [t for t in texts if isinstance(t, str) and private(t)]
            found += [name for name in names if name not in own | DOCUMENTED or of_torch(name)]
        elif isinstance(node, ast.ClassDef):  # what we override is called by others
            names = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found += [f"def {name}" for name in names if private(name) and of_torch(name)]
    return found


TREES = {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in ROOT.rglob("*.py")}
OURS = set().union(*map(defined, TREES.values()))


def test_no_other_file_uses_a_private_name():
    found = {name: foreign(tree, OURS) for name, tree in TREES.items() if name != HOME}
    assert found.pop("methods/base.py") == ["def _apply"]  # in the table too, and checked for
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "code",
    [
        "torch._C._get_tracing_state()",
        "import torch._dynamo",
        "from torch._functorch import config",
        "from sklearn.utils.validation import _num_samples",
        "module._forward_hooks",
        "self._modules",
        "getattr(module, '_modules')",
        "setattr(checkpoint, '_checkpoint_hook', None)",
        "logging.getLogger('torch._inductor')",
        "figure.axes[0]._get_lines",
        "class Layer(nn.Module):\n    def _load_from_state_dict(self): ...",
    ],
)
def test_each_way_to_use_one_is_seen(code):
    assert foreign(ast.parse(code), {"_own"})
    assert not foreign(ast.parse("self._own, row._asdict(), getattr(self, '_own')"), {"_own"})


def test_the_table_has_what_the_file_uses_and_no_more():
    text = (ROOT / HOME).read_text()
    body = text[text.index("# What a module holds") :]
    own = {node.name for node in TREES[HOME].body if isinstance(node, ast.FunctionDef)}
    own |= {"_Refused", "_BASES", *DOCUMENTED}
    texts: list[object] = []
    for node in ast.walk(ast.parse(body)):
        texts += [getattr(node, "attr", ""), getattr(node, "module", "")]
        texts += [node.value] if isinstance(node, ast.Constant) else []
        texts += [part.name for part in ast.iter_child_nodes(node) if isinstance(part, ast.alias)]
    parts = [part for t in texts if isinstance(t, str) and " " not in t for part in t.split(".")]
    used = set(filter(private, parts))
    listed = {part for entry in NAMES for part in entry.name.split(".") if private(part)}
    assert used - own == listed
    assert all(all(entry) for entry in NAMES)


@pytest.mark.parametrize("entry", NAMES, ids=lambda entry: entry.name)
def test_is_there_in_this_version(entry):
    """One that fails here is gone from a newer version: its other way is in use, for good."""
    package, *rest = entry.name.split(".")
    if rest[0] == "cuda" and torch.__version__ < entry.since:
        pytest.skip(f"since torch {entry.since}")
    if rest[:2] == ["nn", "Module"]:
        assert hasattr(nn.Module(), rest[2])
        return
    try:
        attrgetter(".".join(rest))(importlib.import_module(package))
    except AttributeError:  # a module that its package does not import
        importlib.import_module(entry.name)


# Each one gone ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (private_names.parts_of, "_modules"),
        (private_names.parameters_of, "_parameters"),
        (private_names.buffers_of, "_buffers"),
        (private_names.unsaved_buffers_of, "_non_persistent_buffers_set"),
        (private_names.hooks_of, "_forward_hooks"),
        (private_names.pre_hooks_of, "_forward_pre_hooks"),
        (private_names.called_around, "_backward_hooks"),
        (private_names.called_around, "_backward_pre_hooks"),
    ],
)
def test_what_a_module_holds_elsewhere_is_an_error_with_a_remedy(read, name):
    module = nn.Linear(2, 2)
    assert list(read(module)) == list(getattr(module, name))
    del module.__dict__[name]
    with pytest.raises(InputError, match=rf"Linear has no {name} in torch .*pip install 'torch>="):
        read(module)


def test_no_layer_is_made_stochastic_where_nothing_would_move_what_is_inside(monkeypatch):
    monkeypatch.delattr(nn.Module, "_apply")
    with pytest.raises(InputError, match="Module has no _apply in torch"):
        stochens.Dropout(0.1).wrap(nn.Linear(2, 2), "layer")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 2)

    def forward(self, x):
        x = x.unsqueeze(1)
        return self.head(self.attention(x, x, x)[0].squeeze(1))


def test_attention_without_its_reset_asks_for_a_function(monkeypatch):
    net = Attention()
    monkeypatch.delattr(nn.MultiheadAttention, "_reset_parameters")
    with pytest.raises(InputError, match=r"cannot be initialised again.*fit\(lambda: MyNet\(\)"):
        stochens.fit(net, DATA, method="regular", **FEW)


@pytest.mark.parametrize("name", private_names._BASES)
def test_public_classes_stand_for_a_base_that_is_gone(name, monkeypatch):
    true = base(name)
    kinds = [kind for kind in vars(nn).values() if isinstance(kind, type)]
    monkeypatch.delattr(private_names._BASES[name][0], name)
    stand_in = base(name)
    assert stand_in is not true
    assert [k for k in kinds if issubclass(k, stand_in)] == [
        k for k in kinds if issubclass(k, true)
    ]
    assert isinstance(nn.Linear(1, 1), (nn.Linear, stand_in))


@pytest.mark.parametrize(
    "norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm], ids=["new", "old"]
)
def test_spectral_norm_by_another_name_is_refused_by_what_it_does(norm, monkeypatch):
    monkeypatch.setattr(checks, "SPECTRAL", ())

    def net():  # a function, since its layers have no reset
        return nn.Sequential(norm(nn.Linear(2, 3)), nn.ReLU(), nn.Linear(3, 2))

    with pytest.raises(InputError, match="changes the buffer"):
        stochens.fit(net, DATA, method="regular", **FEW)


class Unversioned(Tensor):
    @property
    def _version(self):  # type: ignore[override]  # torch declares an attribute
        raise AttributeError("_version")


def test_a_change_in_place_is_seen_without_a_version():
    for x in (torch.tensor([1.0, torch.nan]), torch.tensor([1, 2]), torch.tensor([True, False])):
        unversioned = x.as_subclass(Unversioned)
        assert not hasattr(unversioned, "_version")
        for tensor in (x.clone(), unversioned):
            changed = private_names.changes(tensor)
            assert not changed()
            tensor[0] = 0
            assert changed()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(checkpoint.checkpoint(self.body, x, use_reentrant=False))


def test_checkpointing_is_refused_without_a_look_inside(monkeypatch):
    by_name = checkpoint.checkpoint
    by_name(torch.sin, torch.zeros(1), use_reentrant=False)  # torch.compile, too, looks for it once
    with monkeypatch.context() as gone:
        gone.delattr(checkpoint, "_checkpoint_without_reentrant_generator")
        with pytest.raises(InputError, match=r"uses torch\.utils\.checkpoint"):
            stochens.fit(Checkpointed(), DATA, method="regular", **FEW)
    assert by_name(torch.sin, torch.zeros(1), use_reentrant=False) == 0  # as it was


def test_a_state_is_copied_one_by_one(monkeypatch):
    def copied() -> list[Tensor]:
        to = [torch.zeros(2), torch.zeros(3, dtype=torch.long)]
        private_names.copy_all(to, [torch.ones(2), torch.arange(3)])
        return to

    together = copied()
    monkeypatch.delattr(torch, "_foreach_copy_")
    assert all(map(torch.equal, copied(), together))


def test_without_a_compiler_no_cuda_kernel_is_meant_to_run(monkeypatch):
    monkeypatch.delenv("STOCHENS_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", None, raising=False)
    assert build.cuda_compiles()
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    assert not build.cuda_compiles()


@pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}")
def test_export_without_scan_says_so(tmp_path, monkeypatch):
    posterior = stochens.fit(stochens.MLP(2, 3, 2), DATA, method="regular", **FEW)
    monkeypatch.setitem(sys.modules, "torch._higher_order_ops.scan", None)
    with pytest.raises(InputError, match=r"no torch\._higher_order_ops\.scan.*pip install"):
        posterior.export(tmp_path / "net.pt2", DATA[0])


def test_a_log_by_another_name_says_what_it_says(caplog, monkeypatch):
    monkeypatch.setattr("stochens.posterior.export.ONNX_LOG", "torch.onnx.gone")
    for name, lines in [("torch.onnx.gone", 0), (private_names.ONNX_LOG, 1)]:
        log = logging.getLogger(name)
        log.addHandler(caplog.handler)  # torch's own setting up of logs ends what caplog relies on
        monkeypatch.setattr(log, "propagate", False)
        try:
            with _no_word_of_torchvision():
                log.warning("torchvision is not installed")
        finally:
            log.removeHandler(caplog.handler)
        assert len(caplog.records) == lines


def test_sample_weights_are_checked_alike(monkeypatch):
    x = np.zeros((3, 2))
    good = [[1, 2, 3], np.ones(3, dtype=np.float32), 2.0]
    bad = [[1, 2], [[1], [2], [3]], [1, np.nan, 1], ["a", "b", "c"]]
    before = [private_names.check_sample_weight(w, x) for w in good]
    for gone in (False, True):
        if gone:
            monkeypatch.delattr(sklearn.utils.validation, "_check_sample_weight")
        for weights, known in zip(good, before, strict=True):
            found = private_names.check_sample_weight(weights, x)
            assert found.dtype == known.dtype == np.float64
            assert np.array_equal(found, known)
        for weights in bad:
            with pytest.raises(ValueError, match=r"(?i)sample.weight|could not convert"):
                private_names.check_sample_weight(weights, x)
