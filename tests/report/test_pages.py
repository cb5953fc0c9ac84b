"""The page of a prediction: its numbers are those of the metrics, whatever the likelihood."""

import math
import re
import warnings

import matplotlib
import numpy as np
import pytest
import torch
from tests.figures.samples import EXAMPLES, flat, predicted, truth
from tests.likelihoods.table import ROWS
from tests.long import long_but
from tests.page_parser import Page

import stochens
from stochens import metrics
from stochens.figures.style import embed_figure
from stochens.figures.views import Map
from stochens.report.build import build_report
from stochens.report.content import Content
from stochens.report.drawings import figure_reliability, figure_training
from stochens.report.examples import SHOWN
from stochens.report.images import LARGEST, show_input, show_map
from stochens.trees import InputTree

HOSTILE = "<script>alert(1)</script>"
FEW = ("categorical, images", "multilabel", "gaussian")  # one of each kind


def content(p, y, x=None, **more) -> Content:
    x = torch.rand(len(y), 4) if x is None else x
    wanted = {"resamples": 3, "title": "A title", "facts": [("Examples", str(len(y)))], **more}
    return Content(p=p, y=y, pick=lambda rows: [x[k : k + 1] for k in rows], **wanted)


@pytest.mark.parametrize("name", long_but(FEW, ROWS))
def test_every_likelihood_has_a_page_with_its_measures(name):
    row = ROWS[name]
    p, y = predicted(row), truth(row)
    alone = {f"member {k}": p.of_draws(slice(k, k + 1)) for k in range(2)}
    page = Page(build_report(content(p, y, alone=alone, far=p)))
    stated = type(p).apart is not stochens.likelihoods.Predicted.apart
    wanted = stochens.compare(
        {"p": p}, y, ood={"p": p} if stated else None, resamples=3, show=False
    ).rows["p"]
    for measure, interval in wanted.items():
        assert measure in page.text
        assert interval.value in page.numbers, measure
    for one in alone.values():
        for measure, (metric, *given) in one.measures(y).items():
            assert any(
                value == pytest.approx(float(metric(*given)), nan_ok=True) for value in page.numbers
            ), measure
    titles = ("Measures", "Calibration", "Uncertainty", "Examples", "Members", "Most uncertain")
    assert all(title in page.text for title in titles)
    assert page.headings[0] == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"\b(paper|HMC|CIFAR|SE[123])\b", page.text)


def test_tables_by_class_are_the_scores():
    p, y = flat()
    page = Page(build_report(content(p, y, names=["ash", "birch", "cedar"])))
    scores = metrics.class_scores(p.mean, y)
    for column in scores:
        assert set(column.double().tolist()) <= set(page.numbers)
    confusion = metrics.confusion_matrix(p.mean, y).flatten().double().tolist()
    assert any(page.numbers[k : k + 9] == confusion for k in range(len(page.numbers)))
    assert "By class" in page.text
    assert "says birch (" in page.text


def test_the_same_content_is_the_same_page_and_asks_nothing_of_a_network():
    p, y = flat()
    x = torch.rand(EXAMPLES, 3, 6, 6)
    one, again = (build_report(content(p, y, x)) for _ in range(2))
    assert one == again
    page = Page(one)
    assert all(link.startswith(("#", "data:,", "data:image/png;base64,")) for link in page.links)
    assert not re.findall("https?://", one)
    assert "default-src 'none'" in one.replace("&#39;", "'")
    assert page.tags.count("img") == 2 * SHOWN


def test_figures_do_not_depend_on_what_a_user_has_set():
    p, y = flat()
    found = p.views.reliability(y)
    with matplotlib.rc_context():
        plain = embed_figure(figure_reliability(found), key="a", label="")
        matplotlib.rcParams.update(
            {"figure.constrained_layout.use": True, "lines.linewidth": 9, "font.family": "serif"}
        )
        with warnings.catch_warnings(action="error"):
            assert embed_figure(figure_reliability(found), key="a", label="") == plain


def test_names_from_anybody_stay_text():
    p, y = flat()
    names = [HOSTILE, '"', "$x^2$"]
    page = Page(
        build_report(
            content(p, y, title=HOSTILE, names=names, features=[HOSTILE], facts=[(HOSTILE, '">')])
        )
    )
    assert page.tags.count("script") == 1
    assert page.text.count(HOSTILE) > 4


