"""CIFAR runs on the page: numbers in their rows and columns, closeness, and what is not there."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from tests.lab.report.cifar_sample import SET, cifar_run, page_of_all, part_of_all
from tests.lab.report.sample import sample_run
from tests.lab.report.test_page import HOSTILE, Page, _luminance
from tests.long import long_but

from stochens.files.storage import CHECKSUMS
from stochens_lab.data.corruptions.published import CORRUPTIONS
from stochens_lab.report.cifar.rows import Rows, gather
from stochens_lab.report.page.build import build_page
from stochens_lab.report.run_folder import METRICS, RunFolder, SavedRun
from stochens_lab.report.view import RunView

DASH = "\N{EN DASH}"
pytestmark = pytest.mark.xdist_group("cifar page")  # one process, and so one set of runs and pages


class Tables(HTMLParser):
    """Caption -> the first cell of each row -> the others; of a cell the text before <small>."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[str, dict[str, list[str]]] = {}
        self.classes: dict[tuple[str, str, int], str] = {}
        self.caption, self.inside, self.small = "", "", 0
        self.row: list[str] = []
        self.kinds: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.small += tag in ("small", "span")
        if tag in ("caption", "td", "th"):
            self.inside, self.small = tag, 0
            if tag == "caption":
                self.caption = ""
            else:
                self.row.append("")
                self.kinds.append(dict(attrs).get("class") or "")
        if tag == "tr":
            self.row, self.kinds = [], []

    def handle_endtag(self, tag):
        self.small -= tag in ("small", "span")
        if tag in ("caption", "td", "th"):
            self.inside = ""
        if tag == "tr" and self.row:
            self.found.setdefault(self.caption, {})[self.row[0]] = self.row[1:]
            for i, kind in enumerate(self.kinds[1:]):
                self.classes[self.caption, self.row[0], i] = kind

    def handle_data(self, data):
        if self.inside == "caption":
            self.caption += data
        elif self.inside and self.small <= 0:
            self.row[-1] += data


TABLE_2 = "Table 2: CIFAR-10, test images"
TABLE_3 = "Table 3: CIFAR-10, corrupted images"
METHODS = {"regular": 0.6, "MultiSWA": 0.5, "SE1 0.1": 0.85}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, SavedRun]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: cifar_run(folder / name.replace(" ", "-"), name, closeness=close, seed=i)
        for i, (name, close) in enumerate(METHODS.items())
    }


@pytest.fixture(scope="module")
def together(runs) -> str:
    return build_page(list(runs.values()))


@pytest.fixture(scope="module")
def alone(runs) -> str:
    return build_page([runs["SE1 0.1"]])


def together_part(text: str) -> str:
    return text.split('class="together"')[1].split("<article")[0]


def value(run: SavedRun, row: str, domain: str, metric: str) -> float:
    return run.metrics[SET][row][domain][metric]["value"]


def test_the_page_of_one_run_is_well_formed_and_has_its_parts(alone):
    page = Page(alone)
    for title in ("Results", "Corruptions", "Members", "Entropy", "Calibration", "Training"):
        assert f"<h3>{title}</h3>" in alone
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert len(page.ids) == len(set(page.ids))
    assert "CIFAR experiment: how close to HMC?" in page.text
    assert page.tags.count("table") < 10  # no table for each of the 80 corrupted sets


