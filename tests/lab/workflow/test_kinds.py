"""Readers and schemas by themselves: what a cell, a column or an array means."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.lab.workflow.conftest import table

from stochens.likelihoods import draws
from stochens_lab.data import columns_csv, columns_parquet
from stochens_lab.data.columns import parse_labels
from stochens_lab.data.examples import Examples, Layout
from stochens_lab.workflow import prediction
from stochens_lab.workflow.schema import Scale, Schema

NET = ("--model", "trees_nets:make_net")


@pytest.mark.parametrize(
    "text",
    [
        "a,y\n1,p\n2.5,q\n",
        "\ufeffa,y\r\n1,p\r\n\r\n2.5,q\r\n",
        "a;y\n1;p\n2.5;q",
        'a\t"y"\n1\t"p"\n 2.5 \tq\n',
        "y,other,a\np,x,1\nq,,2.5\n",
    ],
)
def test_csv_as_people_write_it(tmp_path, text):
    file = tmp_path / "t.csv"
    file.write_bytes(text.encode())
    found = columns_csv.read(file, ["a"], ["y"])
    assert found.x.tolist() == [[1.0], [2.5]]
    assert found.targets == [["p", "q"]]


def test_csv_in_blocks(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(23, 2))
    file = tmp_path / "t.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["a", "b"], *([repr(v) for v in row] for row in x.tolist())])
    monkeypatch.setattr(columns_csv, "ROWS_AT_A_TIME", 5)
    assert np.array_equal(columns_csv.read(file, ["b", "a"], []).x, x[:, ::-1])


def test_parquet_of_many_types(tmp_path):
    file = tmp_path / "t.parquet"
    texts = ["p", "q", "p", "r", "p"]
    columns = {
        "int": pa.array([1, 2, 3, 4, 5], pa.int16()),
        "bool": [True, False, True, True, False],
        "half": np.arange(5, dtype=np.float16),
        "text": texts,
        "large": pa.array(texts, pa.large_string()),
        "category": pa.array(texts).dictionary_encode(),
        "float": [1.0, 2.0, 1.0, 0.0, 1.0],
        "hole": pa.array([1.0, None, 1.0, 1.0, 1.0]),
        "day": pa.array([1, 2, 3, 4, 5], pa.date32()),
    }
    pq.write_table(pa.table(columns), file, row_group_size=2)
    names = ["text", "large", "category", "int", "bool", "float"]
    found = columns_parquet.read(file, ["half", "bool", "int"], names)
    assert found.x.tolist() == [[0, 1, 1], [1, 0, 2], [2, 1, 3], [3, 1, 4], [4, 0, 5]]
    as_labels = [parse_labels(values, "y", file) for values in found.targets]
    assert as_labels[:3] == [texts] * 3
    assert as_labels[3] == ["1", "2", "3", "4", "5"]
    assert as_labels[4] == ["true", "false", "true", "true", "false"]
    assert as_labels[5] == ["1", "2", "1", "0", "1"]
    for feature, said in (("hole", "no value in row 2"), ("text", "type string"), ("day", "date")):
        with pytest.raises(ValueError, match=said):
            columns_parquet.read(file, [feature], [])
    with pytest.raises(ValueError, match="no value in row 2"):
        columns_parquet.read(file, [], ["hole"])


def test_tokens_stay_whole(typed, here, tmp_path, files):
    (files / "token_nets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))\n"
    )
    x = np.random.default_rng(0).integers(0, 9, (30, 5))
    np.savez(tmp_path / "t.npz", x=x, y=x[:, 0] % 3)
    words = ("--model", "token_nets:net", "--data", tmp_path / "t.npz", "--members", 2)
    said = typed("fit", *words, "--epochs", 1, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    np.save(tmp_path / "x.npy", x[:4])
    said = typed("predict", tmp_path / "run", tmp_path / "x.npy", "--same-model", "--json")
    assert len(json.loads(said.out)) == 4


def test_two_targets_by_name(typed, here, tmp_path):
    words = ("--data", "train.csv", "--likelihood", "gaussian", "--drop", "kind", "--members", 2)
    (here / "pair_nets.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(2, 2))\n"
    )
    run = tmp_path / "run"
    more = ("--target", "a", "--target", "c", "--method", "regular", "--epochs", 1, "--out", run)
    said = typed("fit", "--model", "pair_nets:net", *words, *more)
    assert said.code == 0, said.err
    said = typed("predict", run, "test.csv", "--same-model", "--json")
    assert {"mean_a", "mean_c", "low_c"} <= set(json.loads(said.out)[0])
    assert typed("evaluate", run, "test.csv", "--same-model").code == 0


def test_rows_in_blocks_say_the_same(typed, here, tmp_path, monkeypatch):
    run = tmp_path / "run"
    words = ("--data", "train.csv", "--target", "kind", "--method", "regular", "--members", 3)
    assert typed("fit", *NET, *words, "--epochs", 1, "--out", run).code == 0
    whole = json.loads(typed("predict", run, "test.csv", *NET, "--json").out)
    monkeypatch.setattr(prediction, "DRAWS_BUDGET", 4 * 3 * 3 * 7)  # seven rows at a time
    parts = json.loads(typed("predict", run, "test.csv", *NET, "--json").out)
    assert [row["label"] for row in parts] == [row["label"] for row in whole]
    for name in ("prob_ash", "low_birch", "high_cedar", "entropy"):
        ours = np.array([row[name] for row in parts])
        assert np.allclose(ours, [row[name] for row in whole], atol=1e-6)


def test_quantiles_of_many_draws_in_parts(monkeypatch):
    probs = torch.rand(20, 50, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    whole = draws.central_interval(probs, 0.9)
    monkeypatch.setattr(draws, "MOST_QUANTILE", 20 * 3 * 4)
    for one, other in zip(whole, draws.central_interval(probs, 0.9), strict=True):
        assert torch.equal(one, other)


def test_a_column_that_does_not_vary_is_left_alone():
    scale = Scale.of(torch.tensor([[0.1, 1.0], [0.1, 3.0], [0.1, 2.0]], dtype=torch.float64))
    assert scale.sd[0] == 1
    assert scale(torch.tensor([[0.1, 2.0]], dtype=torch.float64)).abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (6, 2)])
def test_a_schema_comes_back_from_disk(tmp_path, shape):
    x = np.random.default_rng(0).normal(size=(10, *shape)) + 4
    layout = Layout("array", ("x",), ("y",), shape)
    schema = Schema(layout, ("a", "b"), Scale.of(torch.from_numpy(x)))
    schema.save(tmp_path / "schema")
    again = Schema.load(tmp_path / "schema")
    assert again.layout == layout
    assert again.classes == ("a", "b")
    given = Examples(x, [], [])
    assert torch.equal(again.inputs(given), schema.inputs(given))
    assert schema.inputs(given).double().mean().abs() < 1e-6


def test_the_same_rows_whatever_the_file(here):
    """csv and npz hold the same numbers, to the last bit."""
    found = columns_csv.read(here / "train.csv", list("abcd"), ["kind"])
    assert np.array_equal(found.x, table(60, 0)[0])