def test_one_example_and_one_member_have_a_page():
    p, y = flat()
    single = stochens.Predictive.of(p.probs[:1, :1])
    page = Page(build_report(content(single, y[:1])))
    assert "On 1 example:" in page.text
    assert "Members" not in page.text
    numbers = stochens.GaussianPredictive.of(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert "RMSE" in Page(build_report(content(numbers, torch.ones(1, 1)))).text


def test_where_nothing_is_wrong_the_page_says_so():
    p, _ = flat()
    page = Page(build_report(content(p, p.labels)))
    assert "There is none." in page.text


class Course:
    """Of two members; the second stopped after two epochs."""

    nll = torch.tensor([[3.0, 5.0], [2.0, 4.0], [1.0, math.nan]])
    validation = torch.zeros(0, 2)
    kept = torch.tensor([2, 1])


def test_training_is_the_mean_over_members_that_are_left():
    figure = figure_training(Course())
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[1, 4], [2, 3], [3, 1]]
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].get_extents().bounds == (1, 1, 2, 4)


def test_a_large_data_set_makes_no_large_page():
    n = 20_000
    generator = torch.Generator().manual_seed(0)
    p = stochens.Predictive.of(torch.rand(2, n, 3, generator=generator).softmax(-1))
    y = torch.randint(3, (n,), generator=generator)
    x = torch.rand(9, 3, 300, 400, generator=generator)
    large = content(p, y)._replace(pick=lambda rows: [x[k % 9 : k % 9 + 1] for k in rows])
    assert len(build_report(large)) < 2_000_000  # 16 pictures of noise have 128 x 96 x 3 bytes


# Inputs -------------------------------------------------------------------------------------------


def pixels(image) -> torch.Tensor:
    """[H, W, 3] of a picture in the page."""
    import base64
    import io

    from PIL import Image

    raw = base64.b64decode(image.uri.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(raw)) as found:
        return torch.tensor(np.array(found.convert("RGB"))).long()


def test_pictures_have_the_pixels_of_their_input():
    x = torch.tensor([[[0.0, 1.0], [0.5, 0.25]]])  # [1, H, W]
    found = pixels(show_input(x.unsqueeze(0)).image)
    assert found[..., 0].tolist() == [[0, 255], [128, 64]]
    assert torch.equal(found[..., 0], found[..., 2])
    colours = (255 * torch.rand(1, 3, 5, 4)).to(torch.uint8)
    last = colours.movedim(1, -1)
    for given in (colours, last):
        assert torch.equal(pixels(show_input(given).image), last[0].long())
    other = pixels(show_input(torch.tensor([[[-3.0, 5.0], [1.0, 1.0]]])).image)
    assert other[..., 1].tolist() == [[0, 255], [128, 128]]  # brought from its own range
    wide = pixels(show_input(torch.rand(1, 1, 500, 300)).image)
    assert wide.shape == (LARGEST, 77, 3)


def test_rows_texts_and_trees():
    row = show_input(torch.tensor([[1.5, -2.0]]), ["age", "size"])
    assert row.cells == {"age": "1.5", "size": "-2"}
    assert len(show_input(torch.zeros(1, 99)).cells) == 10
    assert show_input(torch.tensor([[5, 7, 9]])).text == "5 7 9"
    assert len(show_input(torch.zeros(1, 9999, dtype=torch.long)).text) == 401
    tree = InputTree({"ids": torch.tensor([[1, 2]]), "w": torch.tensor([[0.5]])})
    assert show_input(tree).text == "ids: 1 2; w: 0.5"
    assert show_input(InputTree({"a": torch.zeros(1), "b": torch.ones(1, 2)})).cells == {
        "a": "0",
        "b.x0": "1",
        "b.x1": "1",
    }
    assert show_input(tree, show=lambda one: f"words {one['ids'].tolist()}").text == "words [1, 2]"
    drawn = show_input(torch.zeros(1, 4), show=lambda one: one.reshape(2, 2) + 1).image
    assert pixels(drawn).unique().tolist() == [255]
    with pytest.raises(stochens.InputError, match=r"a picture must be .H, W. .*show gave \(4,\)"):
        show_input(torch.zeros(1, 4), show=lambda one: one)


def test_maps_have_one_colour_for_each_class():
    classes = Map("truth", torch.tensor([[0, 1], [1, -1]]), None)
    found = pixels(show_map(classes))
    assert found[0, 0].tolist() == [0x1F, 0x5F, 0xB4]
    assert torch.equal(found[0, 1], found[1, 0])
    assert len(found.reshape(-1, 3).unique(dim=0)) == 3
    large = Map("truth", torch.arange(2).repeat_interleave(300).expand(600, 600), None)
    assert len(pixels(show_map(large)).reshape(-1, 3).unique(dim=0)) == 2, "none between two"
    bright = pixels(show_map(Map("entropy", torch.tensor([[0.0, 1.0]]), 1.0)))
    assert bright[0, 0].sum() < bright[0, 1].sum()
