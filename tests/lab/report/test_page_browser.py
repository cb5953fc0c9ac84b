"""The page in a real browser."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.lab.report.browsing import LOOKS, assert_opens, visit
from tests.lab.report.sample import DOMAINS, SIDE, sample_run

from stochens_lab.report.page.build import build_page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Keys = webdriver.Keys
KINDS = ("mean", "entropy", "mi")
# Every canvas that is shown: how many colours it has, and its label.
COLOURS = """
return [...document.querySelectorAll("canvas")].filter((c) => c.clientWidth).map((c) => {
  const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  const seen = new Set();
  for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
  return [seen.size, c.getAttribute("aria-label") || "", c.getAttribute("aria-hidden")];
});
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sample_run(tmp_path_factory.mktemp("browser") / "first")


@pytest.fixture(scope="module")
def page(run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(build_page([run]), encoding="utf-8")
    return path


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def choose(browser, part: str, what: str, value: str) -> None:
    selector = f'.{part} [data-what="{what}"] input[value="{value}"]'
    browser.execute_script("arguments[0].click()", find(browser, selector))


def read_out(browser) -> dict[str, list[str]]:
    rows = browser.find_elements("css selector", ".there tbody tr")
    cells = [[c.text for c in row.find_elements("css selector", "th, td")] for row in rows]
    return {name: values for name, *values in cells}


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_it_opens_without_an_error_and_never_scrolls_sideways(browser, page, width, theme):
    assert_opens(browser, page, width, theme)


def test_nothing_but_the_file_is_requested(browser, page):
    visit(browser, page)
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in asked
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {page.as_uri()}


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_canvases_are_drawn_and_named(browser, page, width, theme):
    visit(browser, page, width, theme)
    found = browser.execute_script(COLOURS)
    assert len(found) == 2 + (1 + 2 * 3) + 1  # bars, reference and pairs, plane
    for colours, label, hidden in found:
        assert colours > 20, label
        assert label or hidden == "true"


def test_the_plane_tells_what_the_arrays_say(browser, page, run):
    visit(browser, page)
    canvas = find(browser, ".plane canvas")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas
    )
    side = canvas.rect["width"]
    for set_name, domain, column, row in (("a", "in", 2, 6), ("b", "out", 7, 1)):
        choose(browser, "plane", "set", set_name)
        choose(browser, "plane", "domain", domain)
        across = round((column + 0.6) / SIDE * side - side / 2)
        down = round((SIDE - row - 0.6) / SIDE * side - side / 2)
        actions = webdriver.ActionChains(browser, duration=0)
        actions.move_to_element_with_offset(canvas, across, down).perform()
        assert_says(browser, run, set_name, domain, column, row)


def assert_says(browser, run, set_name: str, domain: str, column: int, row: int) -> None:
    index = row * SIDE + column
    points = run.arrays[f"{set_name}/points/map-{domain}"]
    step = 2 * DOMAINS[domain] / (SIDE - 1)
    place = [-DOMAINS[domain] + column * step, -DOMAINS[domain] + row * step]
    assert np.allclose(points[index], place)
    said = find(browser, ".spot").text.replace("\N{MINUS SIGN}", "-")
    x, y = (float(v) for v in said.split("(")[1].rstrip(")").split(","))
    assert (x, y) == pytest.approx(place, abs=1e-3)
    table = read_out(browser)
    assert list(table) == ["NUTS", "regular", "SE3", "regular, early"]
    for method, shown in table.items():
        for kind, text in zip(KINDS, shown, strict=True):
            value = run.arrays[f"{set_name}/{method}/map-{domain}/{kind}"][index]
            value = value[1] if kind == "mean" else value
            assert abs(float(text) - value) <= 0.00051


def test_arrow_keys_move_the_point(browser, page, run):
    visit(browser, page)
    canvas = find(browser, ".plane canvas")
    middle = SIDE // 2
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert_says(browser, run, "a", "in", middle + 2, middle + 1)
    canvas.send_keys(*[Keys.ARROW_LEFT] * 20, *[Keys.ARROW_DOWN] * 20)
    assert_says(browser, run, "a", "in", 0, 0)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(outline) == "solid"


def picture(browser, selector: str) -> str:
    return browser.execute_script(
        "return document.querySelector(arguments[0]).toDataURL()", selector
    )


@pytest.mark.parametrize("part", ["maps", "plane"])
def test_switches_change_the_pictures(browser, page, part):
    visit(browser, page)
    first = ".maps .card canvas" if part == "maps" else ".plane canvas"
    seen = {picture(browser, first)}
    for count, (what, value) in enumerate(
        (("quantity", "mi"), ("domain", "out"), ("set", "b"), ("quantity", "entropy")), start=2
    ):
        choose(browser, part, what, value)
        seen.add(picture(browser, first))
        assert len(seen) == count, f"{what} changed nothing"
    chosen = f'.{part} [data-what="domain"] input:checked'
    assert find(browser, chosen).get_attribute("value") == "out"  # kept when the set changed


def test_the_theme_can_be_chosen(browser, page):
    visit(browser, page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    before, map_before = (
        browser.execute_script(colour),
        picture(browser, ".card:nth-child(2) div canvas:nth-child(2)"),
    )
    button = find(browser, "#theme")
    assert button.text == "Dark theme"
    button.click()
    assert browser.execute_script(colour) != before
    assert picture(browser, ".card:nth-child(2) div canvas:nth-child(2)") != map_before
    assert button.text == "Light theme"


def test_tabs_show_one_run_at_a_time(browser, run, tmp_path):
    other = sample_run(tmp_path / "second", methods=("SE3", "SE9"), seed=1)
    path = tmp_path / "both.html"
    path.write_text(build_page([run, other]), encoding="utf-8")
    visit(browser, path, 390)
    articles = browser.find_elements("css selector", "article")
    table = find(browser, "#all .results")
    assert table.is_displayed()
    assert [article.is_displayed() for article in articles] == [False, False]
    find(browser, ".tabs a").send_keys(Keys.ARROW_LEFT)  # round to the last
    assert not table.is_displayed()
    assert [article.is_displayed() for article in articles] == [False, True]
    assert all(colours > 20 for colours, *_ in browser.execute_script(COLOURS))
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_hostile_names_stay_text_in_the_script_too(browser, tmp_path):
    hostile = "<img src=x onerror=\"document.title='bad'\">"
    run = sample_run(tmp_path / "r", sets=("a",), methods=(hostile, "</script>"))
    path = tmp_path / "page.html"
    path.write_text(build_page([run]), encoding="utf-8")
    visit(browser, path)
    assert browser.title != "bad"
    assert browser.find_elements("css selector", "img") == []
    assert hostile in read_out(browser)


def test_tables_and_charts_stand_without_the_script(browser, page):
    with _no_script(browser):
        browser.get(page.as_uri())
        assert find(browser, ".results").is_displayed()
        assert find(browser, "svg.chart").is_displayed()
        assert not find(browser, ".plane").is_displayed()
        assert not find(browser, "#theme").is_displayed()


@contextlib.contextmanager
def _no_script(browser) -> Iterator[None]:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
