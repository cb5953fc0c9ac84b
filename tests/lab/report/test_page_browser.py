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

pytestmark = pytest.mark.xdist_group("browser")  # one browser, and pages made once


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


def choose(browser, what: str, value: str) -> None:
    selector = f'.maps [data-what="{what}"] input[value="{value}"]'
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


def seen_map(browser):
    """The only one of the maps that is shown."""
    (found,) = [m for m in browser.find_elements("css selector", ".map") if m.is_displayed()]
    return found


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_figures_are_seen_and_named(browser, page, width, theme):
    visit(browser, page, width, theme)
    shown = [f for f in browser.find_elements("css selector", ".plot") if f.is_displayed()]
    assert len(shown) == 1 + 2 + 1  # maps, loss of two sets, over steps
    for figure in shown:
        svg = figure.find_element("css selector", "svg")
        assert svg.get_attribute("aria-label")
        assert svg.rect["width"] > 100 < svg.rect["height"]
    assert len(seen_map(browser).find_elements("css selector", "image.plane")) == 1 + 2 * 3


def test_a_point_of_a_map_says_what_the_arrays_say(browser, page, run):
    visit(browser, page)
    for set_name, domain, column, row in (("a", "in", 2, 6), ("b", "out", 7, 1)):
        choose(browser, "set", set_name)
        choose(browser, "domain", domain)
        for image in seen_map(browser).find_elements("css selector", "image.plane")[::3]:
            browser.execute_script(
                "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", image
            )
            side = browser.execute_script(
                "return arguments[0].getBoundingClientRect().width", image
            )
            across = round((column + 0.6) / SIDE * side - side / 2)
            down = round((SIDE - row - 0.6) / SIDE * side - side / 2)
            actions = webdriver.ActionChains(browser, duration=0)
            actions.move_to_element_with_offset(image, across, down).perform()
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
    plot = seen_map(browser)
    middle = SIDE // 2
    plot.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert_says(browser, run, "a", "in", middle + 2, middle + 1)
    plot.send_keys(*[Keys.ARROW_LEFT] * 20, *[Keys.ARROW_DOWN] * 20)
    assert_says(browser, run, "a", "in", 0, 0)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(outline) == "solid"


def test_a_ring_marks_the_point_on_every_map(browser, page):
    visit(browser, page)
    plot = seen_map(browser)
    plot.send_keys(*[Keys.ARROW_LEFT] * 20)
    images = plot.find_elements("css selector", "image.plane")
    rings = plot.find_elements("css selector", ".ring:not(.dark)")
    assert len(rings) == len(images)
    boxes = """return [...arguments].map((e) => e.getBoundingClientRect())
      .map((r) => [r.left, r.top, r.width])"""
    for image, ring in zip(images, rings, strict=True):
        (left, top, width), (x, y, size) = browser.execute_script(boxes, image, ring)
        assert x + size / 2 - left == pytest.approx(0.5 / SIDE * width, abs=1)
        assert y + size / 2 - top == pytest.approx(0.5 * width, abs=1)


def test_switches_change_the_map(browser, page):
    visit(browser, page)
    seen = {seen_map(browser).get_attribute("aria-label")}
    for count, (what, value) in enumerate(
        (("quantity", "mi"), ("domain", "out"), ("set", "b"), ("quantity", "entropy")), start=2
    ):
        choose(browser, what, value)
        seen.add(seen_map(browser).get_attribute("aria-label"))
        assert len(seen) == count, f"{what} changed nothing"
    chosen = '.maps [data-what="domain"] input:checked'
    assert find(browser, chosen).get_attribute("value") == "out"  # kept when the set changed


def test_the_theme_can_be_chosen(browser, page):
    visit(browser, page)
    colours = """return [document.body, document.querySelector(".plot text")].map((e) =>
      getComputedStyle(e)[e === document.body ? "backgroundColor" : "fill"])"""
    before = browser.execute_script(colours)
    button = find(browser, "#theme")
    assert button.text == "Dark theme"
    button.click()
    after = browser.execute_script(colours)
    assert before[0] != after[0]
    assert before[1] != after[1]  # figures follow
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
    assert seen_map(articles[1]).find_elements("css selector", ".ring")  # were drawn when hidden
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
        maps = browser.find_elements("css selector", ".map")
        assert len(maps) == 2 * 2 * 2  # quantities, sets, domains
        assert all(one.is_displayed() for one in maps)
        for selector in (".readout", ".controls", "#theme"):
            assert not find(browser, selector).is_displayed()


@contextlib.contextmanager
def _no_script(browser) -> Iterator[None]:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
