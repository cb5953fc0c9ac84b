"""The page without a browser: its numbers, its escapes, and runs that are not all there."""

import base64
import json
import re
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.lab.report.sample import DOMAINS, TROUBLE, sample_run
from tests.page_parser import Page

from stochens.figures.style import COLOURS, VARIABLES
from stochens.files.storage import CHECKSUMS
from stochens_lab.report.page.build import build_page
from stochens_lab.report.page.maps import pack_maps
from stochens_lab.report.paper import COLUMNS, TABLE_1, paper_value
from stochens_lab.report.run_folder import RunFolder, SavedRun
from stochens_lab.report.view import RunView, describe_metric

ROOT = Path(__file__).parents[3]
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SavedRun:
    return sample_run(tmp_path_factory.mktemp("runs") / "first")


def test_the_page_is_well_formed_and_complete(run):
    page = Page(build_page([run]))
    for title in ("Results", "Maps", "Training", "Over steps", "Sampler", "Time"):
        assert title in page.text
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert len(page.ids) == len(set(page.ids))
    assert TROUBLE in page.text
    assert "Calibration" not in page.text  # no labels of test points are there


def test_the_same_run_makes_the_same_page(run):
    assert build_page([run]) == build_page([run])


def test_nothing_is_asked_of_a_network(run):
    text = build_page([run])
    page = Page(text)
    assert all(link.startswith(("#", "data:,", "data:image/png;base64,")) for link in page.links)
    assert not re.findall("https?://", text)
    assert "default-src 'none'" in text.replace("&#39;", "'")
    anchors = {link[1:] for link in page.links if link.startswith("#")}
    assert anchors <= set(page.ids)


def test_the_numbers_are_those_of_the_metrics(run):
    wanted = [
        interval["value"]
        for rows in run.metrics.values()
        for row in rows.values()
        for domain in row.values()
        for interval in domain.values()
    ]
    page = Page(build_page([run]))
    assert sorted(page.numbers) == sorted(wanted)
    one = run.metrics["a"]["SE3"]["in"]["variance"]
    for value in one.values():
        assert f"{100 * value:.2f}" in page.text


def test_the_best_is_marked_and_the_noise_is_not(run):
    view = RunView(run, "run0")
    for set_name in view.sets:
        for name, domains in view.columns(set_name).items():
            for domain in domains:
                values = {
                    m: run.metrics[set_name][m][domain][name]["value"]
                    for m in view.methods(set_name)
                }
                pick = max if name == "agreement" else min
                assert view.best(set_name, domain, name) == pick(values, key=values.get)
    text = build_page([run])
    assert len(re.findall(r'class="[^"]*\bbest\b', text)) == 2 * 2 * 4  # sets, domains, metrics
    assert "NUTS, its own noise" not in view.methods("a")
    assert view.reference == "NUTS"
    assert "This row is the noise of the reference itself." in text
    assert "The noise of NUTS itself is" in text


def test_halves_of_older_runs_are_not_called_the_noise():
    run = SavedRun(ROOT / "results" / "toy")
    view = RunView(run, "run0")
    assert view.noise("a") == "NUTS, chain to chain"
    assert view.reference == "NUTS"
    text = build_page([run])
    assert "half of the chains against the other half: about twice the noise" in text
    assert "Half of the chains of NUTS and the other half are apart by" in text
    assert "This row is the noise" not in text


def test_the_papers_values_stand_beside_ours(run):
    page = Page(build_page([run]))
    for metric_name in ("agreement", "variance", "entropy error", "MI error"):
        value = paper_value("toy", "a", "SE3", "out", metric_name)
        assert value is not None
        assert f"paper {describe_metric(metric_name).text(value)}" in page.text
    assert paper_value("toy", "a", "SE3, Q", "out", "variance") is None
    assert paper_value("digits", "a", "SE3", "out", "variance") is None


def test_the_papers_table_has_sizes_that_shares_and_nats_can_have():
    for set_name, method in TABLE_1:
        for name, _ in COLUMNS:
            for domain in ("in", "out"):
                value = paper_value("toy", set_name, method, domain, name)
                assert value is not None
                assert (0.9 < value < 1) if name == "agreement" else (0 < value < 0.2)


def test_maps_are_kept_to_a_thousandth(run):
    found = pack_maps(RunView(run, "run0"))
    assert found is not None
    values = np.frombuffer(zlib.decompress(base64.b64decode(found["values"])), "<u2")
    assert [(p["set"], p["domain"]) for p in found["planes"]] == [
        (s, d) for s in "ab" for d in DOMAINS
    ]
    for plane in found["planes"]:
        size = plane["side"] ** 2
        for i, method in enumerate(plane["methods"]):
            prefix = f"{plane['set']}/{method}/map-{plane['domain']}"
            truth = [
                run.arrays[f"{prefix}/mean"][:, 1],
                run.arrays[f"{prefix}/entropy"],
                run.arrays[f"{prefix}/mi"],
            ]
            for k, array in enumerate(truth):
                start = plane["at"] + (3 * i + k) * size
                kept = values[start : start + size] / found["unit"]
                assert np.abs(kept - array).max() <= 0.5001 / found["unit"]
    assert found["planes"][0]["methods"][0] == "NUTS"


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_both_themes(run):
    """WCAG AA: (L1 + 0.05) / (L2 + 0.05) >= 4.5."""
    blocks = re.findall(r"color-scheme: \w+;([^}]*)}", build_page([run]))
    assert len(blocks) == 3  # light, dark by the system, dark by choice
    assert blocks[1].split() == blocks[2].split()
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        pairs = [(t, g) for t in ("ink", "quiet") for g in ("ground", "panel", "tint", "near")]
        pairs += [("accent", "ground"), ("warn", "warn-ground")]
        for text, ground in pairs:
            dark, bright = sorted(_luminance(colours[name]) for name in (text, ground))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_figures_have_the_colours_of_both_themes(run):
    """WCAG: 3 to 1 for what is drawn; the lines of the grid and what is behind may be paler."""
    text = build_page([run])
    light, dark, _ = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r"color-scheme: \w+;([^}]*)}", text)
    )
    for colour, variable in VARIABLES.items():
        assert light[variable.removeprefix("--")] == colour
    for colours in (light, dark):
        for name in (*(f"c{i}" for i in range(len(COLOURS))), "ink", "quiet"):
            low, high = sorted(_luminance(colours[n]) for n in (name, "ground"))
            assert (high + 0.05) / (low + 0.05) >= 3, name
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", svg)) <= {"#ffffff"}  # on a map


