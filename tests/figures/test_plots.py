"""p.plot: axes whose data are the numbers of the metrics."""

import itertools
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tests.figures.samples import flat, predicted, truth
from tests.likelihoods.table import ROWS
from tests.long import long_but

from stochens import GaussianPredictive, InputError, metrics


@pytest.fixture
def ax():
    return Figure().subplots()


def test_reliability_shows_the_calibration_curve(ax):
    p, y = flat()
    assert p.plot.reliability(y, ax=ax) is ax
    diagonal, points = (line for line in ax.lines if len(line.get_xdata()))
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    curve = metrics.calibration_curve(p.mean, y)
    assert points.get_xdata().tolist() == curve.confidence.tolist()
    assert points.get_ydata().tolist() == curve.accuracy.tolist()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("confidence", "accuracy")


def test_the_area_under_the_curve_is_the_aurc(ax):
    p, y = flat()
    p.plot.risk_coverage(y.tolist(), ax=ax)  # what can be made a tensor
    (line,) = ax.lines
    assert np.mean(line.get_ydata()) == pytest.approx(metrics.aurc(p.mean, y), rel=1e-12)
    assert line.get_xdata()[-1] == 1


def test_of_many_examples_some_points_are_drawn(ax):
    probs = torch.rand(1, 20_000, 2).softmax(-1)
    p, y = type(flat()[0]).of(probs), torch.randint(2, (20_000,))
    p.plot.risk_coverage(y, ax=ax)
    whole, drawn = metrics.risk_coverage(p.mean, y), ax.lines[0].get_xydata()
    assert len(drawn) == 500
    for coverage, risk in drawn[[0, 100, 499]]:
        k = round(coverage * 20_000)
        assert risk == pytest.approx(float(whole.risk[k - 1]), rel=1e-9)


@pytest.mark.parametrize("what", ["entropy", "mutual information", None])
def test_histograms_hold_every_example_once(ax, what):
    (p, _), (far, _) = flat(), flat(seed=1)
    p.plot.uncertainty(far, what=what, ax=ax)
    steps = [patch.get_data() for patch in ax.patches]
    shares = [values.sum() for values, *_ in steps]
    assert shares == pytest.approx([1, 1, 1, 1])  # areas and outlines, here and there
    values, edges, _ = steps[0]
    own = p.mutual_information if what == "mutual information" else p.entropy
    counts = [
        sum(a <= float(v) < b or (b == edges[-1] and float(v) == b) for v in own)
        for a, b in itertools.pairwise(edges)
    ]
    assert values == pytest.approx(np.array(counts) / len(own))


def test_equal_uncertainties_have_a_histogram(ax):
    p = GaussianPredictive.of(torch.zeros(2, 5, 1), torch.ones(2, 5, 1))
    p.plot.uncertainty(ax=ax)
    assert ax.patches[0].get_data()[0].sum() == 1


KINDS = ("categorical, images", "multilabel", "gaussian", "poisson")


@pytest.mark.parametrize("name", long_but(KINDS, ROWS))
def test_every_likelihood_has_the_three(name, ax):
    p, y = predicted(ROWS[name]), truth(ROWS[name])
    for draw in (p.plot.reliability, p.plot.risk_coverage):
        ax.clear()
        assert draw(y, ax=ax).lines
    ax.clear()
    assert p.plot.uncertainty(p, ax=ax).patches


def test_numbers_of_which_draws_were_not_kept_say_so(ax):
    p, y = predicted(ROWS["gaussian"]), truth(ROWS["gaussian"])
    assert p.light().plot.uncertainty(ax=ax).patches
    with pytest.raises(InputError, match="draws were not kept"):
        p.light().plot.reliability(y, ax=ax)


def test_unknown_uncertainties_are_refused(ax):
    p, _ = flat()
    with pytest.raises(InputError, match="unknown uncertainty 'entropi'; did you mean 'entropy'"):
        p.plot.uncertainty(what="entropi", ax=ax)
    numbers = predicted(ROWS["gaussian"])
    with pytest.raises(InputError, match="unknown uncertainty of ood 'entropy'"):
        p.plot.uncertainty(numbers, ax=ax)


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    p, y = flat()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(InputError, match=r"need matplotlib: pip install 'stochens\[report\]'"):
        p.plot.reliability(y)
