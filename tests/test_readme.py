"""Python snippets of the README and the docs run as written, and fit their column."""

import os
import re
from pathlib import Path

import pytest
import torch

from stochens.posterior.export_program import OLDEST_TORCH

ROOT = Path(__file__).parents[1]
RUN = "<!-- run -->"  # at the top of a page whose snippets go on from each other (docs/hooks)
COLUMN = 76  # letters of code beside the site's two side columns


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


SNIPPETS = snippets(ROOT / "README.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHAINED = [page for page in PAGES if page.read_text().startswith(RUN)]
ALONE = [page for page in PAGES if page not in CHAINED]
ALL = [  # those of the other pages run when the docs are built (docs/hooks/snippets.py)
    pytest.param([code], id=f"{page.name}-{k}")
    for page in ALONE
    for k, code in enumerate(snippets(page))
]


@pytest.mark.filterwarnings("error:.* steps of training are few")  # examples are followed
@pytest.mark.parametrize("codes", ALL)
def test_snippets_run(codes, tmp_path, monkeypatch):
    if any(".export(" in code for code in codes) and torch.__version__ < OLDEST_TORCH:
        pytest.skip(f"export needs torch {OLDEST_TORCH}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, object] = {}
    for k, code in enumerate(codes):
        exec(compile(code, f"snippet {k}", "exec"), names)
    assert os.path.samefile(Path.cwd(), tmp_path)
    if "plt" in names:
        names["plt"].close("all")


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    lines = [line for line in SNIPPETS[0].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_code_fits_the_column(page):
    fenced = re.compile(r"^```(?:python|py|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = fenced.findall(page.read_text())
    assert not [line for code in blocks for line in code.splitlines() if len(line) > COLUMN]


def test_the_map_has_at_most_20_files_and_they_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## The map")[1].split("\n## ")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert 10 < len(files) <= 20
    assert all((ROOT / "src" / "stochens" / file).exists() for file in files)