def test_two_runs_stand_side_by_side(run, tmp_path):
    other = sample_run(tmp_path / "second", methods=("SE3", "SE9"), seed=1)
    text = build_page([run, other])
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("article") == 2
    assert "All runs" in page.text
    assert "first" in page.text
    assert "second" in page.text
    assert "SE9" in page.text
    value = other.metrics["b"]["SE9"]["out"]["variance"]["value"]
    assert page.numbers.count(value) == 2  # in its own table and in the joint one


def test_a_run_that_was_stopped_says_so(tmp_path):
    page = Page(build_page([sample_run(tmp_path / "r", complete=False)]))
    assert "not complete" in page.text
    assert "2 of its 2 sets" in page.text


def test_a_run_with_nothing_in_it_is_shown(tmp_path):
    RunFolder(tmp_path / "r", experiment="toy", config={"sets": ["a"]}, device="cpu")
    page = Page(build_page([SavedRun(tmp_path / "r")]))
    assert "0 of its 1 sets" in page.text
    assert "How to read this" in page.text
    assert "Maps" not in page.text


def test_a_run_with_only_the_reference_is_shown(tmp_path):
    run = sample_run(tmp_path / "r", methods=(), complete=False)
    assert RunView(run, "run0").reference == "NUTS"
    Page(build_page([run]))
    run.metrics, run.training = {}, {}
    assert RunView(run, "run0").reference == "NUTS"
    assert "Maps" in Page(build_page([run])).text


def test_no_run_at_all():
    assert "No run" in Page(build_page([])).text


def test_other_sets_domains_and_metrics_are_taken_from_the_files(run, tmp_path):
    for file in run.path.iterdir():
        shutil.copy(file, tmp_path)
    interval = {"value": 0.97, "low": 0.96, "high": 0.98}
    odd = {"value": 3.25, "low": 3.0, "high": 3.5}
    row = {"test": {"accuracy": interval, "oddity": odd}, "photographs": {"OOD AUROC": interval}}
    better = {"test": {"accuracy": interval | {"value": 0.98}}}
    (tmp_path / CHECKSUMS).unlink()  # what is written by hand has none
    (tmp_path / "metrics.json").write_text(json.dumps({"digits": {"X": row, "Y": better}}))
    digits = SavedRun(tmp_path)
    rng = np.random.default_rng(0)
    mean = rng.dirichlet(np.ones(10), 200).astype(np.float32)
    digits.arrays = {
        **{f"digits/{method}/test/mean": mean for method in ("X", *"STUVWZ")},
        "digits/points/labels-test": mean.argmax(1),
    }
    text = build_page([digits])
    page = Page(text)
    for word in ("oddity", "3.250", "photographs", "97.0", "OOD AUROC", "Calibration"):
        assert word in page.text
    for method in ("X", *"STUVWZ"):  # each has its entry, however many there are
        assert f">{method}</text>" in text
    assert RunView(digits, "run0").best("digits", "test", "accuracy") == "Y"
    assert RunView(digits, "run0").best("digits", "test", "oddity") is None


def test_many_domains_get_a_table_each(run, tmp_path):
    for file in run.path.iterdir():
        shutil.copy(file, tmp_path)
    interval = {"value": 0.5, "low": 0.4, "high": 0.6}
    rows = {
        method: {f"place{i}": {f"metric{k}": interval for k in range(5)} for i in range(4)}
        for method in ("X", "Y")
    }
    (tmp_path / CHECKSUMS).unlink()
    (tmp_path / "metrics.json").write_text(json.dumps({"digits": rows}))
    page = Page(build_page([SavedRun(tmp_path)]))
    assert len(page.numbers) == 2 * 4 * 5
    assert all(f"Set digits, place{i}" in page.text for i in range(4))


names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\x00"), min_size=1
)


@settings(max_examples=8)
@given(names, names)
@example(HOSTILE, "</script>")
@example("\"quoted\" & 'so'", "<!--")
@example("naïve ∑ 方法", "a/b/c")
def test_names_are_text_whatever_is_in_them(set_name, method):
    with tempfile.TemporaryDirectory() as folder:
        run = sample_run(Path(folder) / "r", sets=(set_name,), methods=(method, f"{method}!"))
    run.about["command"] = run.about["config"]["preset"] = method
    run.sampler[set_name]["troubles"] = [method]
    text = build_page([run])
    page = Page(text)
    assert method in page.text
    assert page.tags.count("script") == 2  # the data and the page's own
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert block is not None
    found = json.loads(block.group(1))["run0"]
    assert {plane["set"] for plane in found["planes"]} == {set_name}
    assert method in found["planes"][0]["methods"]


def test_a_hostile_folder_name_is_text(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    text = build_page([sample_run(folder)])
    assert "<img" not in text
    assert folder.name in Page(text).text
