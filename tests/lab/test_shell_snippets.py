"""Every command of the README and the docs is one that there is, with options that it has; those
for a user's own model run as written."""

import argparse
import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import typer
from tests.test_readme import PAGES, ROOT

import stochens
from stochens_lab.cli import app

BENCHMARKS = ROOT / "benchmarks" / "README.md"
NOT_OURS = ("git", "cd", "--8<--")  # --8<--: a file that is put in, which has tests of its own


def blocks(page: Path, *languages: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The words of each."""
    lines = "".join(blocks(page, "bash", "")).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in line.split(" && ")]
    return [words for part in parts if (words := shlex.split(part, comments=True))]


ALL = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:100])
    for page in (*PAGES, BENCHMARKS)
    for words in commands(page)
]


class Parsed(Exception):
    """The words were understood; nothing is run."""


def understood_by_stochens(words: list[str]) -> None:
    group = typer.main.get_group(app)
    command = group.commands[words[0]]
    command.make_context(words[0], words[1:])  # an unknown option or a missing word is an error


def understood_by_script(path: Path, words: list[str], monkeypatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, *_) -> None:
        parse(parser, words)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.syspath_prepend(path.parent)  # as python does with a script
    spec = importlib.util.spec_from_file_location(f"_{path.stem}", path)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # where dataclasses look for it
    spec.loader.exec_module(script)
    with pytest.raises(Parsed):
        script.main()


@pytest.mark.parametrize("words", ALL)
def test_a_command_is_one_that_there_is(words, monkeypatch):
    match words:
        case ["stochens", *rest]:
            understood_by_stochens(rest)
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python", "-m", "pytest", path]:
            assert (ROOT / path).exists()
        case ["python", "-m", module, *_]:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists()
        case ["python", script, *rest]:
            understood_by_script(ROOT / script, rest, monkeypatch)
        case ["pip", "install", "stochens"]:
            pass
        case ["pip", "install", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            named = re.findall(r"\[(.*)\]", what)
            assert set(named) <= set(extras["optional-dependencies"])
        case [first, *_]:
            assert first in NOT_OURS


NET = """
import torch.nn as nn

def make_net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def test_those_for_ones_own_model_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mypkg", raising=False)
    (tmp_path / "mypkg.py").write_text(NET)
    numbers = np.random.default_rng(0)
    for name in ("train", "new", "test", "other"):
        rows = [
            f"{a:.3f},{b:.3f},{int(a > 0) + int(b > 0)}" for a, b in numbers.normal(size=(40, 2))
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,species", *rows]))
    page = ROOT / "docs" / "command-line.md"
    own = [words for words in commands(page) if "runs/iris" in words]
    assert [words[1] for words in own[:4]] == ["fit", "predict", "evaluate", "compare"]
    again = ["runs/regular" if word.startswith("runs/") else word for word in own[0]]
    for words in (own[0], again, *own[1:]):
        if "--resume" in words:  # a run that was stopped: tests/lab/workflow/test_stopped.py
            continue
        with pytest.raises(SystemExit) as ended:
            app(words[1:])
        assert not ended.value.code, words
    assert (tmp_path / "predictions.parquet").exists()


def test_calls_that_need_a_cluster_fit_what_they_call():
    """Nothing is run: names and arguments are checked."""
    (code,) = blocks(ROOT / "docs/cluster.md", "py")
    library = mock.create_autospec(stochens)
    library.fit.return_value = mock.create_autospec(stochens.Posterior, instance=True)
    names = dict.fromkeys(("net", "x", "y", "x_test"), mock.sentinel.given)
    with mock.patch.dict(sys.modules, stochens=library):
        exec(compile(code, "snippet", "exec"), names)
    assert library.fit.call_count == 2
    assert library.fit.return_value.predict.called
