"""Commands as a newcomer types them."""

import json
import subprocess
import sys

import stochens


def run(*words: str, cwd=None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stochens.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def test_help_and_version():
    help_page = run("--help")
    assert help_page.returncode == 0
    assert "demo" in help_page.stdout
    assert run("--version").stdout.strip() == f"stochens {stochens.__version__}"
    assert "digits" in run("demo", "--help").stdout


def test_demo_leaves_a_run_that_can_be_read(tmp_path):
    done = run("demo", "--members", "2", "--epochs", "2", "--out", "runs/one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    about = json.loads((tmp_path / "runs/one/metrics.json").read_text())
    assert set(about["metrics"]) == {"regular", "dropout"}
    assert (tmp_path / "runs/one/uncertainty.png").exists()
    from stochens.experiments.demo import make_net

    assert len(stochens.load(tmp_path / "runs/one/dropout", make_net)) == 2
    again = run("demo", "--out", "runs/one", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith("error: runs/one is not empty; choose another folder")


def test_bad_words_are_one_line():
    for words in (["demo", "--members", "many"], ["dmo"]):
        answer = run(*words)
        assert answer.returncode == 2
        assert "Traceback" not in answer.stderr
    bad = run("demo", "--members", "0", "--out", "/proc/nowhere")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
