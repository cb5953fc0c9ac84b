"""CIFAR runs in a real browser."""

from pathlib import Path
from typing import Any

import pytest
from tests.lab.report.browsing import LOOKS, assert_opens, visit
from tests.lab.report.cifar_sample import cifar_run

from stochens_lab.report.page.build import build_page

# Elements that reach past the window, and are in no box that scrolls.
OUTSIDE = """
return [...document.querySelectorAll("main *")].filter((e) =>
  e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .tabs")
  && getComputedStyle(e).clipPath === "none").map((e) => e.outerHTML.slice(0, 90));
"""

pytestmark = pytest.mark.xdist_group("browser")  # one browser, and pages made once


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    methods = ("regular", "MultiSWA", "SE1 0.05", "SE1 0.1", "SE1 0.2", "SE2 0.1", "SE3", "cSGHMC")
    runs = [
        cifar_run(folder / name.replace(" ", "-"), name, closeness=0.5 + 0.05 * i, seed=i)
        for i, name in enumerate((*methods, "MultiSWAG"))  # more than there are colours
    ]
    again = {"members": 10, "epochs": 30}, {"train_images": 40960}
    runs += [
        cifar_run(folder / f"again{i}", seed=20 + i, **settings) for i, settings in enumerate(again)
    ]
    found = {"one": folder / "one.html", "many": folder / "many.html"}
    found["one"].write_text(build_page(runs[3:4]), encoding="utf-8")
    found["many"].write_text(build_page(runs), encoding="utf-8")
    return found


@pytest.mark.parametrize("which", ["one", "many"])
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_it_opens_without_an_error_and_never_scrolls_sideways(browser, pages, which, width, theme):
    assert_opens(browser, pages[which], width, theme)
    assert browser.execute_script(OUTSIDE) == []


def shown(browser, selector: str) -> list[Any]:
    return [e for e in browser.find_elements("css selector", selector) if e.is_displayed()]


def test_tables_and_charts_of_all_runs_are_seen(browser, pages):
    visit(browser, pages["many"])
    tables = shown(browser, "#all table.results")
    assert len(tables) == 4  # Tables 2 and 3, claims, epochs
    text = tables[0].text
    for name in ("HMC", "SE1, paper", "cSGHMC", "MultiSWAG"):
        assert name in text
    assert len(shown(browser, "#all .plot svg")) == 6  # fig3 to 5, members, inferences, epochs
    titles = "return [...document.querySelectorAll('#all .plot title')].map((t) => t.textContent)"
    said = browser.execute_script(titles)
    boxes = [text for text in said if "intensity" in text and "median" in text]
    assert len(boxes) == 2 * 11 * 5
    assert any(text.startswith("cSGHMC: ") and text.endswith(" at 50") for text in said)  # a mark


def test_the_heat_of_a_cell_grows_with_what_is_lost(browser, pages):
    visit(browser, pages["one"])
    row = browser.find_elements("css selector", ".heat tbody tr")[0]
    cells = row.find_elements("css selector", "td")
    assert len(cells) == 5
    values = [float(cell.text) for cell in cells]
    assert values == sorted(values, reverse=True)
    grounds = {cell.value_of_css_property("background-color") for cell in cells}
    assert len(grounds) == 5


def test_a_run_is_a_click_away(browser, pages):
    visit(browser, pages["many"], 390)
    tab = browser.find_element("css selector", "#run3-tab")
    browser.execute_script("arguments[0].click()", tab)
    assert shown(browser, "#all") == []
    assert len(shown(browser, "article")) == 1
    assert shown(browser, "#run3 .heat")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
