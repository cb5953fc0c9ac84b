"""Every Python snippet of the README and the docs runs as written."""

import os
import re
from pathlib import Path

import pytest
import torch

from stochens.posterior.export import OLDEST_TORCH

ROOT = Path(__file__).parents[1]


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


SNIPPETS = snippets(ROOT / "README.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = [
    pytest.param(code, id=f"{page.name}-{k}")
    for page in PAGES
    for k, code in enumerate(snippets(page))
]


@pytest.mark.filterwarnings("error:.* steps of training are few")  # examples are followed
@pytest.mark.parametrize("code", ALL)
def test_snippet_runs(code, tmp_path, monkeypatch):
    if ".export(" in code and torch.__version__ < OLDEST_TORCH:
        pytest.skip(f"export needs torch {OLDEST_TORCH}")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})
    assert os.path.samefile(Path.cwd(), tmp_path)


def test_there_are_snippets_and_the_first_is_short():
    assert len(SNIPPETS) >= 2
    lines = [line for line in SNIPPETS[0].splitlines() if line.strip()]
    assert len(lines) <= 10
