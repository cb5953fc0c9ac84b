"""The ten lines of docs/pretrained.md that need transformers or timm, run as they stand there."""

import ast
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from stochens.posterior.export_program import OLDEST_TORCH

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"
SNIPPETS = dict(re.findall(r"^### ([\w\- ]+)\n+```py\n(.*?)```", PAGE.read_text(), re.M | re.S))


@pytest.fixture(scope="module", autouse=True)
def libraries():
    # One that was built for another torch fails in this part alone, which no network here needs.
    sys.modules.setdefault(
        "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
    )


def test_the_page_has_all_five():
    assert list(SNIPPETS) == ["BERT", "DistilBERT", "ViT", "GPT-2", "A ResNet of timm"]
    for code in SNIPPETS.values():
        assert len(ast.parse(code).body) <= 10
        assert "class " not in code


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}"
)
@pytest.mark.parametrize("name", SNIPPETS)
def test_ten_lines(name, tmp_path, monkeypatch):
    library = "timm" if "timm" in SNIPPETS[name] else "transformers"
    pytest.importorskip(library, reason=f"the example needs {library}")
    if ".onnx" in SNIPPETS[name]:
        pytest.importorskip("onnxscript", reason="ONNX needs stochens[onnx]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts without noise, and of members in a loop
        exec(compile(SNIPPETS[name], name, "exec"), names)
    posterior, net, p = names["posterior"], names["net"], names["p"]
    assert p.mean.shape == (32, 2)
    assert any(path.suffix in (".onnx", ".pt2") for path in tmp_path.iterdir())
    # a member without its noise is the network that the user gave, with other weights
    net.load_state_dict(posterior.member(0), strict=True)
    run_exported(names, tmp_path)


def run_exported(names, folder):
    """The file computes what `predict` does with the same noise."""
    posterior, (path,) = names["posterior"], [p for p in folder.iterdir() if p.suffix]
    x = names.get("x", names.get("data"))
    wanted = posterior.predict(x, noise="shared").mean
    inputs = {"x": x} if "x" in names else {k: t for k, t in x.items() if k != "labels"}
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        given = x if "x" in names else inputs
        got = module(given, posterior.noise_inputs())[0]
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        onnxruntime.set_default_logger_severity(3)
        session = onnxruntime.InferenceSession(path)
        got = torch.tensor(session.run(None, {n: t.numpy() for n, t in inputs.items()})[0])
        short = {n: t[:5, :7] for n, t in inputs.items()}  # another length, and another batch
        noise = posterior.noise_inputs(short)
        feed = {n: t.numpy() for n, t in (short | noise).items()}
        ours = posterior.predict(short, noise="shared").mean
        theirs = torch.tensor(session.run(None, feed)[0])
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=3e-6)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=3e-6)  # float32, in another order
