"""What surrounds every page: it opens from disk and asks nothing of a network.

Style, script and data are in the page; a content-security policy forbids everything else, and only
the page's own script, by its hash, may run. Tables and figures are there without the script.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

HERE = "stochens.report"


def open_templates(*packages: str) -> Environment:
    """Templates of these packages, and below them those of every page (base.html)."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, HERE)]),
        autoescape=True,  # names come from anybody's file
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return found


def read_asset(package: str, name: str) -> str:
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def dress(*, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> dict[str, Any]:
    """What base.html needs beside a title: every page's style and script, then these."""
    style = "".join([read_asset(HERE, "page.css"), *styles])
    script = "".join([read_asset(HERE, "theme.js"), *scripts])
    return {"policy": _write_policy(script), "style": Markup(style), "script": Markup(script)}


def _write_policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return f"default-src 'none'; {own}"
