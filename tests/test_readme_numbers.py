"""The tables of the README and the docs have the numbers of the files that they are made from, and
their links lead to files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.test_readme import PAGES

from stochens_lab.report.markdown import format_run
from stochens_lab.report.run_folder import SavedRun

ROOT = Path(__file__).parents[1]
CIFAR = ROOT / "results" / "cifar10"
HOW_CLOSE, BENCHMARKS = "docs/how-close.md", "benchmarks/README.md"
FOLDERS = {  # the beginning of a row of the CIFAR-10 table -> its run
    "regular": "regular",
    "MultiSWA": "multiswa",
    "SE1, p = 0.2": "se1-0.2-300",
    "SE1, p = 0.1": "se1-0.1-80",
    "SE2, p = 0.05": "se2-0.05",
    "SE3": "se3-channel",
    "cyclical SGHMC": "csghmc",
    "25 members of SE1, p = 0.2": "se1-0.2-200",
    "25 members of SE1, p = 0.1, with natural": "natural-0.1-200",
    "these two": "pooled",
}


def tables(page: str) -> list[list[list[str]]]:
    """Every table as rows of cells, the header first."""
    found: list[list[list[str]]] = [[]]
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [[rows[0], *rows[2:]] for rows in found if rows]


def table(header: str, page: str) -> list[list[str]]:
    """The rows of the only table with this column."""
    (rows,) = [rows[1:] for rows in tables(page) if header in rows[0]]
    return rows


def plain(cell: str) -> str:
    return cell.replace("*", "")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def measured(folder: str, row: str | None = None) -> list[float]:
    """Accuracy, NLL, agreement and variance, in the table's units."""
    rows = read(CIFAR / folder / "metrics.json")["cifar10"]
    (name,) = [n for n in rows if n != "HMC" and ", " not in n] if row is None else [row]
    test = rows[name]["test"]
    units = {"accuracy": 100, "NLL": 1, "agreement": 100, "variance": 100}
    return [unit * test[key]["value"] if key in test else 0.0 for key, unit in units.items()]


def written(values: list[float]) -> list[str]:
    return [f"{v:.{digits}f}" for v, digits in zip(values, (2, 3, 2, 2), strict=True)]


@pytest.mark.parametrize("start", FOLDERS)
def test_a_row_of_the_cifar_table_is_its_run(start):
    (row,) = [row for row in table("epochs", HOW_CLOSE) if plain(row[0]).startswith(start)]
    run = read(CIFAR / FOLDERS[start] / "run.json")
    parts = [read(CIFAR / part["run"] / "run.json") for part in run.get("pooled", [])]
    times = [t for r in parts or [run] for what, t in r["timings"].items() if " 0000-" in what]
    seconds = sum(times)
    assert plain(row[1]).split(" + ")[-1] == str(run["config"]["epochs"])
    assert plain(row[2]).split(" + ")[-1] == f"{seconds:.0f} s"
    assert [plain(cell) for cell in row[3:]] == written(measured(FOLDERS[start]))


def test_bold_in_the_cifar_table_is_what_is_closest_to_hmc():
    rows = table("epochs", HOW_CLOSE)
    hmc = measured("regular", "HMC")
    assert [plain(cell) for cell in rows[0][3:5]] == written(hmc)[:2]
    hmc[2] = 100.0  # it agrees with itself
    ours = {start: measured(folder) for start, folder in FOLDERS.items()}
    for k in range(4):
        (bold,) = [row for row in rows if row[3 + k].startswith("**")]
        closest = min(ours, key=lambda start: abs(ours[start][k] - hmc[k]))
        assert plain(bold[0]).startswith(closest)


@pytest.mark.parametrize(
    ("column", "way"),
    [
        (1, "loop"),
        (2, "vmap"),
        (3, "vmap + compile"),
        (4, "jax vmap"),
        (5, "ours"),
        (6, "ours, forward only"),
    ],
)
def test_speeds_on_a_gpu(column, way):
    cases = read(ROOT / "benchmarks" / "gpu.json")["cases"]
    speeds = {c["members"]: c["member_images_per_s"] for c in cases if c["name"] == way}
    rows = table("members", BENCHMARKS)
    found = {row[0]: plain(row[column]).split(" (")[0] for row in rows if row[column]}
    assert found == {str(m): f"{speeds[m]:,}" for m in speeds if str(m) in found}
    assert found


@pytest.mark.parametrize(
    ("mark", "folder"),
    [(", the paper's sizes", "toy"), (", replicated", "toy/table"), (", on a CPU", "toy/samplers")],
)
def test_distances_on_the_toy_problem(mark, folder):
    rows = [row for rows in tables(HOW_CLOSE) for row in rows if mark in row[0]]
    metrics = read(ROOT / "results" / folder / "metrics.json")
    for name, *cells in rows:
        for set_name, cell in zip("abc", cells, strict=True):
            assert plain(cell) == distances(metrics[set_name][name.split(mark)[0].strip("`")])
    assert len(rows) >= 2


