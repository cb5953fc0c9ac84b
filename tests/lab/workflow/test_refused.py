"""Bad input, as a user meets it: one line, exit code 2, and nothing written."""

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from stochens import InputError
from stochens_lab.data import columns_csv

NET = ("--model", "trees_nets:make_net")
GOOD = ("--data", "train.csv", "--target", "kind")
FILES = {
    "empty.csv": "",
    "names.csv": "a,b,c,d,y\n",
    "hole.csv": "a,b,c,d,y\n1,2,3,4,p\n1,,3,4,q\n",
    "nan.csv": "a,b,c,d,y\n1,2,nan,4,p\n",
    "colour.csv": "a,b,colour,d,y\n1,2,red,4,p\n",
    "label.csv": "a,b,c,d,y\n1,2,3,4,\n",
    "numbers.csv": "1,2,3,4,0\n1,2,3,4,1\n",
    "index.csv": ",a,b,c,y\n0,1,2,3,p\n",
    "ragged.csv": "a,b,c,d,y\n1,2,3,4,p\n1,2,3,p\n",
    "twice.csv": "a,a,c,d,y\n1,2,3,4,p\n",
    "both.csv": "a,b,label,y\n1,2,3,4\n",
    "real.csv": "a,b,c,d,y\n1,2,3,4,0.5\n",
    "four.csv": "a,b,c,d,y\n" + "".join(f"1,2,3,4,{k}\n" for k in "pqrs"),
    "notes.txt": "dear",
}


@pytest.fixture
def bad(here, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.csv").write_bytes("a,y\n1,\xe9\n".encode("latin-1"))
    x = np.ones((3, 4))
    np.savez(tmp_path / "objects.npz", x=x, y=np.array([None, "a", 3], dtype=object))
    np.savez(tmp_path / "hole.npz", x=np.where(np.eye(3, 4) > 0, np.nan, x), y=[0, 1, 2])
    np.savez(tmp_path / "rows.npz", x=x, y=[0, 1])
    np.savez(tmp_path / "onehot.npz", x=x, y=np.eye(3))
    np.savez(tmp_path / "tokens.npz", x=x, y=np.ones((3, 4), dtype=int))
    np.save(tmp_path / "x.npy", x)
    rows = pd.DataFrame({"a": [1.0, 2, 3], "b": 1.0, "c": 2.0, "y": [*"pqr"]}, index=[4, 6, 7])
    rows.to_parquet(tmp_path / "index.parquet")
    for folder, size in (("p", (6, 7)), ("q", (6, 8))):
        (tmp_path / "sizes" / folder).mkdir(parents=True)
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / "sizes" / folder / "1.png")
    (tmp_path / "broken" / "p").mkdir(parents=True)
    (tmp_path / "broken" / "p" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    (tmp_path / "flat").mkdir()
    Image.fromarray(np.zeros((6, 7), np.uint8)).save(tmp_path / "flat" / "1.png")
    (tmp_path / "nothing").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.csv", "is not there"),
        ("notes.txt", "data must be .parquet, .csv"),
        ("empty.csv", "is empty"),
        ("names.csv", "has no rows"),
        ("hole.csv", "column 'b' has no value in line 3"),
        ("nan.csv", "column 'c' has no value in line 2"),
        ("colour.csv", "column 'colour' has 'red' in line 2, no number"),
        ("label.csv", "column 'y' has no value in line 2"),
        ("numbers.csv", "the first line must name the columns"),
        ("index.csv", "column 1 has no name; an index?"),
        ("index.parquet", "'__index_level_0__' is the index of a pandas table"),
        ("ragged.csv", "line 3 has 4 cells"),
        ("twice.csv", "two columns 'a'"),
        ("both.csv", "--target NAME: label and y may be"),
        ("real.csv", "numbers that are no labels (0.5 for one); for regression"),
        ("four.csv", "column 'y' has 4 classes (p, q, r, s), and the network has 3 outputs"),
        ("latin.csv", "is no UTF-8 text"),
        ("objects.npz", "no array of numbers or text"),
        ("hole.npz", "x[0, 0] is nan"),
        ("rows.npz", "y must have a row for each of the 3 examples"),
        ("onehot.npz", "labels must be [N], got [3, 3]; they are one-hot: save their argmax"),
        ("tokens.npz", "labels must be [N], got [3, 4]; one for each example"),
        ("x.npy", "--target NAME: none is called target, label, y, class or labels."),
        ("sizes", "is 8x6, and 1.png is 7x6"),
        ("broken", "is no image that can be read"),
        ("flat", "images without labels"),
        ("nothing", "has no images"),
    ],
)
def test_data(typed, bad, name, said):
    answer = typed("fit", *NET, "--data", bad / name, "--out", bad / "run")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not (bad / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*NET, *GOOD, "--method", "dropuot"), "did you mean 'dropout'?"),
        ((*NET, *GOOD, "--method", "regular", "--rate", 0.1), "--rate is for dropout"),
        ((*NET, *GOOD, "--likelihood", "gausian"), "did you mean 'gaussian'?"),
        ((*NET, *GOOD, "--device", "gpu"), "--device must be cpu or cuda"),
        ((*NET, *GOOD, "--members", 0), "--members must be at least 1"),
        ((*NET, *GOOD, "--validation", 1.5), "--validation must be a share"),
        ((*NET, *GOOD, "--validation", 0.001), "--validation 0.001 of 60 rows"),
        ((*NET, *GOOD, "--lr", -1), "lr must be a positive number"),
        ((*NET, *GOOD, "--engine", "warp"), "engine must be one of"),
        ((*NET, *GOOD, "--address", "127.0.0.1:1"), "is that of a Ray cluster"),
        ((*NET, *GOOD, "--rate", 2), "2"),
        ((*NET, *GOOD, "--prior-scale", "fan-on"), "did you mean 'fan-in'"),
        ((*NET, *GOOD, "--drop", "e"), "has no column 'e'"),
        ((*NET, *GOOD, "--drop", "a"), "the network fails on x (4, 3)"),
        ((*NET, *GOOD, "--feature", "kind"), "cannot be a feature and the target"),
        ((*NET, *GOOD, "--method", "multiswag", "--epochs", 3), "multiswag takes 20 snapshots"),
        ((*NET, "--data", "train.csv", "--target", "knd"), "did you mean 'kind'?"),
        ((*NET, "--data", "train-images", "--target", "kind"), "its folders are the classes"),
        ((*NET, "--data", "train-real.npz"), "no labels"),
        ((*NET, "--data", "train-real.npz", "--likelihood", "gaussian"), "outputs [B, 1]"),
        (GOOD, "--model is missing"),
        (("--model", "trees_nets:two", *GOOD), "the network has 2 outputs"),
        (("--model", "trees_nets:mak_net", *GOOD), "did you mean 'make_net'?"),
        (("--model", "script_nets:net", *GOOD), "script_nets fails: SystemExit: usage"),
        (("--model", "broken_nets:net", *GOOD), "broken_nets fails: SyntaxError"),
        (("--model", "trees_net:make_net", *GOOD), "no module 'trees_net'"),
        (("--model", "trees_nets.py:make_net", *GOOD), "say trees_nets:make_net"),
        (("--model", "make_net", *GOOD), "--model must be MODULE:FUNCTION"),
        (("--model", "trees_nets:fails", *GOOD), "fails: RuntimeError: no such layer"),
        (("--model", "trees_nets:nothing", *GOOD), "must return an nn.Module, got 3"),
        (("--model", "trees_nets:number", *GOOD), "is a int, no function"),
    ],
)
def test_options(typed, here, tmp_path, words, said):
    (here / "script_nets.py").write_text("raise SystemExit('usage')\n")
    (here / "broken_nets.py").write_text("def net(:\n")
    answer = typed("fit", *words, "--out", tmp_path / "run")
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last
    assert not (tmp_path / "run").exists()


