"""Ctrl-C in the middle: exit code 130, and a run that goes on to the same end."""

import torch
from tests.own.conftest import table

import stochens

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
        (typed("fit", "--resume", run, "--same-model", "--epochs", 16), "--epochs 15"),
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
        **{"members": 3, "epochs": 15, "batch_size": 16, "method": "dropout", "engine": "vmap"},
    )
    theirs = stochens.load(run / "posterior", trees_nets.Stops)
    assert all(torch.equal(theirs.params[name], p) for name, p in whole.params.items())
    again = typed("fit", "--resume", run)
    assert again.code == 0
    assert "nothing left to do" in again.err