def distances(row: Any) -> str:
    """In domain / out of domain."""
    return " / ".join(f"{100 * row[place]['variance']['value']:.2f}" for place in ("in", "out"))


def test_how_close_on_digits():
    rows = read(ROOT / "results/digits/metrics.json")["digits"]

    def told(metric: dict[str, float], digits: int = 1) -> str:
        value, low, high = (f"{100 * metric[k]:.{digits}f}" for k in ("value", "low", "high"))
        return f"{value} ({low} to {high})"

    for cell, accuracy, nll, distance in table("total variation to HMC, 10⁻²", HOW_CLOSE):
        name = cell.strip("`")
        test = rows[name]["test"]
        assert accuracy == told(test["accuracy"])
        assert nll == f"{test['NLL']['value']:.3f}"
        own = rows["HMC, its own noise"]["test"] if name == "HMC" else test
        assert plain(distance).split(", ")[0] == told(own["variance"])


def test_how_close_in_the_readme():
    rows = table("toy a", "README.md")
    assert len(rows) == 6
    metrics = read(ROOT / "results/toy/table/metrics.json")
    runs = {"SE1": "se1-0.2-300", "SE2": "se2-0.05", "SE3": "se3-channel", "MultiSWA": "multiswa"}
    for cell, *toy, cifar in rows:
        name = cell.split(" (")[0].strip("`")
        assert [plain(c) for c in toy] == [distances(metrics[s][name]) for s in "abc"]
        if name != "langevin":
            assert plain(cifar) == written(measured(runs.get(name, name)))[3]
    words = " ".join((ROOT / "README.md").read_text().split())
    assert f"natural gradients has {written(measured('pooled'))[3]}" in words
    later = read(ROOT / "results/toy/samplers/metrics.json")
    for name in ("mclmc", "langevin"):
        a, b, c = (distances(later[s][name]) for s in "abc")
        assert f"{a}, {b} and {c}" in words


def test_how_fast_in_the_readme():
    results = ROOT / "benchmarks" / "results"
    cases = read(ROOT / "benchmarks" / "gpu.json")["cases"]
    at_50 = {c["name"]: c["member_images_per_s"] for c in cases if c["members"] == 50}
    (loop,) = [c["member_images_per_s"] for c in cases if c["name"] == "loop"]
    (chains,) = [
        c for c in read(results / "nuts-h200.json")["against numpyro"] if c["chains"] == 256
    ]
    resnet = networks_on_a_gpu()["resnet18"]
    assert [plain(row[-1]) for row in table("speed-up", "README.md")] == [
        f"{read(results / 'training.json')['cases']['regular']['ratio']:.0f}x",
        f"{chains['ratio']['median']:.0f}x",
        f"{at_50['ours'] / loop:.0f}x",
        f"{resnet['fit'] / resnet['compiled loop']:.2f}x",
    ]


def networks_on_a_gpu() -> dict[str, dict[str, float]]:
    """Member-examples a second of each network by each way; of several runs the last that has it
    whole, so that a network's two ways are of one run."""
    found: dict[str, dict[str, float]] = {}
    for file in ("networks-own-h200", "networks-own-2-h200", "networks-own-3-h200"):
        own: dict[str, dict[str, float]] = {}
        for c in read(ROOT / "benchmarks" / "results" / f"{file}.json")["cases"]:
            if "error" not in c:
                own.setdefault(c["network"], {})[c["way"]] = c["member_examples_per_s"]
        found |= {name: speeds for name, speeds in own.items() if "fit" in speeds}
    return found


def test_speeds_of_networks_on_a_gpu():
    names = ("mlp", "cnn", "vit", "text", "resnet18", "mobilenet", "lstm", "tabm")
    found = networks_on_a_gpu()
    for name, (_, loop, ours, ratio, *_) in zip(
        names, table("4x / 10x batch", BENCHMARKS), strict=True
    ):
        speeds = [found[name]["compiled loop"], found[name]["fit"]]
        said = [float(plain(cell).split(" (")[0].replace(",", "")) for cell in (loop, ours)]
        assert said == pytest.approx([s / 1000 for s in speeds], rel=0.005)
        assert ratio == f"{speeds[1] / speeds[0]:.2f}"


def test_speeds_on_a_cpu():
    cases = read(ROOT / "benchmarks" / "results" / "training.json")["cases"]
    for name, loop, ours, ratio in table("loop", BENCHMARKS):
        case = cases[name.replace('`engine="vmap"`', "vmap")]
        assert (loop, ours) == (f"{case['loop_us']:.0f} us", f"{case['ours_us']:.1f} us")
        low, high = case["ratio_min"], case["ratio_max"]
        assert plain(ratio) == f"{case['ratio']:.0f}x ({low:.0f} to {high:.0f})"


