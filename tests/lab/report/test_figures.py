"""Figures inside a page: text stays text, and a name from anybody's file is only a name."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.lab.report.sample import SIDE, sample_run

from stochens.figures.style import (
    VARIABLES,
    add_legend,
    embed_figure,
    make_panels,
    plot_line,
    style_figure,
)
from stochens_lab.report.figures.files import save_figures
from stochens_lab.report.figures.planes import draw_maps, find_planes
from stochens_lab.report.view import RunView

NAMES = ["a < b & c", "$x^2$ $\\bad{", "方法", "<script>alert(1)</script>", '"', "fill: #1f5fb4"]


class Svg(HTMLParser):
    """The text, tooltips, ids and tags of an SVG as a browser would read them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@style_figure
def draw(name: str) -> Figure:
    figure, axes = make_panels(3, most=2, width=2, height=1, legend=1)
    for ax in axes:
        plot_line(ax, name, [1, 2, 3], [0.25, 0.5, 0.125], spread=[0.1] * 3, marker="o")
        ax.set_title(name)
    add_legend(figure, axes)
    return figure


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_in_figures_and_tooltips(name):
    svg = Svg(embed_figure(draw(name), key="one", label=name))
    assert svg.text.count(name) == 3 + 3 + 1  # titles, tooltips, legend
    assert f"{name}: 0.125 at 3" in svg.text
    assert not {"script", "style", "metadata"} & set(svg.tags)


def test_the_same_figure_is_the_same_text_and_its_ids_are_its_own():
    one, again, other = (embed_figure(draw("x"), key=key, label="") for key in ("a", "a", "b"))
    assert one == again
    ids = Svg(one).ids + Svg(other).ids
    assert len(ids) == len(set(ids)) > 2
    for svg in (one, other):
        assert set(re.findall(r"url\(#(\w+)\)", svg)) <= set(Svg(svg).ids)
        assert "http" not in svg


def test_colours_are_variables_of_the_page():
    svg = embed_figure(draw("x"), key="a", label="")
    assert "fill: var(--quiet)" in svg
    assert not [colour for colour in VARIABLES if colour in svg]


def test_characters_that_xml_cannot_have_are_replaced():
    assert "a\ufffdb" in Svg(embed_figure(draw("a\uffffb"), key="a", label="")).text


def test_maps_have_a_pixel_for_each_point(tmp_path):
    view = RunView(sample_run(tmp_path / "run", sets=("a",)), "run0")
    plane = find_planes(view)[1]
    assert next(iter(plane.methods)) == "NUTS"
    stored = view.run.arrays["a/SE3/map-out/mi"].reshape(SIDE, SIDE)
    np.testing.assert_array_equal(plane.methods["SE3"]["mi"], stored)
    svg = embed_figure(draw_maps(view, plane, "mi"), key="a", label="")
    maps = re.findall(r'<image [^>]*class="plane"[^>]*>', svg)
    assert len(maps) == 1 + 2 * 3
    assert all(f'width="{SIDE}" height="{SIDE}"' in one for one in maps)


def test_files_stay_in_their_folder_whatever_a_set_is_called(tmp_path):
    run = sample_run(tmp_path / "run", sets=("../../out",), methods=("regular",))
    save_figures([run], tmp_path / "in" / "figures")
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("in", "run")] == []
    assert all(p.is_file() for p in (tmp_path / "in" / "figures").iterdir())
