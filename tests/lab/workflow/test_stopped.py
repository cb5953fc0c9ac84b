"""Ctrl-C in the middle: exit code 130, and a run that goes on to the same end."""

import pytest
import torch
from tests.lab.workflow.conftest import table

import stochens
from stochens_lab.report.run_folder import SavedRun

WORDS = ("--data", "train.csv", "--target", "kind", "--members", 3, "--epochs", 15)
MORE = ("--batch-size", 16, "--method", "dropout", "--engine", "vmap")


def test_ctrl_c_and_then_on(typed, here, tmp_path):
    run = tmp_path / "run"
    said = typed("fit", "--model", "trees_nets:Stops", *WORDS, *MORE, "--out", run)
    assert said.code == 130, said.err
    assert f"go on with it: stochens fit --resume {run} --model trees_nets:Stops" in said.err
    assert (run / "checkpoints").exists()
    assert not (run / "posterior").exists()
    for refused, word in (
        (typed("predict", run, "test.csv", "--same-model"), "is not finished"),
        (typed("fit", "--resume", run), "a run holds no code"),
        (typed("fit", "--resume", run, "--same-model", "--epochs", 16), "epochs = 15"),
        (typed("fit", "--resume", run, "--same-model", "--out", here), "--out"),
        (typed("fit", "--resume", run, "--same-model", "--data", "test.csv"), "the data differ"),
        (typed("fit", *WORDS, "--model", "trees_nets:Stops", "--out", run), "is not empty"),
    ):
        assert refused.code == 2
        assert word in refused.err
        assert refused.err.count("\n") == 1 + ("steps of training" in refused.err)
    done = typed("fit", "--resume", run, "--same-model")
    assert done.code == 0, done.err
    assert not (run / "checkpoints").exists()
    import trees_nets

    whole = stochens.fit(
        *(trees_nets.Stops, table(60, 0)),
        **{"members": 3, "epochs": 15, "batch_size": 16, "method": "dropout"},
        run=stochens.Run(engine="vmap"),
    )
    theirs = stochens.load(run / "posterior", trees_nets.Stops)
    assert all(torch.equal(theirs.params[name], p) for name, p in whole.params.items())
    again = typed("fit", "--resume", run)
    assert again.code == 0
    assert "nothing left to do" in again.err


def test_a_run_without_a_checkpoint_says_what_was_used_in_the_end(typed, here, tmp_path):
    run = tmp_path / "run"
    words = ("--target", "kind", "--members", 2, "--epochs", 3, "--engine", "vmap", "--out", run)
    with pytest.raises(RuntimeError, match="killed"):
        typed("fit", "--model", "trees_nets:Dies", "--data", "train.csv", *words)
    asked = SavedRun(run).about["config"]
    again = ("fit", "--resume", run, "--model")
    refused = typed(*again, "trees_nets:make_net", "--data", "test.csv")
    assert refused.code == 2
    assert f"{run} is of another run: the data differ" in refused.err
    copy = tmp_path / "copy.csv"
    copy.write_bytes((here / "train.csv").read_bytes())
    with pytest.raises(RuntimeError, match="killed"):  # a network that nothing came of
        typed(*again, "trees_nets:Dies", "--data", copy)
    assert SavedRun(run).about["config"] == asked
    done = typed(*again, "trees_nets:make_net", "--data", copy)
    assert done.code == 0, done.err
    config = SavedRun(run).about["config"]
    assert (config["model"], config["data"]) == ("trees_nets:make_net", str(copy))
    assert config | {"model": asked["model"], "data": asked["data"]} == asked
    answer = typed("predict", run, "test.csv", "--same-model", "--out", tmp_path / "p.csv")
    assert answer.code == 0, answer.err


def test_a_run_with_checkpoints_keeps_its_word_until_another_is_accepted(typed, here, tmp_path):
    run = tmp_path / "run"
    import trees_nets

    trees_nets.Stops.calls = 0
    said = typed("fit", "--model", "trees_nets:Stops", *WORDS, *MORE, "--out", run)
    assert said.code == 130, said.err
    asked = SavedRun(run).about["config"]
    refused = typed("fit", "--resume", run, "--model", "trees_nets:make_net")
    assert refused.code == 2
    assert "is of another run: network was" in refused.err
    assert SavedRun(run).about["config"] == asked
    done = typed("fit", "--resume", run, "--model", "trees_nets:same")
    assert done.code == 0, done.err
    assert SavedRun(run).about["config"] == asked | {"model": "trees_nets:same"}