def test_speeds_of_networks_on_a_cpu():
    cases = read(ROOT / "benchmarks" / "results" / "networks-members-cpu.json")["cases"]
    found: dict[str, dict[tuple[str, int], str]] = {}
    for case in cases:
        speed = f"{case['member_examples_per_s']:,}"
        found.setdefault(case["network"], {})[case["way"], case["members"]] = speed
    order = [("loop", 1), ("compiled loop", 1), *(("fit", members) for members in (1, 2, 4, 8))]
    for (_, *cells), speeds in zip(table("plain loop", BENCHMARKS), found.values(), strict=True):
        assert cells == [speeds[one] for one in order]


def test_memory_of_streamed_predictions():
    cases = read(ROOT / "benchmarks" / "results" / "streaming.json")["cases"]
    for (_, memory, seconds), case in zip(table("10 GB by", BENCHMARKS), cases, strict=True):
        assert (memory, seconds) == (f"{case['above_mb']:.0f} MB", f"{case['seconds']:.0f} s")
        assert case["gb"] == pytest.approx(10)
        assert case["above_mb"] < 1000  # what is promised


def test_speeds_of_nuts():
    files = [ROOT / "benchmarks" / "results" / f"nuts-{where}.json" for where in ("cpu", "h200")]
    cases = [case for file in files for case in read(file)["against numpyro"]]
    for (_, chains, *cells), case in zip(table("NumPyro", BENCHMARKS), cases, strict=True):
        speed, ratio = case["ess per second"], case["ratio"]
        assert chains == str(case["chains"])
        said = [float(cell.replace(",", "")) for cell in cells[:2]]
        assert said == pytest.approx([speed["numpyro"], speed["stochens"]], rel=0.003)
        digits = 0 if ratio["median"] > 10 else 1
        about = f"{ratio['median']:.{digits}f}x ({ratio['least']:.1f} to {ratio['most']:.1f})"
        assert plain(cells[2]) == about


@pytest.mark.parametrize("name", ["transfer", "imdb"])
def test_the_table_of_an_experiment_is_made_from_its_numbers(name):
    folder = ROOT / "results" / name
    if not folder.exists():
        pytest.skip(f"results/{name} is not there")
    assert (folder / "tables.md").read_text() == format_run(SavedRun(folder))


def test_the_table_of_lora_is_made_from_its_numbers():
    file = ROOT / "benchmarks" / "results" / "lora-h200.json"
    if not file.exists():
        pytest.skip("benchmarks/results/lora-h200.json is not there")
    told = file.with_suffix(".md").read_text()
    page = (ROOT / "docs" / "pretrained.md").read_text()
    for row in read(file)["cases"]:
        if "error" in row:  # the record stays, the page says it, and the table has no such row
            assert f"*{row['way']}*" in page
            assert f"| {row['way']} |" not in told
            continue
        (line,) = [line for line in told.splitlines() if line.startswith(f"| {row['way']} |")]
        times = f"{row['times_faster']:.1f}x" if "times_faster" in row else ""
        for said in (
            f"| {row['ms_a_step']:.1f} | {times} |",
            f"| {row['stored_of_one']:.2f} networks | {100 * row['accuracy']:.1f} % (",
            f") | {row['nll']:.3f} (",
        ):
            assert said in line


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "results/README.md", ROOT / "benchmarks/README.md"]
)
def test_links_lead_somewhere(page):
    """On a forge, where files are read as they are; the site's own are checked when it is built."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target and page.name != "contributing.md":
            assert (page.parent / target).exists(), target


def test_the_table_of_one_example_has_the_numbers_of_its_file():
    cases = read(ROOT / "benchmarks" / "results" / "latency.json")["cases"]
    rows = table("to vmap with `nn.Dropout`", BENCHMARKS)
    assert len(rows) == len(cases) / 2
    for name, *cells in rows:
        regular, dropout = cases[f"{name}, regular"], cases[f"{name}, dropout"]
        times = [regular["vmap_ms"], regular["predict_ms"], dropout["predict_ms"]]
        ratios = [regular["times_vmap"], dropout["times_vmap"], dropout["times_vmap_with_dropout"]]
        told = [plain(cell) for cell in cells]
        assert [told[k] for k in (0, 1, 3)] == [f"{t:.1f} ms" for t in times]
        assert [told[k] for k in (2, 4, 5)] == [f"{r:.2f}x" for r in ratios]


def test_the_table_of_exported_files_has_the_numbers_of_its_file():
    cases = read(ROOT / "benchmarks" / "results" / "export-latency.json")["results"]
    rows = table("exported network", BENCHMARKS)
    assert [name for name, *_ in rows] == list(cases)
    for name, *cells in rows:
        at = [(c["at once"], c["in turns"] / c["at once"]) for c in cases[name].values()]
        assert cells == [f"{ms:.2f} ms ({ratio:.1f}x)" for ms, ratio in at]
