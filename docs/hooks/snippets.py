"""Runs the Python of a page, and puts what each snippet prints and draws below it.

A page asks for it by `<!-- run -->` at its top; its snippets then share their names, as in a
notebook. What came of a page is kept under build/snippets, by a digest of its code and of the
library, and made again where one of the two has changed.

`python docs/hooks/snippets.py FOLDER`, with the snippets as a JSON list on stdin, runs one page.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MADE = ROOT / "build" / "snippets"
MARK = "<!-- run -->"
SNIPPET = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
STYLE = {
    "figure.constrained_layout.use": True,
    "figure.figsize": (6.4, 3.2),
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 200,
}
AT_ONCE = 2  # pages, one core each


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Run all pages that ask for it, and give their pictures to the site."""
    from mkdocs.structure.files import File

    texts = [
        Path(file.abs_src_path).read_text()
        for file in files.documentation_pages()
    ]
    wanted = [
        SNIPPET.findall(text) for text in texts if text.startswith(MARK)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for folder in pool.map(made, wanted):
            for picture in sorted(folder.glob("*.png")):
                uri = f"made/{folder.name}/{picture.name}"
                files.append(
                    File.generated(config, uri, abs_src_path=str(picture))
                )
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Put what was made below its snippet."""
    if not text.startswith(MARK):
        return text
    folder = made(SNIPPET.findall(text))
    results = iter(json.loads((folder / "results.json").read_text()))
    up = "../" * page.file.src_uri.count("/")
    where = f"{up}made/{folder.name}"
    return SNIPPET.sub(
        lambda m: m[0] + shown(next(results), where, text[: m.start()]),
        text,
    )


def shown(result: dict[str, Any], where: str, before: str) -> str:
    """Markdown: the text in a block of its own, the pictures as images.

    A picture is called by the last heading before it.
    """
    printed = result["printed"].rstrip()
    text = (
        f'\n```text title="It prints"\n{printed}\n```\n' if printed else ""
    )
    about = HEADING.findall(before)[-1].replace("`", "")
    return text + "".join(
        f"\n![{about}]({where}/{file})\n" for file in result["pictures"]
    )


def made(snippets: list[str]) -> Path:
    """The folder with what came of these snippets; they are run where it is not there."""
    folder = MADE / digest(snippets)
    if not (folder / "results.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join(
            [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        )
        surroundings = {
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
            "PYTHONPATH": paths,
        }
        done = subprocess.run(
            [sys.executable, __file__, str(folder)],
            input=json.dumps(snippets),
            env=os.environ | surroundings,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"a snippet failed:\n{snippets[0]}\n{done.stderr}"
            )
    return folder


def digest(snippets: list[str]) -> str:
    """Of the code, and of everything that it may call."""
    library = sorted((ROOT / "src" / "stochens").rglob("*.py"))
    parts = [
        Path(__file__).read_bytes(),
        *(file.read_bytes() for file in library),
    ]
    sums = [
        hashlib.sha256(part).hexdigest()
        for part in [json.dumps(snippets).encode(), *parts]
    ]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16]


def run(snippets: list[str], folder: Path) -> None:
    """All of them in one namespace; the pictures and results.json go into the folder."""
    import tempfile
    import warnings

    from matplotlib import pyplot

    warnings.filterwarnings("error", ".* steps of training are few")
    pyplot.rcParams.update(STYLE)
    names: dict[str, Any] = {"__name__": "__main__"}
    results = []
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        for k, code in enumerate(snippets):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, f"snippet {k}", "exec"), names)
            pictures = [
                kept(number, folder, k) for number in pyplot.get_fignums()
            ]
            results.append(
                {"printed": printed.getvalue(), "pictures": pictures}
            )
            pyplot.close("all")
    (folder / "results.json").write_text(
        json.dumps(results)
    )  # last: its presence means success


def kept(number: int, folder: Path, snippet: int) -> str:
    """A figure as a file of this name."""
    from matplotlib import pyplot

    file = f"{snippet}-{number}.png"
    pyplot.figure(number).savefig(folder / file, facecolor="white")
    return file


if __name__ == "__main__":
    run(json.loads(sys.stdin.read()), Path(sys.argv[1]).resolve())