def test_the_numbers_of_one_run_stand_in_their_places(runs, alone):
    run = runs["SE1 0.1"]
    found = Tables(alone).found
    row = found[TABLE_2]["SE1 0.1"]
    wanted = [
        f"{100 * value(run, 'SE1 0.1', 'test', 'accuracy'):.2f}",
        f"{value(run, 'SE1 0.1', 'test', 'NLL'):.3f}",
        f"{value(run, 'SE1 0.1', 'test', 'ECE'):.3f}",
        f"{100 * value(run, 'SE1 0.1', 'test', 'agreement'):.2f}",
        f"{100 * value(run, 'SE1 0.1', 'test', 'variance'):.2f}",
        f"{100 * value(run, 'SE1 0.1', 'cifar100', 'OOD AUROC'):.1f}",
        f"{100 * value(run, 'SE1 0.1', 'svhn', 'OOD AUROC'):.1f}",
    ]
    assert row == wanted
    assert list(found[TABLE_2]) == ["method", "HMC", "HMC, paper", "SE1 0.1", "SE1, paper"]
    assert found[TABLE_2]["SE1, paper"] == ["90.82", "0.301", "0.057", "94.1", "8.0", "85.5"]
    assert found[TABLE_2]["HMC"][-1] == DASH  # published predictions are of test images only
    corrupted = found[TABLE_3]
    assert corrupted["SE1 0.1"][1] == f"{value(run, 'SE1 0.1', 'corrupted', 'NLL'):.3f}"
    assert corrupted["HMC, paper"] == ["71.05", "0.879", "0.079"]
    assert "HMC" not in corrupted


def test_accuracy_by_corruption_and_intensity(runs, alone):
    run = runs["SE1 0.1"]
    found = Tables(alone).found["SE1 0.1: accuracy by corruption and intensity, %"]
    assert found.pop("intensity") == ["1", "2", "3", "4", "5"]
    assert len(found) == len(CORRUPTIONS) == 16
    for name in CORRUPTIONS:
        for level, text in enumerate(found[name.replace("_", " ")], 1):
            exact = value(run, "SE1 0.1", f"{name}-{level}", "accuracy")
            assert float(text) == pytest.approx(100 * exact, abs=0.05)


def test_several_runs_share_one_table_with_all_of_the_papers_rows(runs, together):
    found = Tables(together_part(together)).found
    order = ["method", "HMC", "HMC, paper", "regular", "regular, paper", "MultiSWA"]
    order += ["MultiSWA, paper", "SE1 0.1", "SE1, paper"]
    assert list(found[TABLE_2]) == order
    for name, run in runs.items():
        assert found[TABLE_2][name][0] == f"{100 * value(run, name, 'test', 'accuracy'):.2f}"
        assert found[TABLE_2][name][3] == f"{100 * value(run, name, 'test', 'agreement'):.2f}"
        assert found[TABLE_3][name][0] == f"{100 * value(run, name, 'corrupted', 'accuracy'):.2f}"
    page = Page(together)
    assert len(page.ids) == len(set(page.ids))
    for title in ("Predictive entropy", "Calibration", "Corruptions by intensity", "More members"):
        assert title in page.text


def test_runs_with_only_some_of_the_papers_methods_still_show_its_other_rows(runs):
    found = Tables(part_of_all([runs["regular"], runs["SE1 0.1"]])).found
    assert found[TABLE_2]["MultiSWA, paper"][:2] == ["88.49", "0.372"]
    assert "MultiSWA" not in found[TABLE_2]


def _rows(path, values: dict[str, dict[str, float]], half: float = 0.001) -> Rows:
    """Rows with these values of accuracy, NLL and agreement on test images."""
    folder = RunFolder(path, experiment="cifar", config={}, device="cpu")
    for row, metrics in values.items():
        for name, v in metrics.items():
            interval = {"value": v, "low": v - half, "high": v + half}
            folder.put(METRICS, (SET, row, "test", name), interval)
    folder.write()
    return gather([RunView(SavedRun(path), "run0")])[0]


def test_closest_is_not_highest(tmp_path):
    values = {
        "HMC": {"accuracy": 0.907, "NLL": 0.307},
        "better": {"accuracy": 0.930, "NLL": 0.250, "agreement": 0.90},
        "closer": {"accuracy": 0.905, "NLL": 0.310, "agreement": 0.94},
        "worse": {"accuracy": 0.880, "NLL": 0.400, "agreement": 0.92},
    }
    rows = _rows(tmp_path / "r", values)
    for metric in ("accuracy", "NLL", "agreement"):
        assert rows.marks("test", metric) == {"closer": "best"}
    assert rows.target(rows.methods[0], "test", "accuracy") == 0.907
    assert rows.target(rows.methods[0], "test", "agreement") == 1.0


