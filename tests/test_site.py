"""What the site's hook makes of a page: its code is run, and what comes of it stands below."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = """<!-- run -->
# A page

```python
a = 2
print(a)
```

## `Numbers`

```python
from matplotlib import pyplot as plt
plt.plot([a, a + 1])
```
"""


@pytest.fixture
def hook(tmp_path, monkeypatch):
    path = ROOT / "docs" / "hooks" / "snippets.py"
    spec = importlib.util.spec_from_file_location("_snippets", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MADE", tmp_path)
    return module


class Page:
    class file:
        src_uri = "tutorials/page.md"


def test_what_a_snippet_prints_and_draws_stands_below_it(hook, monkeypatch):
    text = hook.on_page_markdown(PAGE, Page)
    assert '```\n\n```text title="It prints"\n2\n```\n' in text
    (folder,) = hook.MADE.iterdir()
    assert text.endswith(f"```\n\n![Numbers](../made/{folder.name}/1-1.png)\n")
    assert (folder / "1-1.png").stat().st_size > 1000

    monkeypatch.setattr(hook.subprocess, "run", None)  # what is there is not made again
    assert hook.on_page_markdown(PAGE, Page) == text


def test_a_page_that_does_not_ask_for_it_is_left_alone(hook):
    text = PAGE.removeprefix("<!-- run -->\n")
    assert hook.on_page_markdown(text, Page) == text


def test_a_snippet_that_fails_ends_the_build(hook):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        hook.made(["1 / 0"])
