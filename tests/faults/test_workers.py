"""Worker processes that are killed: the run goes on, or says whose work is missing."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from tests.faults.workers import Part, run
from tests.lab.experiments.test_resume import same
from tests.lab.experiments.test_toy import SMALL
from tests.long import long_but

from stochens import Failed, InputError
from stochens_lab.experiments import toy, toy_config
from stochens_lab.experiments.parts import run_parts
from stochens_lab.experiments.runs import PARTS
from stochens_lab.report.run_folder import METRICS, RUN, RunFolder, SavedRun

pytestmark = pytest.mark.xdist_group("workers")  # one process to fork from
ROOT = Path(__file__).parents[2]
# of Ctrl-C, which processes are deaf to that a shell began by "&", and their children
HEEDS = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run whose parts are done by forks of a process that has imported everything; the tests
    without it have processes that begin from nothing, as users have."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.faults.workers"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: forks)
    with RunFolder(tmp_path / "run", experiment="toy", config={}, device="cpu") as folder:

        def absorb(part: SavedRun) -> None:  # numbers in the place of tables
            for name, value in part.metrics.items():
                folder.put(METRICS, (name,), value)

        monkeypatch.setattr(folder, "absorb", absorb)
        yield folder


def parts(folder: RunFolder, **how: str) -> list[Part]:
    return [Part(folder.path / PARTS / name, word) for name, word in how.items()]


def found(folder: RunFolder) -> dict[str, int]:
    return SavedRun(folder.path).metrics


def test_a_worker_that_is_killed_is_begun_again_and_goes_on(folder):
    with pytest.warns(UserWarning, match=r"the process of b was ended by SIGKILL; .* again"):
        run_parts(run, parts(folder, a="well", b="killed once", c="well"), folder, jobs=2)
    assert found(folder) == {"a": 1, "b": 2, "c": 1}


def test_one_that_is_killed_each_time_is_named_and_the_others_are_done(folder):
    ways = {"a": "killed", "b": "well", "c": "well", "d": "well"}
    said = r"the process of a was ended by SIGKILL, the last of 3 times.*--resume"
    with pytest.warns(UserWarning, match="begun again"), pytest.raises(Failed, match=said):
        run_parts(run, parts(folder, **ways), folder, jobs=2)
    assert found(folder) == {"a": 3, "b": 1, "c": 1, "d": 1}
    run_parts(run, parts(folder, a="well", b="well"), folder, jobs=2)  # as --resume does
    assert found(folder)["a"] == 4


def test_one_that_was_killed_before_it_said_what_it_is_begins_anew(folder):
    for part in parts(folder, a="well"):
        part.out.mkdir(parents=True)
        (part.out / ".metrics.json").write_text("{")
    run_parts(run, parts(folder, a="well"), folder, jobs=2)
    assert found(folder) == {"a": 1}


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [("refused", InputError, "the part is wrong"), ("faulty", ZeroDivisionError, "by zero")],
)
def test_an_error_is_that_of_the_worker_and_what_runs_is_finished(folder, how, kind, said):
    with pytest.raises(kind, match=said) as raised:
        run_parts(run, parts(folder, a=how, b="well"), folder, jobs=2)
    assert "workers.py" in "".join(raised.value.__notes__)  # where it happened
    assert found(folder)["b"] == 1


SCRIPT = """
import sys
from tests.faults.workers import Part, run
from stochens_lab.experiments.parts import run_parts
from stochens_lab.report.run_folder import RunFolder
if __name__ == "__main__":
    with RunFolder(sys.argv[1], experiment="toy", config={}, device="cpu") as folder:
        slow = [Part(folder.path / "parts" / name, "slow") for name in "ab"]
        run_parts(run, slow, folder, jobs=2)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", long_but({signal.SIGKILL}, SIGNALS))
def test_workers_do_not_outlive_their_run(tmp_path, number):
    out = tmp_path / "run"
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, str(tmp_path / "script.py"), str(out)]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=HEEDS
    ) as main:
        said = [out / PARTS / name / "slow" for name in "ab"]
        deadline = time.monotonic() + 120
        while not all(file.exists() and file.read_text() for file in said):
            assert time.monotonic() < deadline
            assert main.poll() is None, main.stderr.read()
            time.sleep(0.1)
        workers = [int(file.read_text()) for file in said]
        os.kill(main.pid, number)  # to the main process alone
        main.wait(timeout=60)
        while any(map(alive, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for name in "ab":  # what they held can be had
        with RunFolder.reopen(out / PARTS / name, config={}, device="cpu"):
            pass


@pytest.mark.long
def test_a_real_run_whose_worker_is_killed_ends_as_if_nothing_had_been(tmp_path):
    options = SMALL | {"draws": 1, "curve": (), "sets": ("a", "c"), "only": ("regular", "SE3")}
    cut = tmp_path / "cut"
    killed: list[int] = []

    def kill() -> None:
        begun = cut / PARTS / "c"
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not killed:
            if (begun / RUN).exists() and (begun / "checkpoints").exists():
                pid = int((begun / ".lock").read_text())
                assert pid in [child.pid for child in multiprocessing.active_children()]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        toy.run(toy_config.configure("quick", jobs=2, out=cut, **options))
    thread.join()
    assert killed
    assert any("the process of c was ended by SIGKILL" in str(w.message) for w in said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = toy.run(toy_config.configure("quick", out=tmp_path / "whole", **options))
    same(SavedRun(cut), SavedRun(whole))
