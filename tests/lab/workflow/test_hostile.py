"""Files from strangers: a run folder runs nothing, and no file chooses what is allocated."""

import io
import json
import shutil
import sys
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from stochens.errors import InputError
from stochens.files.storage import CHECKSUMS
from stochens_lab.data import columns_parquet, user_images

NET = ("--model", "trees_nets:make_net")


@pytest.fixture
def run(typed, here, tmp_path):
    out = tmp_path / "run"
    words = ("--data", "train.csv", "--target", "kind", "--members", 2, "--epochs", 1)
    assert typed("fit", *NET, *words, "--out", out).code == 0
    return out


def rewritten(run, **config):
    """The run with other settings, and without the checksums that would tell."""
    about = json.loads((run / "run.json").read_text())
    about["config"] |= config
    (run / "run.json").write_text(json.dumps(about))
    (run / CHECKSUMS).unlink()


@pytest.fixture
def trap(files):
    """A module whose import leaves a trace."""
    trace = files / "trace"
    (files / "trap_nets.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    yield trace
    trace.unlink(missing_ok=True)
    sys.modules.pop("trap_nets", None)


def test_a_run_names_a_model_and_runs_none(typed, run, trap):
    rewritten(run, model="trap_nets:net")
    for words in (
        ("predict", run, "test.csv"),
        ("evaluate", run, "test.csv"),
        ("compare", run, run.parent / "run", "--data", "test.csv"),
        ("fit", "--resume", run),
        ("report", run),
    ):
        typed(*words)
    assert typed("predict", run, "test.csv", *NET).code == 0  # the user's own word
    assert not trap.exists()
    assert typed("predict", run, "test.csv", "--same-model").code == 2  # likewise: it has no net
    assert trap.exists()


def test_the_current_folder_comes_last(typed, run, files, monkeypatch):
    """A file there cannot stand in for an installed module, whoever put it there."""
    # without what the run before this put there: older torch adds a temporary folder of its own
    before = [place for place in sys.path if place != str(files)]
    monkeypatch.setattr(sys, "path", before.copy())
    typed("predict", run, "test.csv", *NET)
    assert sys.path[: len(before) + 1] == [*before, str(files)]
    assert sys.path.count(str(files)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "os; rm -rf ~:x",
        "os:system('x')",
        "a\nb:c",
        "\x1b[2J:x",
        "x:" + "y" * 300,
        3,
        None,
        "/x:y",
    ],
)
def test_what_is_no_name_is_not_shown(typed, run, name):
    rewritten(run, model=name)
    for words in (("predict", run, "test.csv"), ("predict", run, "test.csv", "--same-model")):
        answer = typed(*words)
        assert answer.code == 2
        assert "names no model" in answer.err
        assert str(name) not in answer.err or name is None or name == 3
    assert typed("fit", "--resume", run, "--same-model").code == 2


@pytest.mark.parametrize(
    "config",
    [{"epochs": "many"}, {"target": "kind"}, {"target": [3]}, {"members": True}, {"more": 1}],
)
def test_settings_of_a_run_are_checked(typed, run, config):
    rewritten(run, **config)
    answer = typed("fit", "--resume", run, *NET)
    assert answer.code == 2
    assert answer.err.startswith("error: ")


def test_a_changed_scale_is_noticed(typed, run):
    text = (run / "schema" / "description.json").read_text()
    (run / "schema" / "description.json").write_text(text.replace("ash", "oak"))
    answer = typed("predict", run, "test.csv", *NET)
    assert answer.code == 2
    assert "is damaged" in answer.err


def test_another_schema_is_refused(typed, run):
    import torch

    from stochens.files.storage import read_folder, write_folder
    from stochens_lab.workflow.schema import FORMAT

    tensors, about = read_folder(run / "schema", FORMAT)
    about = {k: v for k, v in about.items() if k not in ("format", "stochens", "torch")}
    wide = {"inputs/mean": torch.zeros(1000, 1), "inputs/sd": torch.ones(1000, 1)}
    for other, change in (
        (wide, {}),
        ({"inputs/mean": torch.zeros(4), "inputs/sd": torch.zeros(4)}, {}),
        (tensors, {"classes": [1, 2, 3]}),
        (tensors, {"classes": ["ash", "birch", "cedar", "oak"]}),
        (tensors, {"classes": ["ash"]}),
        (tensors, {"classes": [], "targets": ["a"]}),
        (tensors, {"kind": "tapes"}),
        (tensors, {"features": "abcd"}),
        (tensors, {"shape": [10**12]}),
    ):
        write_folder(run / "schema", FORMAT, other, {**about, **change}, overwrite=True)
        for command in ("predict", "evaluate"):
            answer = typed(command, run, "test.csv", *NET)
            assert answer.code == 2, change
            assert answer.err.startswith("error: ")


def test_npz_that_lies_of_its_size(typed, here, tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 4), }"
    header = header.ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64
    with zipfile.ZipFile(tmp_path / "big.npz", "w") as file:
        file.writestr("x.npy", content)
        file.writestr("y.npy", content)
    answer = typed("fit", *NET, "--data", tmp_path / "big.npz", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "not of the size it says" in answer.err


def test_parquet_of_few_bytes_and_many_rows(tmp_path, monkeypatch):
    file = tmp_path / "many.parquet"
    pq.write_table(pa.table({"a": pa.array(np.zeros(100_000)), "y": ["p"] * 100_000}), file)
    monkeypatch.setattr(columns_parquet, "MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has 100000 rows"):
        columns_parquet.read(file, ["a"], ["y"])


def test_a_text_that_all_rows_share_is_kept_once(tmp_path):
    file = tmp_path / "texts.parquet"
    text = "x" * 100_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), [text])
    pq.write_table(pa.table({"a": np.zeros(20_000), "y": column}), file)
    values = columns_parquet.read(file, ["a"], ["y"]).targets[0]  # 2 GB, were each a text
    assert values == [text] * 20_000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(40) + b"PAR1"])
def test_damaged_parquet(typed, here, tmp_path, content):
    (tmp_path / "bad.parquet").write_bytes(content)
    answer = typed("fit", *NET, "--data", tmp_path / "bad.parquet", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "cannot be read" in answer.err


def stated(width: int, height: int) -> bytes:
    """A PNG that says so in its header."""
    out = io.BytesIO()
    Image.new("L", (4, 4)).save(out, "PNG")
    data = bytearray(out.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


def test_images_that_say_they_are_huge(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "1.png").write_bytes(stated(100_000, 100_000))
    with pytest.raises(InputError, match="exceeds limit"):
        user_images.read(tmp_path)
    (tmp_path / "p" / "1.png").write_bytes(stated(4097, 4000))
    with pytest.raises(InputError, match="at most 4096 a side"):
        user_images.read(tmp_path)
    (tmp_path / "p" / "1.png").write_bytes(stated(4000, 4000))
    with pytest.raises(InputError, match="is no image that can be read"):
        user_images.read(tmp_path)


def test_many_large_images_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()
    for k in range(3):
        (tmp_path / "p" / f"{k}.png").write_bytes(stated(4000, 4000))
    monkeypatch.setattr(user_images, "MOST_BYTES", 1 << 25)
    with pytest.raises(InputError, match="3 images of 4000x4000"):
        user_images.read(tmp_path)
    shutil.rmtree(tmp_path / "p")