def test_an_interval_that_comes_as_close_is_near(tmp_path):
    values = {
        "HMC": {"accuracy": 0.907},
        "A": {"accuracy": 0.905},  # 0.002 away
        "B": {"accuracy": 0.912},  # 0.005 away, and 0.001 at the end of its interval
        "C": {"accuracy": 0.920},
    }
    rows = _rows(tmp_path / "r", values, half=0.004)
    assert rows.marks("test", "accuracy") == {"A": "best", "B": "near"}


def test_without_a_value_of_hmc_nothing_is_closest(tmp_path):
    rows = _rows(tmp_path / "r", {"A": {"accuracy": 0.9}, "B": {"accuracy": 0.8}})
    assert rows.marks("test", "accuracy") == {}
    assert rows.references == ()


def test_the_closest_is_marked_on_the_page(runs, together):
    tables = Tables(together_part(together))
    at = {
        name: tables.classes[TABLE_2, name, 3]
        for name in METHODS  # agreement
    }
    best = max(METHODS, key=lambda name: value(runs[name], name, "test", "agreement"))
    assert at[best] == "best"
    assert list(at.values()).count("best") == 1
    ood = [tables.classes[TABLE_2, name, 5] for name in METHODS]
    assert ood == ["", "", ""]  # HMC has no value there


def test_the_same_row_of_two_runs_is_shown_twice(runs, tmp_path):
    again = cifar_run(tmp_path / "again", "SE1 0.1", closeness=0.8, seed=9)
    found = Tables(part_of_all([runs["SE1 0.1"], again])).found[TABLE_2]
    for run, name in ((runs["SE1 0.1"], "SE1 0.1, seed 2"), (again, "SE1 0.1, seed 9")):
        assert found[name][0] == f"{100 * value(run, 'SE1 0.1', 'test', 'accuracy'):.2f}"
    assert "SE1 0.1" not in found
    assert list(found).count("HMC") == 1


def test_folders_of_one_name_are_told_apart(tmp_path):
    first = cifar_run(tmp_path / "a" / "run", "SE3")
    second = cifar_run(tmp_path / "b" / "run", "SE3", seed=5)
    views = [RunView(run, f"run{i}") for i, run in enumerate([first, second, first])]
    names = [row.name for row in gather(views)[0].methods]
    assert names == ["SE3, seed 0 (a/run)", "SE3, seed 5", "SE3, seed 0 (a/run')"]


def test_references_that_differ_stand_apart_and_each_row_has_its_own(runs, tmp_path):
    few = cifar_run(tmp_path / "few", "SE3", images=100)
    views = [RunView(run, f"run{i}") for i, run in enumerate([runs["regular"], few])]
    rows = gather(views)[0]
    assert [row.name for row in rows.references] == ["HMC (regular)", "HMC (few)"]
    for row in rows.methods:
        reference = rows.reference_of(row)
        assert reference is not None
        assert reference.views == row.views
    Page(page_of_all([runs["regular"], few]))


def test_rates_are_in_order_and_unknown_rows_come_last(tmp_path):
    values = {name: {"accuracy": 0.9} for name in ("zeta", "SE1 0.2", "SE3", "SE1 0.05", "regular")}
    names = [row.name for row in _rows(tmp_path / "r", values).methods]
    assert names == ["regular", "SE1 0.05", "SE1 0.2", "SE3", "zeta"]


MISSING = ["reference", "corruptions", "training", "arrays", "metrics"]


@pytest.mark.parametrize("missing", long_but({"reference", "arrays", "metrics"}, MISSING))
def test_what_is_not_there_is_left_out(tmp_path, missing):
    options = {"reference": {"reference": False}, "corruptions": {"corruptions": ()}}
    run = cifar_run(tmp_path / "r", complete=False, **options.get(missing, {}))
    if missing in ("training", "metrics", "arrays"):
        setattr(run, missing, {})
    other = cifar_run(tmp_path / "other", "SE3", seed=3)
    alone = Page(build_page([run]))
    assert "not complete" in alone.text
    assert "SE3" in Page(page_of_all([run, other])).text
    gone = {"corruptions": "Table 3", "training": "KL loss over", "arrays": "nats from HMC"}
    if missing in gone:
        assert gone[missing] not in alone.text


