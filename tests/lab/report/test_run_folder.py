"""A run folder is whole at every moment, and says what it is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import stochens
from stochens import InputError, Predictive
from stochens.files.storage import CHECKSUMS
from stochens_lab.report.finish import write_page
from stochens_lab.report.run_folder import METRICS, RunFolder, SavedRun
from stochens_lab.workflow.fitted_run import read_about


def folder(path) -> RunFolder:
    return RunFolder(path, experiment="toy", config={"seed": 3}, device="cpu")


def test_what_is_put_is_read_back(tmp_path):
    out = folder(tmp_path / "run")
    draws = torch.rand(5, 7, 3, generator=torch.Generator().manual_seed(0))
    p = Predictive.of(draws / draws.sum(-1, keepdim=True))
    out.predictive(("a", "SE3", "in"), p)
    out.put(METRICS, ("a", "SE3", "in", "variance"), {"value": 0.1, "low": 0.0, "high": 0.2})
    with out.timed("a/SE3"):
        pass
    out.write()
    run = SavedRun(tmp_path / "run")
    assert run.metrics["a"]["SE3"]["in"]["variance"]["value"] == 0.1
    assert run.about["config"] == {"seed": 3}
    assert set(run.about["timings"]) == {"a/SE3"}
    assert not run.about["complete"]
    for key in ("stochens", "torch", "numpy", "python"):
        assert run.about["versions"][key]
    back = run.predictive(("a", "SE3", "in"))
    torch.testing.assert_close(back.mean, p.mean)
    # a difference of two float32 numbers of about 1
    torch.testing.assert_close(back.mutual_information, p.mutual_information, rtol=1e-5, atol=2e-7)
    out.write(complete=True)
    assert SavedRun(tmp_path / "run").about["complete"]
    assert not [f for f in (tmp_path / "run").iterdir() if f.name.startswith(".")]


def test_a_folder_in_use_is_refused_before_any_work(tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(InputError, match="is not empty"):
        folder(tmp_path)


def test_numbers_that_json_has_not_are_null(tmp_path):
    out = folder(tmp_path / "run")
    out.put(METRICS, ("a",), [float("nan"), float("inf"), 1.0])
    out.write()
    assert json.loads((tmp_path / "run" / METRICS).read_text()) == {"a": [None, None, 1.0]}


def test_damage_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="is no saved folder"):
        SavedRun(tmp_path / "nowhere")
    out = folder(tmp_path / "run")
    (tmp_path / "run" / METRICS).write_text("[1, 2]")
    with pytest.raises(InputError, match=r"metrics.json is damaged: it does not fit its checksum"):
        SavedRun(tmp_path / "run")
    (tmp_path / "run" / CHECKSUMS).unlink()
    with pytest.raises(InputError, match=r"metrics.json is damaged: not a table"):
        SavedRun(tmp_path / "run")
    out.arrays["x"] = np.zeros(3)
    out.write()
    (tmp_path / "run" / "predictions.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="damaged"):
        SavedRun(tmp_path / "run")


def test_a_saved_posterior_is_called_what_it_is(tmp_path):
    """Was: its SHA256SUMS is damaged."""
    data = stochens.toy_set("a", n=40)
    posterior = stochens.fit(stochens.MLP(2, 5, 2), data, members=2, epochs=1)
    posterior.save(tmp_path / "mine")
    for read in (SavedRun, read_about, lambda path: write_page([path], None)):
        with pytest.raises(InputError, match=r"mine is a saved posterior, not a run: .*evaluate"):
            read(tmp_path / "mine")
    assert not (tmp_path / "mine" / "report.html").exists()
    folder(tmp_path / "run").write(complete=True)
    posterior.save(tmp_path / "run" / "posterior")
    with pytest.raises(InputError, match=r"posterior is a part of a run; name the run: .*run"):
        SavedRun(tmp_path / "run" / "posterior")


def test_the_results_of_this_repository_are_whole():
    """A file of theirs that is edited by hand needs its checksum anew."""
    stored = [path.parent for path in (Path(__file__).parents[3] / "results").rglob(CHECKSUMS)]
    assert stored
    for path in stored:
        SavedRun(path)
