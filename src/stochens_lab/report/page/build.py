"""One HTML page from one or several run folders: opens from disk and asks nothing of a network.

Style, script and data are in the page; a content-security policy forbids everything else, and only
the page's own script, by its hash, may run. Tables and charts are there without the script.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from stochens_lab.report.cifar.page import cifar_lead, cifar_sections, cifar_together
from stochens_lab.report.cifar.rows import is_cifar
from stochens_lab.report.page.claims import claims
from stochens_lab.report.page.details import facts, reading, sampler, timings
from stochens_lab.report.page.html import Html, listed, tag
from stochens_lab.report.page.maps import map_data, maps, plane
from stochens_lab.report.page.run import View, unique
from stochens_lab.report.page.tables import headline, joint, results
from stochens_lab.report.page.training import calibration, curves, training
from stochens_lab.report.run_folder import Run

ALL = "all"
NAMES = {"cifar": "CIFAR"}
ICON = "data:,"  # none, so that no browser asks a server for one


def build_page(runs: Sequence[Run]) -> str:
    """The page of these runs, as text."""
    views = [View(run, f"run{i}") for i, run in enumerate(runs)]
    style, script = _asset("page.css"), _asset("page_frame.js") + _asset("page.js")
    data: dict[str, Any] = {}
    articles = [_article(view, data, many=len(views) > 1) for view in views]
    title = _title(views)
    together = _together(views) if len(views) > 1 else ()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href=ICON),
        tag("style", Html(style)),
    )
    toggle = tag("button", "Dark", type="button", id="theme", class_="theme needs-script")
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag(
            "header",
            tag("div", tag("p", "stochens", class_="brand"), toggle, class_="top"),
            tag("h1", title),
        ),
        tag("main", *together, *articles, id="main"),
        tag("footer", tag("p", "Made by stochens. Everything on this page is in this one file.")),
        tag("script", _json(data), type="application/json", id="data"),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _title(views: Sequence[View]) -> str:
    if not views:
        return "No run"
    experiments = listed(NAMES.get(name, name) for name in unique(v.experiment for v in views))
    if len(views) > 1:
        return f"{len(views)} runs: {experiments}"
    reference = views[0].reference
    closing = f": how close to {reference}?" if reference else ""
    return f"{experiments[:1].upper()}{experiments[1:]} experiment{closing}"


def _together(views: Sequence[View]) -> tuple[Html, Html]:
    """A row of tabs, which without the script are links, and the tables of all runs."""
    places = [(ALL, "All runs"), *((view.key, view.run.name) for view in views)]
    tabs = [
        tag("a", name, href=f"#{place}", id=f"{place}-tab", data_run=place)
        for place, name in places
    ]
    nav = tag("nav", *tabs, class_="tabs", aria_label="Runs")
    images = [view for view in views if is_cifar(view)]
    others = [view for view in views if not is_cifar(view)]
    parts = [cifar_together(images) if images else None, joint(others) if others else None]
    return nav, tag("section", tag("h2", "All runs"), *parts, id=ALL, class_="together")


def _article(view: View, data: dict[str, Any], *, many: bool) -> Html:
    found = map_data(view)
    if found is not None:
        data[view.key] = found
    sections = cifar_sections(view) if is_cifar(view) else _sections(view, has_maps=bool(found))
    shown = [(name, content) for name, content in sections if content is not None]
    here = [(view.id(name.split()[0].lower()), name, content) for name, content in shown]
    links = [tag("a", name, href=f"#{place}") for place, name, _ in here]
    return tag(
        "article",
        tag("h2", view.run.name),
        _state(view),
        _said(cifar_lead(view) if is_cifar(view) else headline(view)),
        facts(view),
        tag("nav", *links, class_="contents", aria_label=f"Parts of {view.run.name}"),
        *(tag("section", tag("h3", name), part, id=place) for place, name, part in here),
        id=view.key,
        class_="run",
        data_many=many or None,
    )


def _sections(view: View, *, has_maps: bool) -> list[tuple[str, Html | None]]:
    return [
        ("Results", results(view)),
        ("Claims", claims(view)),
        ("Maps", maps(view) if has_maps else None),
        ("Plane", plane(view) if has_maps else None),
        ("Training", training(view)),
        ("Over steps", curves(view)),
        ("Calibration", calibration(view)),
        ("Sampler", sampler(view)),
        ("Time", timings(view)),
        ("How to read this", reading()),
    ]


def _state(view: View) -> Html | None:
    if view.complete:
        return None
    words = "This run is not complete: it was stopped, or was still running when this was written. "
    planned = view.config.get("sets")
    begun = [name for name in view.sets if view.run.metrics.get(name)]
    if isinstance(planned, list) and planned:
        words += (
            f"It has results of {len(begun)} of its {len(planned)} sets, the last perhaps in part."
        )
    elif not begun:
        words += "It has no results yet."
    return tag("p", words, class_="stopped", role="status")


def _said(text: Html | None) -> Html | None:
    return None if text is None else tag("p", text, class_="lead")


def _asset(name: str) -> str:
    return (files("stochens_lab.report.page") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return f"default-src 'none'; {own}"


def _json(data: dict[str, Any]) -> Html:
    """JSON that cannot end its script block, whatever names are in it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)