def test_a_run_with_nothing_in_it_is_shown(tmp_path):
    RunFolder(tmp_path / "r", experiment="cifar", config={}, device="cpu")
    empty = SavedRun(tmp_path / "r")
    assert "How to read this" in Page(build_page([empty])).text
    assert "None of the runs has results yet" in Page(build_page([empty, empty])).text


def test_half_of_the_corrupted_sets_are_shown(tmp_path):
    run = cifar_run(tmp_path / "r")
    rows = run.metrics[SET]["SE1 0.1"]
    for name in list(rows):
        if name.startswith("frost") or name in ("fog-4", "fog-5", "corrupted"):
            del rows[name]
    found = Tables(build_page([run])).found
    assert TABLE_3 not in found
    heat = found["SE1 0.1: accuracy by corruption and intensity, %"]
    assert heat["fog"][3:] == [DASH, DASH]
    assert "frost" not in heat


def test_predictions_of_hmc_alone_make_its_histogram(tmp_path):
    """The published mean has no entropy beside it: it follows from the mean."""
    run = cifar_run(tmp_path / "r")
    with_entropy = build_page([run])
    del run.arrays[f"{SET}/HMC/test/entropy"]
    assert re.findall(r"[\d.]+ nats from HMC", build_page([run])) == re.findall(
        r"[\d.]+ nats from HMC", with_entropy
    )


def test_toy_and_cifar_runs_can_share_a_page(runs, tmp_path):
    text = build_page([runs["regular"], sample_run(tmp_path / "toy")])
    page = Page(text)
    assert "2 runs: CIFAR and toy" in page.text
    assert TABLE_2 in Tables(together_part(text)).found
    assert "Set a: all runs" in Tables(together_part(text)).found


def test_cifar100_has_its_own_tables(runs, tmp_path):
    other = cifar_run(tmp_path / "hundred", "SE1 0.3", set_name="cifar100")
    found = Tables(part_of_all([runs["regular"], other])).found
    assert found["Table 2: CIFAR-100, test images"]["SE1, paper"][0] == "68.49"
    assert "SE1 0.3" not in found[TABLE_2]


def test_names_are_text_whatever_is_in_them(tmp_path):
    run = cifar_run(tmp_path / "r", f"{HOSTILE} 0.1")
    other = cifar_run(tmp_path / "s", f"{HOSTILE} 0.1", seed=1)
    text = build_page([run, other])
    assert HOSTILE not in text
    assert HOSTILE in Page(text).text


def test_figures_can_be_read_on_the_darkest_tint(alone):
    """WCAG AA, where half of the cell's colour is the tint's."""
    blocks = re.findall(r"color-scheme: \w+;([^}]*)}", alone)
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        pair = [[int(colours[n][i : i + 2], 16) for i in (1, 3, 5)] for n in ("more", "ground")]
        mixed = "#" + "".join(f"{(a + b) // 2:02x}" for a, b in zip(*pair, strict=True))
        dark, bright = sorted([_luminance(mixed), _luminance(colours["ink"])])
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_the_same_runs_make_the_same_page(runs, alone, together):
    assert build_page([runs["SE1 0.1"]]) == alone
    assert part_of_all(list(runs.values())) == together_part(together)


def test_a_run_written_by_hand_with_other_metrics_is_shown(runs, tmp_path):
    for file in runs["regular"].path.iterdir():
        shutil.copy(file, tmp_path)
    odd = {"value": 0.5, "low": 0.4, "high": 0.6}
    rows = {"mine": {"test": {"accuracy": odd, "oddity": odd}, "here-and-there": {"NLL": odd}}}
    (tmp_path / CHECKSUMS).unlink()
    (tmp_path / METRICS).write_text(json.dumps({SET: rows}))
    assert Tables(build_page([SavedRun(tmp_path)])).found[TABLE_2]["mine"] == ["50.00"]
