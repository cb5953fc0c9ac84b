"""Commands as a newcomer types them."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
import typer
from tests.faults.test_workers import HEEDS
from tests.lab.experiments.test_toy import SMALL
from tests.lab.report.sample import sample_run
from typer.testing import CliRunner

import stochens
from stochens_lab.cli import app, main
from stochens_lab.cli.options import take_options
from stochens_lab.experiments import toy_config
from stochens_lab.experiments.cifar_config import CifarConfig
from stochens_lab.experiments.digits import DigitsConfig
from stochens_lab.experiments.toy_config import ToyConfig
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.workflow.config import FitConfig


def run(*words: str, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stochens_lab", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def test_help_and_version():
    help_page = CliRunner().invoke(app, ["--help"])
    assert help_page.exit_code == 0
    for command in ("toy", "digits", "report"):
        assert command in help_page.output
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    version = CliRunner().invoke(app, ["--version"])
    assert version.output.strip() == f"stochens {stochens.__version__}"


@pytest.mark.parametrize(
    ("command", "config", "defaults"),
    [
        ("fit", FitConfig, ["Members of the ensemble: 50.", "parameter: 1.", "measure: 0."]),
        (
            "toy",
            ToyConfig,
            ["quick (if not given), table or paper.", "Seed of everything random: 0"],
        ),
        ("digits", DigitsConfig, ["quick (if not given) or paper."]),
        ("cifar", CifarConfig, ["300, as the paper.", "so many: 40960, as", "Drop rate: 0.1"]),
    ],
)
def test_the_options_of_a_command_are_the_fields_of_its_config(command, config, defaults):
    page = CliRunner().invoke(app, [command, "--help"]).output
    shown = " ".join(page.replace("│", " ").split())  # however wide the terminal is
    hints = typing.get_type_hints(config, include_extras=True)
    optional = [f for f in dataclasses.fields(config) if hasattr(hints[f.name], "__metadata__")]
    assert len(optional) >= 7
    for field in optional:
        name = "method" if field.name == "only" else field.name.replace("_", "-")
        assert f"--{name} " in shown
    assert "{" not in shown
    assert "--no-" not in shown
    for text in defaults:
        assert text in shown


@pytest.mark.parametrize("words", [("--jobs", "0"), ("--jobs", "few"), ("--sets",), ("--foo", "1")])
def test_an_option_of_another_kind_is_refused_by_its_name(words):
    done = CliRunner().invoke(app, ["toy", *words])
    assert done.exit_code == 2
    assert words[0] in done.output


def test_what_was_not_typed_is_left_to_the_config():
    seen: dict[str, object] = {}
    own = typer.Typer()

    @own.command()
    @take_options(ToyConfig)
    def command(*, out: Path | None, loud: bool = False, **given: object) -> None:
        seen.update(given, out=out, loud=loud)

    assert CliRunner().invoke(own, []).exit_code == 0
    assert seen.pop("loud") is False
    assert set(seen.values()) == {None}
    words = ["--sets", "ab", "--method", "SE3", "--method", "SE1", "--out", "here", "--loud"]
    assert CliRunner().invoke(own, words).exit_code == 0
    assert seen["sets"] == ("a", "b")
    assert seen["only"] == ("SE3", "SE1")
    assert (seen["out"], seen["loud"]) == (Path("here"), True)


@pytest.fixture
def small(monkeypatch):
    """`stochens toy` with its quick preset cut down to seconds."""
    monkeypatch.setitem(toy_config.PRESETS, "quick", SMALL)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_toy_leaves_a_run_with_a_page(small, tmp_path):
    out = tmp_path / "one"
    done = CliRunner().invoke(app, ["toy", "--sets", "a", "--out", str(out)])
    assert done.exit_code == 0, done.output
    for word in ("NUTS, its own noise", "SE3", "Page:", "variance"):
        assert word in done.output
    for file in ("run.json", "metrics.json", "predictions.npz", "report.html", "figures/fig1.svg"):
        assert (out / file).exists(), file
    assert SavedRun(out).about["complete"]
    again = CliRunner().invoke(app, ["report", str(out)])
    assert again.exit_code == 0
    assert str(out / "report.html") in again.output.replace("\n", "")


@pytest.mark.long
def test_several_runs_on_one_page(tmp_path):
    for name in ("one", "two"):
        sample_run(tmp_path / name)
    both = [str(tmp_path / name) for name in ("one", "two")]
    page = tmp_path / "both.html"
    done = CliRunner().invoke(app, ["report", *both, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "one" in page.read_text()
    assert "two" in page.read_text()


def test_bad_words_are_one_line(tmp_path, monkeypatch, capsys):
    def answer(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["stochens", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        return capsys.readouterr().err

    assert "--members" in answer("toy", "--members", "many")
    assert "No such command" in answer("dmo")
    (tmp_path / "letter").write_text("dear")
    for words, said in (
        (["toy", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["toy", "--out", str(tmp_path)], "is not empty"),
        (["toy", "--preset", "quik", "--out", str(tmp_path / "new")], "did you mean 'quick'"),
        (["digits", "--preset", "table", "--out", str(tmp_path / "new")], "preset"),
        (["cifar"], "where are the images? Give their folder: --data DIR"),
        (["cifar", "--name", "cifar9", "--data", str(tmp_path)], "name must be one of cifar10"),
        (["fit", "--target", "y"], "--model is missing"),
        (["report", str(tmp_path / "nowhere")], "is no saved folder"),
        (["report", "a", "b"], "several runs need a place"),
    ):
        line = answer(*words)
        assert line.startswith("error: ")
        assert said in line
    last = run(*words)  # as the shell sees it
    assert (last.returncode, last.stderr) == (2, line)


def test_work_that_fails_is_one_line_and_another_code(monkeypatch, capsys):
    def fail() -> None:
        raise stochens.Failed("all 2 members [0, 1] diverged")

    monkeypatch.setattr(sys.modules["stochens_lab.cli.app"], "app", fail)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == "error: all 2 members [0, 1] diverged\n"


def test_what_takes_seconds_to_import_waits_until_it_is_needed():
    code = "import stochens_lab.cli, sys; print(*(m for m in sys.argv[1:] if m in sys.modules))"
    slow = ["matplotlib", "jinja2", "scipy.stats", "sklearn", "pyarrow", "ray", "onnx", "arviz"]
    found = subprocess.run([sys.executable, "-c", code, *slow], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("\n", "")


@pytest.mark.long
def test_ctrl_c_leaves_a_run_that_can_be_shown(tmp_path):
    out = tmp_path / "run"
    endless = SMALL | {"langevin_steps": 10**6}  # the last row of all
    code = (
        "from stochens_lab.cli import main\nfrom stochens_lab.experiments import toy_config\n"
        f"toy_config.PRESETS['quick'] = {endless}\nmain()"
    )
    command = [sys.executable, "-c", code, "toy", "--sets", "a", "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=HEEDS,
    )
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:  # until the first method is done
        metrics = out / "metrics.json"
        if metrics.exists() and "regular" in json.loads(metrics.read_text()).get("a", {}):
            break
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "what is done is kept" in errors
    assert not SavedRun(out).about["complete"]
    assert (out / "report.html").exists()
