"""Verdicts on claims, from intervals that touch and that do not."""

import json

import pytest
from tests.lab.report.sample import sample_run

from stochens.files.storage import CHECKSUMS
from stochens.metrics import Interval
from stochens_lab.report.page.results import CLAIMS, Claim, judge, show_claims
from stochens_lab.report.run_folder import METRICS, TRAINING, SavedRun
from stochens_lab.report.view import RunView

near, far, wide = Interval(1, 0.9, 1.1), Interval(2, 1.8, 2.2), Interval(1.5, 0.5, 2.5)


@pytest.mark.parametrize(
    ("says", "one", "other", "want"),
    [
        ("closer", near, far, "holds"),
        ("closer", far, near, "fails"),
        ("farther", far, near, "holds"),
        ("farther", near, far, "fails"),
        ("closer", near, wide, "unclear"),
        ("farther", wide, far, "unclear"),
        ("closer", near, near, "unclear"),
    ],
)
def test_only_what_is_clear_is_called_so(says, one, other, want):
    assert judge(Claim("x", says, "y"), one, other) == want


def test_the_table_tells_of_the_rows_that_are_there(tmp_path):
    path = sample_run(tmp_path / "run").path
    rows = json.loads((path / METRICS).read_text())
    shown = [row.name for row in show_claims(RunView(SavedRun(path), "run0"))[1].rows]
    named = [c for c in CLAIMS if all({c.method, c.other} <= set(r) for r in rows.values())]
    for claim in named:
        assert f"{claim.method} is {claim.says} than {claim.other}" in shown
    absent = [c for c in CLAIMS if not any({c.method, c.other} <= set(r) for r in rows.values())]
    for claim in absent:
        assert f"{claim.method} is {claim.says} than {claim.other}" not in shown

    training = json.loads((path / TRAINING).read_text())
    first = next(iter(rows))
    training.setdefault(first, {}).setdefault("SE3", {})["set distance"] = {
        "step": [500, 1000],
        "mean": [0.66, 0.1],
        "sd": [0, 0],
    }
    (path / CHECKSUMS).unlink()
    (path / TRAINING).write_text(json.dumps(training))
    assert (
        f"after 500 and 1,000 steps: {first} 0.66, 0.10"
        in show_claims(RunView(SavedRun(path), "run0"))[2].text
    )


def test_other_experiments_make_no_claims(tmp_path):
    path = sample_run(tmp_path / "run").path
    about = json.loads((path / "run.json").read_text())
    (path / CHECKSUMS).unlink()
    (path / "run.json").write_text(json.dumps(about | {"experiment": "digits"}))
    assert show_claims(RunView(SavedRun(path), "run0")) == []
