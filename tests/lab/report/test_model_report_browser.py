"""A report on one's own model in a real browser."""

from pathlib import Path

import pytest
import torch
from tests.lab.report.browsing import LOOKS, assert_opens, visit
from torch import nn

import stochens

pytestmark = pytest.mark.xdist_group("browser")  # one browser, and pages made once
SIDE = 6


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Of a segmentation: figures, tables and pictures, all that a page may have."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 3, SIDE, SIDE, generator=generator)
    y = torch.randint(3, (20, SIDE, SIDE), generator=generator)
    nets = [nn.Conv2d(3, 3, 1) for _ in range(3)]
    out = tmp_path_factory.mktemp("page") / "report.html"
    names = ["a long name of a class without end", "b", "c"]
    posterior = stochens.Posterior.of(nets, example=x[:1])
    return posterior.report(x, y, ood=x * 3, out=out, names=names, resamples=3)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_it_opens_without_an_error_and_never_scrolls_sideways(browser, page, width, theme):
    assert_opens(browser, page, width, theme)
    figures = browser.find_elements("css selector", ".plot svg")
    assert len(figures) == 4  # reliability, risk, entropy, mutual information
    for figure in figures:
        assert figure.is_displayed()
        assert 200 < figure.rect["width"] < 390, "as wide as a phone"
        assert figure.get_attribute("aria-label")
    images = browser.find_elements("css selector", ".card img")
    assert len(images) == 2 * 8 * 4  # rankings, examples, the input and its three maps
    widths = browser.execute_script("return [...document.images].map((i) => i.naturalWidth)")
    assert set(widths) == {SIDE}, "all are there"
    assert all(image.get_attribute("alt") for image in images)


def test_the_theme_can_be_chosen_and_members_unfolded(browser, page):
    visit(browser, page)
    colour = "return getComputedStyle(document.querySelector('.plot text')).fill"
    before = browser.execute_script(colour)
    button = browser.find_element("css selector", "#theme")
    assert button.text == "Dark theme"
    button.click()
    assert button.text == "Light theme"
    assert browser.execute_script(colour) != before  # figures follow
    folded = browser.find_element("css selector", "details table")
    assert not folded.is_displayed()
    browser.execute_script("document.querySelector('summary').click()")
    assert folded.is_displayed()