def test_without_pyarrow(typed, here, tmp_path, monkeypatch):
    run = tmp_path / "run"
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    small = ("--members", 2, "--epochs", 1)
    assert typed("fit", *NET, *GOOD, *small, "--out", run).code == 0
    assert typed("predict", run, "test.csv", *NET, "-o", tmp_path / "p.csv").code == 0
    for words in (
        ("fit", *NET, "--data", "train.parquet", "--out", tmp_path / "other"),
        ("predict", run, "test.csv", *NET, "-o", tmp_path / "p.parquet"),
    ):
        answer = typed(*words)
        assert answer.code == 2
        assert "pip install 'stochens[lab]'" in answer.err


def test_an_empty_folder_stays_one(typed, here, tmp_path):
    (tmp_path / "run").mkdir()
    assert typed("fit", *NET, *GOOD, "--lr", -1, "--out", tmp_path / "run").code == 2
    assert list((tmp_path / "run").iterdir()) == []


def test_a_column_that_has_its_own_use_is_no_suggestion(tmp_path):
    file = tmp_path / "iris.csv"
    file.write_text("petal length,species\n1,ash\n")
    with pytest.raises(InputError, match="no column 'petal width'; it has petal length, species"):
        columns_csv.read(file, ["petal length"], ["petal width"])
    file.write_text("petal length,petal widht\n1,2\n")
    with pytest.raises(InputError, match="'petal width'; did you mean 'petal widht'"):
        columns_csv.read(file, ["petal length", "petal width"], [])


def test_predicting(typed, here, tmp_path):
    run = tmp_path / "run"
    assert typed("fit", *NET, *GOOD, "--members", 2, "--epochs", 1, "--out", run).code == 0
    (tmp_path / "zebra.csv").write_text("a,b,c,d,kind\n1,2,3,4,zebra\n")
    (tmp_path / "few.csv").write_text("a,b,kind\n1,2,ash\n")
    before = (here / "test.csv").read_bytes()
    for words, said in (
        (("predict", run, "test.csv"), "say --model trees_nets:make_net"),
        (("predict", run, "test.npz", *NET), "the run was fitted on columns"),
        (("predict", run, tmp_path / "few.csv", *NET), "has no column 'c'; it has a, b, kind"),
        (("predict", run, "test.csv", *NET, "-o", "test.csv"), "is the data"),
        (("predict", run, "test.csv", *NET, "-o", tmp_path / "p.xls"), "are written to .parquet"),
        (("predict", run, "test.csv", *NET, "-o", tmp_path / "no" / "p.csv"), "is not there"),
        (("predict", run, "test.csv", *NET, "--level", 1), "--level must be in (0, 1)"),
        (("predict", run, "test.csv", "--model", "trees_nets:two"), "holds another network"),
        (("predict", tmp_path, "test.csv", *NET), "is no run"),
        (("evaluate", run, tmp_path / "zebra.csv", *NET), "is of the class 'zebra'"),
        (("compare", run, run), "a run is named twice"),
        (("compare", run), "held nothing out"),
        (("compare", run, "--reference", "x.npy"), "--data FILE"),
    ):
        answer = typed(*words)
        assert answer.code == 2, words
        assert said in answer.err
        assert answer.err.count("\n") == 1
    assert (here / "test.csv").read_bytes() == before
    assert not list(tmp_path.glob("p.*"))
