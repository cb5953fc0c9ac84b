"""Verdicts on the paper's claims about CIFAR, and which rows they are about."""

from typing import Any

import pytest
from tests.lab.report.cifar_sample import SET, cifar_run, part_of_all
from tests.lab.report.test_cifar_page import TABLE_2, Tables

from stochens.metrics import Interval
from stochens_lab.report import markdown
from stochens_lab.report.cifar.claims import check_claims, find_largest, judge
from stochens_lab.report.cifar.paired import MEASURES, Paired
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.page.build import build_page
from stochens_lab.report.view import RunView

TITLE = "Claims about CIFAR-10"
ROWS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("regular", 0.5, {}),
    ("MultiSWA", 0.9, {}),
    ("SE1 0.1", 0.8, {}),
    ("SE1 0.2", 0.95, {"members": 10}),
    ("SE3", 0.8, {"members": 20}),
    ("SE1 0.1", 0.7, {"train_images": 40960}),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        cifar_run(folder / f"{i}", name, closeness=c, images=800, seed=i, **settings)
        for i, (name, c, settings) in enumerate(ROWS)
    ]


@pytest.fixture(scope="module")
def rows(runs):
    return gather([RunView(run, f"run{i}") for i, run in enumerate(runs)])[0]


@pytest.fixture(scope="module")
def found(rows):
    return {claim.name: claim for claim in check_claims(rows, Paired(rows))}


def test_verdicts_are_by_the_whole_interval():
    for by, want in (
        ((0.2, 0.1, 0.3), "holds"),
        ((-0.2, -0.3, -0.1), "fails"),
        ((0.2, -0.1, 0.5), "unclear"),
        ((0.0, 0.0, 0.0), "unclear"),
    ):
        assert judge(Interval(*by)) == want


def test_the_rows_with_most_members_are_compared_and_named(rows, found):
    one = find_largest(rows, "SE1")
    assert one.name == "SE1 0.1, 50,000 images"  # not the closer 0.2, of which there are 10
    assert find_largest(rows, "cSGHMC") is None
    assert list(found) == [
        "SE1 0.1 is closer to HMC than regular",
        "SE1 0.1 is closer to HMC than MultiSWA",
        "SE1 0.1 is closer to HMC than SE3",
        "SE1 0.1 comes as close as the paper's SE1: "
        "agreement at least 94.1\u00a0% and variance at most 8.0\u00a0·\u00a010⁻²",
    ]
    against = found["SE1 0.1 is closer to HMC than SE3"].about
    assert "50 members, 300 epochs, 50,000 images against 20 members" in against
    assert found["SE1 0.1 is closer to HMC than regular"].about.startswith("both 50 members")


def test_what_was_simulated_closer_is_found_closer(found):
    """At 800 images closeness 0.8 against 0.5 and 0.9 is a difference of many standard errors."""
    for other, want in (("regular", "holds"), ("MultiSWA", "fails")):
        cells = found[f"SE1 0.1 is closer to HMC than {other}"].cells
        assert list(cells) == list(MEASURES)
        assert cells["variance"].verdict == want
        first, second = cells["variance"].pair
        assert cells["variance"].interval.value == pytest.approx(second - first)


def test_the_papers_figures_are_a_level_to_reach(tmp_path):
    run = cifar_run(tmp_path / "r")
    test = run.metrics[SET]["SE1 0.1"]["test"]
    test["agreement"] = {"value": 0.945, "low": 0.942, "high": 0.948}
    for (low, high), want in (
        ((0.070, 0.080), "holds"),  # 0.080 itself is enough
        ((0.079, 0.081), "unclear"),
        ((0.081, 0.090), "fails"),
    ):
        test["variance"] = {"value": (low + high) / 2, "low": low, "high": high}
        rows = gather([RunView(run, "run0")])[0]
        (claim,) = check_claims(rows, Paired(rows))
        assert claim.cells["variance"].verdict == want
        assert claim.cells["agreement"].verdict == "holds"


def test_claims_are_on_the_page_and_in_markdown(runs, found):
    text = part_of_all(runs)
    table = Tables(text).found[TITLE]
    text_of = {name.replace("\u00a0", " ") for name in table}
    assert {name.replace("\u00a0", " ") for name in found} <= text_of
    claim = found["SE1 0.1 is closer to HMC than regular"]
    assert table[claim.name] == [claim.cells[name].text for name in MEASURES]
    assert "Wasserstein-1" in text
    lines = markdown.format_runs(runs).splitlines()
    variance = claim.cells["variance"]
    value = f"{variance.text} ({variance.span_text})"
    want = f"|  | variance (10⁻²) | {value} | {variance.pair_text} | it holds |"
    assert want in lines
    names = [
        row.name for row in gather([RunView(r, f"{i}") for i, r in enumerate(runs)])[0].methods
    ]
    assert set(names) <= set(Tables(text).found[TABLE_2])


def test_one_run_alone_has_no_claims(runs):
    assert TITLE not in build_page(runs[2:3])
    assert "CIFAR-10: claims" not in markdown.format_runs(runs[2:3])
